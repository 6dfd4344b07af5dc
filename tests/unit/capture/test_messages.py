"""The index of a block's messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cdc.capture import messages
from cdc.capture.messages import SPAN, Inside, Open, scan
from cdc.errors import ProtocolError
from tests.unit.capture import wire

WITHIN = "IUDTMRYO"
"""What a transaction consists of, however it comes."""
STATES = {
    Inside.NOTHING: {
        "B": Inside.TRANSACTION,
        "S": Inside.STREAM,
        "b": Inside.PREPARED,
        **dict.fromkeys("RYOMcApKr", Inside.NOTHING),
    },
    Inside.TRANSACTION: {"C": Inside.NOTHING, **dict.fromkeys(WITHIN, Inside.TRANSACTION)},
    Inside.STREAM: {"E": Inside.NOTHING, **dict.fromkeys(WITHIN, Inside.STREAM)},
    Inside.PREPARED: {"P": Inside.NOTHING, **dict.fromkeys(WITHIN, Inside.PREPARED)},
}
"""Where each message that may come leaves the stream; every other is an error."""


class _Dirty:
    """numpy, but for memory that nobody has written to yet: it holds what was there before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, kind: Any) -> Any:
        return np.full(shape, 99, kind)


@pytest.mark.parametrize("opened", [None, Open(5, 50, 500)])
def test_a_transaction_whose_end_has_not_come_has_no_end(opened: Open | None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [] if opened else [wire.begin(5, 50)]
    block = wire.block(*before, wire.commit(50, 60), wire.begin(7, 70))
    scan(block, 0, len(block), opened)  # the kernel is compiled with numpy itself
    monkeypatch.setattr(messages, "np", _Dirty())
    found = scan(block, 0, len(block), opened)
    index = found.messages
    assert found.inside is Inside.TRANSACTION
    assert (index.xid.tolist(), index.commit_lsn.tolist(), index.end_lsn.tolist()) == ([5, 7], [50, 70], [60, 0])
    if opened:
        index = scan(block, 0, 0, opened).messages
        assert (index.xid.tolist(), index.end_lsn.tolist()) == ([5], [0])


@pytest.mark.parametrize("inside", Inside, ids=lambda inside: inside.name)
def test_the_states_are_a_table(inside: Inside) -> None:
    opened = Open(7, 0, 0) if inside is Inside.TRANSACTION else None
    found = {}
    for letter in range(256):
        message = bytes([letter]) + bytes({"B": 20, "C": 25}.get(chr(letter), 30))
        block = wire.block(wire.xlog(message))
        try:
            seen = scan(block, 0, len(block), opened, inside)
        except ProtocolError:
            continue
        found[chr(letter)] = seen.inside
        kinds = seen.messages.kind.tolist()
        if chr(letter) in WITHIN and inside in (Inside.STREAM, Inside.PREPARED):
            assert kinds == [SPAN], "kept as it is"
        elif letter == ord("M") and inside is Inside.NOTHING:
            assert kinds == [], "not transactional"
        else:
            assert kinds == [letter]
        assert seen.spooling == (chr(letter) in "SEcAbPpKr" or inside in (Inside.STREAM, Inside.PREPARED))
    assert found == STATES[inside]
