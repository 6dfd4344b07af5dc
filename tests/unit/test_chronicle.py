"""The lines that the daemon's log has of stores and of capture, over scripted histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.state.chronicle import CaptureChronicle, Counted, Line, StoreChronicle
from cdc.state.status import CaptureStatus, FollowerStatus, TableProgress

START = FollowerStatus("cache", "redis")
FOLLOWING = replace(START, state="following")


class History:
    """Looks at one status after the other, a few seconds apart."""

    def __init__(self) -> None:
        self.chronicle = StoreChronicle("cache")
        self.now = 100.0

    def at(self, told: FollowerStatus, missing: int = 0, after_s: float = 5.0) -> Line | None:
        self.now += after_s
        return self.chronicle.look(told, Counted(missing, told.written + told.stale, told.position == 0), self.now)

    def words(self, told: FollowerStatus, missing: int = 0, after_s: float = 5.0) -> str | None:
        line = self.at(told, missing, after_s)
        return None if line is None else line.words


def test_a_first_load_from_its_beginning_to_its_end() -> None:
    history = History()
    assert history.words(START) is None
    assert history.words(FOLLOWING, 154_000) == "opened; loads: 154,000 changes to write"
    half = replace(FOLLOWING, position=70_000, written=70_000)
    assert history.words(half, 84_000, 10) is None
    whole = replace(FOLLOWING, position=154_000, written=150_000, stale=4_000)
    line = history.at(whole, 12, 10)
    assert line is not None
    assert line.words == "loaded: 154,000 changes in 20 s (7,700/s)"
    assert line.facts == {"store": "cache", "state": "following", "changes": 154_000, "seconds": 20.0, "per_s": 7_700}
    assert history.words(whole, 0) is None


def test_a_store_that_falls_behind_catches_up() -> None:
    history = History()
    there = replace(FOLLOWING, position=9_000)
    assert history.words(there) == "opened; follows"
    assert history.words(there, 4_999) is None
    assert history.words(there, 8_000) == "catches up: 8,000 changes to write"
    assert history.words(replace(there, position=17_000, written=8_000), 0) == "caught up: 8,000 changes in 5.0 s (1,600/s)"


def test_an_outage_is_told_once_for_each_reason_and_ends_with_how_long_it_took() -> None:
    history = History()
    history.at(FOLLOWING)
    down = replace(FOLLOWING, state="waiting", error="127.0.0.1:4312: connection refused")
    line = history.at(down)
    assert line is not None
    assert (line.level, line.words) == ("warning", "waits: 127.0.0.1:4312: connection refused → see whether the store is up")
    assert history.words(replace(down, error="127.0.0.1:4313: connection refused")) is None, (
        "the port is another, the reason is not"
    )
    assert history.words(replace(down, error="out of memory → raise maxmemory")) == "waits: out of memory → raise maxmemory"
    assert history.words(FOLLOWING) == "follows again after 15 s"


def test_an_outage_while_it_loads_tells_what_is_left() -> None:
    history = History()
    history.at(FOLLOWING, 20_000)
    history.at(replace(FOLLOWING, state="waiting", error="down"), 15_000)
    assert history.words(replace(FOLLOWING, written=5_000), 15_000) == "follows again after 5.0 s, 15,000 changes left"
    assert history.words(replace(FOLLOWING, position=20_000, written=20_000), 0) == "loaded: 20,000 changes in 15 s (1,333/s)"


def test_a_store_that_is_down_at_the_start_is_told_as_such() -> None:
    history = History()
    assert history.words(replace(START, state="waiting", error="down")) == "waits: down → see whether the store is up"
    assert history.words(FOLLOWING) == "opened after 5.0 s; follows"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "the index is read only → unlock it",
            "stopped: STORE_REFUSES: the index is read only → unlock it; then cdc resume STORE_REFUSES:follow-cache",
        ),
        ("it says no", "stopped: STORE_REFUSES: it says no → cdc resume STORE_REFUSES:follow-cache"),
        ("STORE_REFUSES: no → cdc resume STORE_REFUSES", "stopped: STORE_REFUSES: no → cdc resume STORE_REFUSES"),
    ],
)
def test_a_stop_names_the_command_that_ends_it(error: str, words: str) -> None:
    history = History()
    history.at(FOLLOWING)
    line = history.at(replace(FOLLOWING, state="stopped", stop="STORE_REFUSES", error=error))
    assert line is not None
    assert (line.level, line.words) == ("error", words)
    assert line.facts["resume"] == "cdc resume STORE_REFUSES:follow-cache"


def test_at_most_one_line_a_second_and_the_last_word_is_not_lost() -> None:
    history = History()
    history.at(FOLLOWING)
    down = replace(FOLLOWING, state="waiting", error="down")
    said = [history.words(down if turn % 2 else FOLLOWING, after_s=0.1) for turn in range(100)]
    assert 1 <= sum(line is not None for line in said) <= 10
    assert history.words(down) is not None or history.words(FOLLOWING) is not None
    assert history.words(replace(FOLLOWING, state="exited", position=7), after_s=0.0) == "closed"


def test_a_query_that_starts_again_is_a_warning() -> None:
    history = History()
    history.at(FOLLOWING)
    line = history.at(replace(FOLLOWING, error="the query of store cache starts again: SocketTimeoutException"))
    assert line is not None
    assert line.level == "warning"
    assert "starts again" in line.words
    assert history.words(FOLLOWING) == "follows again after 5.0 s"


def test_capture_tells_of_the_tables_that_it_reads() -> None:
    chronicle = CaptureChronicle()
    assert chronicle.look(CaptureStatus(), 0.0) is None
    assert chronicle.look(CaptureStatus(state="snapshot"), 1.0) is None, "which tables there are is not known yet"
    tables = [TableProgress("public.a", 0, 1_000), TableProgress("public.b", 500, 500, finished=True)]
    line = chronicle.look(CaptureStatus(state="snapshot", snapshot=tables), 2.0)
    assert line is not None
    assert line.words == "reads 1 table: about 1,000 rows, while changes are streamed"
    done = [TableProgress("public.a", 1_100, 1_000, finished=True), tables[1]]
    assert chronicle.look(CaptureStatus(state="snapshot", snapshot=done), 3.0) is None
    line = chronicle.look(CaptureStatus(state="streaming", snapshot=done), 4.0)
    assert line is not None
    assert line.words == "every table is in the log after 2.0 s (550 rows/s); streams"
    assert chronicle.look(CaptureStatus(state="streaming", snapshot=done), 5.0) is None
