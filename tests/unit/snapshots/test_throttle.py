from __future__ import annotations

import pytest

from snapshots.throttle import SlotState, Throttle, reason_to_pause

MB = 2**20


def test_rows_per_second_are_kept_on_average() -> None:
    now = 0.0
    throttle = Throttle(1000, lambda: now)
    waited = 0.0
    for _ in range(100):
        waited += (owed := throttle.owed_s(100))
        now += owed
    assert waited == pytest.approx(10.0, abs=1.1)


def test_an_idle_bucket_holds_one_second() -> None:
    now = 0.0
    throttle = Throttle(1000, lambda: now)
    now = 500.0
    assert throttle.owed_s(1000) == 0.0
    assert throttle.owed_s(1000) == 1.0
    assert Throttle(None).owed_s(10**9) == 0.0


@pytest.mark.parametrize(
    ("slot", "paused", "why"),
    [
        (SlotState(10 * MB, None, None), False, None),
        (SlotState(101 * MB, None, None), False, "the log is 101 MB of WAL behind the server"),
        (SlotState(60 * MB, None, None), False, None),
        (SlotState(60 * MB, None, None), True, "the log is 60 MB of WAL behind the server"),
        (SlotState(40 * MB, None, None), True, None),
        (SlotState(0, 300 * MB, 1000 * MB), False, None),
        (SlotState(0, 199 * MB, 1000 * MB), False, "only 199 MB of the slot's WAL budget of 1000 MB are left"),
        (SlotState(0, -5 * MB, 1000 * MB), False, "only -5 MB of the slot's WAL budget of 1000 MB are left"),
    ],
)
def test_when_it_pauses(slot: SlotState, paused: bool, why: str | None) -> None:
    assert reason_to_pause(slot, 100 * MB, paused=paused) == why
