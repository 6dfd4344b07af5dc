"""A view's process is killed at every step: each of its changes is in the log exactly once, and its topic is what its tables say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest

from cdc.crashpoint import KILLED
from cdc.derive.around import StepLimits
from cdc.model.batch import Op
from cdc.model.position import Lsn
from tests.faults import points
from tests.unit.derive.bed import CUSTOMERS, ORDERS, OTHER, RETYPED, VIEW, bed_in
from tests.unit.derive.kernels import WholeView

LIVES = 3
BUILDING = (
    "derive.opening", "derive.cleared", "derive.loading", "derive.loaded", "derive.whole", "derive.at_the_head", "derive.swapping", "derive.swapped",
)  # fmt: skip
BACK = ("derive.brought_on",)
"""Reached on the way back to a former definition."""


def live(folder: Path, seed: int, view: WholeView, *, lost: bool = False) -> None:
    """A process of a view, beside one that writes its tables."""
    dice = Random(seed)
    with bed_in(folder) as bed:
        bed.lsn = int(bed.writer.head.commit_lsn)
        if not bed.writer.head.position:
            bed.commit((CUSTOMERS, Op.INSERT, [{"id": n, "name": f"n{n}"} for n in range(6)]))
            bed.commit((ORDERS, Op.INSERT, [{"id": n, "customer": n, "note": "a"} for n in range(4)]))
        assert bed.writer.head.commit_lsn > Lsn(0)
        with bed.runner(view, f"lost-{seed}" if lost else "state", StepLimits(rows=4)) as runner:
            runner.begin()
            runner.build()
            for _ in range(4):
                bed.traffic(dice)
                bed.keep_up(runner)
                # A customer without orders changes nothing in the view.
                bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1_000_000 + int(bed.writer.head.position), "name": "new"}]))
                bed.keep_up(runner)


@pytest.mark.parametrize("point", points.of("derive"))
def test_a_view_that_is_killed_goes_on_exactly_once(tmp_path: Path, point: str, seed: int) -> None:
    """Its definition changes with each process, and back again; in some of these the type of a column."""
    dice = Random(seed)
    other = dice.choice((OTHER, RETYPED))
    killed = 0
    for life in range(LIVES):
        nth = 1 if point in (*BUILDING, *BACK) else dice.randrange(1, 4)
        # What begins without a state builds its view: there those points are.
        work = partial(live, tmp_path, seed + life, (VIEW, other)[life % 2], lost=life > 0 and point in BUILDING)
        killed += points.killed(work, f"{point}=kill:{nth}") == KILLED
    live(tmp_path, seed + LIVES, other)
    with bed_in(tmp_path) as bed:
        assert bed.shown() == bed.of_tables(other)
        bed.refuse_doubles()
    assert killed, f"{point} was never reached"
