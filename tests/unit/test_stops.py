from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import LogCorrupt, Stopped, StopState
from cdc.state import stops

LOST = Stopped(StopState.SLOT_LOST, "the slot has been invalidated", hint="see the runbook")


def test_a_stop_is_kept_and_raised_again(tmp_path: Path) -> None:
    stop = stops.record(tmp_path, "capture", LOST)
    assert stops.held(tmp_path) == [stop]
    with pytest.raises(Stopped) as caught:
        stops.check(tmp_path, "capture")
    assert (caught.value.state, caught.value.line()) == (LOST.state, LOST.line())
    stops.check(tmp_path, "follow-search")


def test_recorded_again_it_keeps_its_time(tmp_path: Path) -> None:
    first = stops.record(tmp_path, "capture", LOST)
    assert stops.record(tmp_path, "capture", LOST).since == first.since
    assert len(stops.held(tmp_path)) == 1


@pytest.mark.parametrize("name", ["SLOT_LOST", "slot_lost", "SLOT_LOST:capture"])
def test_cleared_by_state_or_by_its_whole_name(tmp_path: Path, name: str) -> None:
    stops.record(tmp_path, "capture", LOST)
    corrupt = stops.record(tmp_path, "follow-search", LogCorrupt("segment 3 at byte 17"))
    assert [stop.state for stop in stops.clear(tmp_path, name)] == [StopState.SLOT_LOST]
    assert stops.held(tmp_path) == [corrupt]
    assert stops.clear(tmp_path, name) == []


def test_one_part_of_several(tmp_path: Path) -> None:
    refuses = Stopped(StopState.STORE_REFUSES, "everything")
    for part in ("follow-a", "follow-b"):
        stops.record(tmp_path, part, refuses)
    stops.clear(tmp_path, "STORE_REFUSES:follow-a")
    assert stops.held_by(tmp_path, "follow-a") is None
    held = stops.held_by(tmp_path, "follow-b")
    assert held is not None
    assert held.name == "STORE_REFUSES:follow-b"


def test_nothing_held_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert stops.held(tmp_path / "nowhere") == []
