from __future__ import annotations

import pytest

from cdc import pace as paces
from cdc.pace import SLOWEST, Pace, slowness


@pytest.mark.parametrize(
    ("pace", "took_s", "rest_s"),
    [
        (Pace(3.0, 0.02), 0.001, 0.003),
        (Pace(3.0, 0.02), 0.5, 0.02),
        (Pace(3.0, 0.02, interval_s=1.0), 0.1, 0.9),
        (Pace(3.0, 0.02, interval_s=1.0), 5.0, 0.02),
    ],
)
def test_a_rest_is_a_multiple_of_the_work_within_bounds(pace: Pace, took_s: float, rest_s: float) -> None:
    assert pace.rest_s(took_s) == pytest.approx(rest_s)


@pytest.mark.parametrize(
    ("load", "cores", "times"), [(0.0, 2, 1.0), (2.0, 2, 1.0), (25.0, 2, 12.5), (900.0, 2, SLOWEST), (3.0, None, 3.0)]
)
def test_limits_grow_with_how_many_want_a_core(
    monkeypatch: pytest.MonkeyPatch, load: float, cores: int | None, times: float
) -> None:
    monkeypatch.setattr(paces.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(paces.os, "cpu_count", lambda: cores)
    assert slowness() == times


def test_a_system_that_does_not_say_counts_as_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(paces.os, "getloadavg", refuse)
    assert slowness() == 1.0
