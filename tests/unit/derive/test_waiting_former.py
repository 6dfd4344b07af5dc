"""A view's changed definition is refused, and the former one, which its topic is to be kept up by, waits for a table: it goes on by itself once that is whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdc.crashpoint import armed
from cdc.derive.inforce import ViewWaits
from cdc.derive.ports import DeclaredView
from cdc.errors import Stopped
from cdc.model.batch import Op
from cdc.state import status, stops
from cdc.views.contract import ViewRefused
from tests.unit.derive.bed import CUSTOMERS, ORDERS, VIEW, Bed
from tests.unit.derive.kernels import Row, WholeView
from tests.unit.derive.test_generations import SMALL, Unbound, bed, built, digest

__all__ = ["bed"]

NAMES = WholeView(
    "names", {"public.customers": ("id", "name")}, {"public.customers": ("id",)}, ("id",), VIEW.schema,
    lambda rows: [{"id": row["id"], "name": row["name"], "note": None} for row in rows["public.customers"]],
)  # fmt: skip
"""Of a table that is whole."""


def _careful(rows: Mapping[str, list[Row]]) -> list[Row]:
    if any(row["name"] == "n3" for row in rows["public.customers"]):
        raise ViewRefused("a value has no exact answer")
    return NAMES.compute(rows)


CAREFUL = replace(NAMES, name="careful names", compute=_careful)
"""It is refused by a row, once it is built so far."""
UNBOUND: Any = Unbound(NAMES)
"""It is refused by its tables."""


def read_again(bed: Bed) -> None:
    """Orders are not whole any more."""
    bed.whole(complete=False)
    saved = status.read_capture(bed.folder / "run")
    assert saved is not None
    saved.snapshot.append(status.TableProgress("public.customers", 4, 4, finished=True))
    status.write(bed.folder / "run", "capture", saved)


@pytest.mark.parametrize("other", [UNBOUND, CAREFUL], ids=["by its tables", "by a row"])
@pytest.mark.parametrize("lost", [False, True], ids=["with its state", "its state is lost"])
@pytest.mark.parametrize("known", [False, True], ids=["as it waits", "before"])
def test_it_goes_on_once_its_table_is_whole(bed: Bed, other: DeclaredView, lost: bool, known: bool) -> None:
    """``known``: the refusal is older than the process."""
    run = bed.folder / "run"
    built(bed)
    former = digest(bed)
    if known:
        with bed.runner(other, limits=SMALL) as runner:
            runner.begin()
            bed.keep_up(runner)
        assert [stop.part for stop in stops.held(run)] == ["view-joined@next"]
    read_again(bed)
    if lost:
        (bed.folder / "state/joined/g1/kernel/state").write_bytes(b"")
    with bed.runner(other, limits=SMALL) as runner:
        with pytest.raises(ViewWaits):
            runner.begin()
        for _ in range(2):
            # What is refused is not built over and over meanwhile.
            with armed("derive.loading=error:1"), pytest.raises(ViewWaits, match=r"public\.orders is still being read"):
                runner.begin()
            assert bool(stops.held(run)) == known, "what was refused before stays said"
        bed.whole()
        runner.begin()
        bed.commit((ORDERS, Op.UPDATE, [{"id": 3, "customer": 1, "note": "new"}]))
        bed.keep_up(runner)
        assert (digest(bed), bed.shown()) == (former, bed.expected(VIEW))
        assert [one.state for one in runner.generations()] == ["live", "refused"]
    [stop] = stops.held(run)
    assert stop.message.count("which is live") == 1
    bed.refuse_doubles()


def test_where_the_former_one_is_refused_too_the_changed_one_is_tried_again(bed: Bed) -> None:
    """Tables were altered so that it is possible now, and the former one is not."""

    def strict(rows: Mapping[str, list[Row]]) -> list[Row]:
        if any(row["note"] == "odd" for row in rows["public.orders"]):
            raise ViewRefused("a value has no exact answer")
        return VIEW.compute(rows)

    before = replace(VIEW, name="without odd ones", compute=strict)
    built(bed, before)
    with bed.runner(CAREFUL, limits=SMALL) as runner:
        runner.begin()
        bed.keep_up(runner)
        bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 1, "note": "odd"}]))
        with pytest.raises(Stopped, match="no exact answer"):
            bed.keep_up(runner)
    bed.commit((CUSTOMERS, Op.UPDATE, [{"id": 3, "name": "other"}]))
    (bed.folder / "state/joined/g1/kernel/state").write_bytes(b"")
    with bed.runner(CAREFUL, limits=SMALL) as runner:
        runner.begin()
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(CAREFUL)
        assert [one.state for one in runner.generations()] == ["live"]
    assert not stops.held(bed.folder / "run")
