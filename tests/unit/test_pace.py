from __future__ import annotations

import pytest

from cdc.pace import Pace


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
