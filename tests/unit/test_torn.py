"""Messages come whole to the decoder however the bytes are cut, and what is somebody else's is not kept."""

from __future__ import annotations

import numpy as np

from cdc.ingest.idle import IDLE_RECORD_BYTES, IDLE_RECORD_S, Idle
from cdc.ingest.torn import Remainder, Torn
from cdc.pgvalues.values import Bytes


def block(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


def joined(torn: Torn, text: str) -> str | None:
    found = torn.join(block(text), lambda kept, taken: np.concatenate([kept, taken]))
    return None if found is None else found.tobytes().decode()


def test_what_decoding_has_left_comes_again_with_what_follows() -> None:
    torn = Torn()
    assert joined(torn, "whole") == "whole"
    torn.keep(block("whole, ha"), Remainder(consumed=7, lacks=0, foreign=0))
    assert joined(torn, "lf") == "half"


def test_nothing_is_decoded_before_the_bytes_that_were_lacking_have_come() -> None:
    torn = Torn()
    torn.keep(block("abc"), Remainder(consumed=0, lacks=4, foreign=0))
    assert joined(torn, "de") is None
    assert joined(torn, "f") is None
    assert joined(torn, "gh") == "abcdefgh"


def test_a_message_of_somebody_elses_is_passed_over_and_what_follows_it_is_not() -> None:
    torn = Torn()
    torn.keep(block("head--"), Remainder(consumed=0, lacks=5, foreign=2))
    assert joined(torn, "---") is None
    assert joined(torn, "--tail") == "headtail"
    assert joined(torn, "next") == "next"


def test_a_position_is_recorded_now_and_then_after_much_wal_or_when_asked_and_never_twice() -> None:
    idle = Idle(now=100.0)
    assert idle.due(50, 1e6, force=True) is None, "nothing has passed"
    idle.passed(60)
    idle.passed(55)
    assert idle.due(50, 100.0, force=True) == 60
    assert idle.due(50, 100.0 + IDLE_RECORD_S - 0.1, force=False) is None
    assert idle.due(50, 100.0 + IDLE_RECORD_S, force=False) == 60
    assert idle.due(60, 1e6, force=True) is None, "the log is there"
    idle.recorded(200.0)
    idle.passed(61)
    assert idle.due(60, 201.0, force=False) is None
    idle.passed(60 + IDLE_RECORD_BYTES)
    assert idle.due(60, 201.0, force=False) == 60 + IDLE_RECORD_BYTES
