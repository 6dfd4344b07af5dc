"""A view that is defined otherwise: its next generation is built beside the live one, its topic goes over in one step, and the way back is short."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import Fault, armed
from cdc.derive import sourcerows
from cdc.derive.around import StepLimits
from cdc.derive.runner import ViewRunner
from cdc.errors import HeadwaterError, Stopped
from cdc.inbox.verdicts import InboxMark
from cdc.model.batch import Op
from cdc.state import status, stops
from cdc.views.contract import Delta, StateFull, ViewRefused
from cdc.views.marks import ViewMark
from tests.unit.derive.bed import CUSTOMERS, ORDERS, OTHER, RETYPED, VIEW, Bed, bed_in
from tests.unit.derive.kernels import DEFINED, Row, WholeKernel, WholeView

SMALL = StepLimits(rows=3, kept_s=100.0)
THIRD = replace(VIEW, name="third", compute=lambda rows: [row | {"name": "third"} for row in VIEW.compute(rows)])


@dataclass(frozen=True)
class Unbound:
    """A definition that its tables, as they are now, do not allow."""

    view: WholeView

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    @property
    def definition(self) -> Mapping[str, Any]:
        return {"name": "unbound"}

    def bind(self, _: object) -> WholeView:
        raise ViewRefused("no such column")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bed_in(tmp_path) as found:
        found.commit((CUSTOMERS, Op.INSERT, [{"id": n, "name": f"n{n}"} for n in range(4)]))
        found.commit((ORDERS, Op.INSERT, [{"id": n, "customer": n % 4, "note": "a"} for n in range(10)]))
        yield found


def followed(runner: ViewRunner) -> None:
    while runner.step():
        pass


def built(bed: Bed, view: WholeView = VIEW) -> None:
    """Until nothing is left to be done."""
    with bed.runner(view, limits=SMALL) as runner:
        runner.begin()
        bed.keep_up(runner)
    assert bed.shown() == bed.expected(view)


def digest(bed: Bed) -> str:
    """The definition that the topic's rows are of."""
    mark = ViewMark.read(InboxMark.decode(bed.reader.marks()["view:joined"]).to)
    assert mark is not None
    return mark.digest


def folders(bed: Bed) -> list[str]:
    return sorted(path.name for path in (bed.folder / "state" / "joined").iterdir() if path.is_dir())


def test_the_live_one_is_followed_while_the_next_one_is_built_and_then_the_topic_gets_what_differs(bed: Bed) -> None:
    built(bed)
    before = digest(bed)
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        slices = 0
        for number in range(100, 120):
            bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "b"}]))
            followed(runner)
            assert bed.shown() == bed.expected(VIEW if digest(bed) == before else OTHER)
            slices += digest(bed) == before
            runner.build()
        assert slices >= 6, "it is built in several slices, and brought on by what has happened meanwhile"
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(OTHER)
        assert runner.why == "its definition is another than that of its rows in the log"
    bed.refuse_doubles()
    assert folders(bed) == ["g1", "g2"]


def test_the_way_back_finds_the_former_state_and_brings_it_on(bed: Bed) -> None:
    built(bed)
    built(bed, OTHER)
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        for number in range(20, 40):
            bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 2, "note": "c"}]))
        bed.keep_up(runner)
    with bed.runner(VIEW, limits=SMALL) as runner, armed("derive.loading=error:1") as trap:
        runner.begin()
        bed.keep_up(runner)
        assert not trap.hit, "nothing is computed from the beginning"
        assert runner.why == ""
        assert bed.shown() == bed.expected(VIEW)
    bed.refuse_doubles()
    assert folders(bed) == ["g1", "g2"]


def test_a_former_state_goes_when_its_time_is_over(bed: Bed) -> None:
    built(bed)
    built(bed, OTHER)
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        bed.now += 99
        runner.forget_former()
        assert folders(bed) == ["g1", "g2"]
        bed.now += 1
        runner.forget_former()
        assert folders(bed) == ["g2"]
    built(bed, OTHER)
    built(bed, VIEW)


def test_a_former_state_does_not_stay_for_longer_where_the_clock_was_ahead(bed: Bed) -> None:
    built(bed)
    bed.now += 1_000_000
    built(bed, OTHER)
    bed.now -= 1_000_000
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        for passed in (0, 99, 1):
            bed.now += passed
            assert folders(bed) == ["g1", "g2"]
            runner.forget_former()
    assert folders(bed) == ["g2"]


def test_three_definitions_in_quick_succession_leave_the_first_followed_until_the_third_is_there(bed: Bed) -> None:
    built(bed)
    first = digest(bed)
    for view in (OTHER, THIRD):
        with bed.runner(view, limits=SMALL) as runner:
            runner.begin()
            for _ in range(2):
                runner.build()
            bed.commit((ORDERS, Op.UPDATE, [{"id": 3, "customer": 1, "note": view.name}]))
            followed(runner)
            assert (digest(bed), bed.shown()) == (first, bed.expected(VIEW))
            assert len(folders(bed)) == 2, "what was being built for another one is gone"
    built(bed, THIRD)
    bed.refuse_doubles()


def test_a_former_one_that_was_being_put_into_the_topic_is_finished_first(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.derive.pieces.MAX_ROWS", 2)
    built(bed)
    with bed.runner(OTHER) as runner:
        runner.begin()
        with armed("derive.group_taken=error:2"), pytest.raises(Fault):
            bed.keep_up(runner)
    with bed.runner(THIRD) as runner:
        runner.begin()
        assert bed.shown() == bed.expected(OTHER)
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(THIRD)
    bed.refuse_doubles()


def test_going_back_in_the_middle_of_the_swap(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.derive.pieces.MAX_ROWS", 2)
    built(bed)
    with bed.runner(OTHER) as runner:
        runner.begin()
        with armed("derive.group_taken=error:1"), pytest.raises(Fault):
            bed.keep_up(runner)
    built(bed, VIEW)
    bed.refuse_doubles()


def test_a_former_one_that_compaction_has_overtaken_stands_still_until_the_next_one_is_there(bed: Bed) -> None:
    built(bed)
    bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 2, "note": "x"}]))
    bed.compact()
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(OTHER)
    bed.commit((ORDERS, Op.UPDATE, [{"id": 2, "customer": 3, "note": "y"}]))
    built(bed, OTHER)
    bed.commit((ORDERS, Op.UPDATE, [{"id": 2, "customer": 2, "note": "y"}]))
    bed.compact()
    built(bed, VIEW)
    bed.refuse_doubles()


def test_whichever_state_is_lost_or_comes_back_from_a_backup(bed: Bed, seed: int) -> None:
    dice = Random(seed)
    state, backup = bed.folder / "state", bed.folder / "backup"
    backup.mkdir()
    built(bed)
    for number in range(16):
        view = dice.choice((VIEW, OTHER, THIRD))
        with bed.runner(view, limits=SMALL) as runner:
            runner.begin()
            for _ in range(dice.randrange(8)):
                bed.traffic(dice)
                runner.step()
                runner.build()
        for name in folders(bed):
            roll = dice.random()
            if roll < 0.2:
                shutil.rmtree(state / "joined" / name)
            elif roll < 0.4:
                shutil.copytree(state / "joined" / name, backup / f"{number}-{name}")
        for kept in sorted(backup.iterdir()):
            if dice.random() < 0.2:
                shutil.rmtree(state / "joined" / f"g{dice.randrange(1, 4)}", ignore_errors=True)
                shutil.copytree(kept, state / "joined" / f"g{dice.randrange(4, 9)}", dirs_exist_ok=True)
    built(bed, OTHER)
    bed.refuse_doubles()


def test_a_full_disk_ends_the_building_and_not_the_live_one(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    original = WholeKernel.advance

    def full(self: WholeKernel, *given: Any, **named: Any) -> Delta:
        if self._view is OTHER:
            raise StateFull("the state does not fit on its disk")
        return original(self, *given, **named)

    built(bed)
    before = digest(bed)
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        assert runner.build()
        with monkeypatch.context() as patch:
            patch.setattr(WholeKernel, "advance", full)
            assert not runner.build()
            assert folders(bed) == ["g1"], "there is room for the live one"
            bed.commit((ORDERS, Op.DELETE, [{"id": 1}]))
            followed(runner)
            assert (digest(bed), bed.shown()) == (before, bed.expected(VIEW))
        while not runner.building:  # its time comes by this clock
            runner.move_mark()
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(OTHER)


def test_a_full_disk_of_the_live_one_makes_room_of_the_former_one(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Delta:
        raise StateFull("the state does not fit on its disk")

    built(bed)
    built(bed, OTHER)
    with bed.runner(OTHER) as runner:
        runner.begin()
        bed.commit((ORDERS, Op.DELETE, [{"id": 2}]))
        monkeypatch.setattr(WholeKernel, "advance", full)
        with pytest.raises(StateFull):
            runner.step()
        monkeypatch.undo()
    assert folders(bed) == ["g2"]
    built(bed, OTHER)


def test_of_two_runners_with_two_definitions_the_one_that_began_last_counts(bed: Bed) -> None:
    built(bed)
    with bed.runner(VIEW, "one") as one, bed.runner(OTHER, "two") as two:
        one.begin()
        two.begin()
        bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 2, "note": "new"}]))
        with pytest.raises(HeadwaterError, match="opened again since"):
            bed.keep_up(one)
        bed.keep_up(two)
        assert bed.shown() == bed.expected(OTHER)
        one.begin()
        bed.keep_up(one)
        assert bed.shown() == bed.expected(VIEW)
        bed.commit((ORDERS, Op.UPDATE, [{"id": 2, "customer": 3, "note": "new"}]))
        with pytest.raises(HeadwaterError, match="opened again since"):
            bed.keep_up(two)
    bed.refuse_doubles()


def test_a_value_that_only_the_former_definition_refuses_does_not_stop_the_next_one(bed: Bed) -> None:
    def careful(rows: Mapping[str, list[Row]]) -> list[Row]:
        if any(row["note"] == "odd" for row in rows["public.orders"]):
            raise ViewRefused("a value has no exact answer")
        return VIEW.compute(rows)

    strict = replace(VIEW, name="strict", compute=careful)
    built(bed, strict)
    bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 1, "note": "odd"}]))
    with bed.runner(strict) as runner:
        runner.begin()
        with pytest.raises(Stopped):
            bed.keep_up(runner)
    built(bed, OTHER)
    bed.refuse_doubles()


def test_a_former_one_whose_code_is_gone_stands_still_and_its_state_is_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    built(bed)
    with monkeypatch.context() as patch:
        patch.delitem(DEFINED, VIEW.name)
        with bed.runner(OTHER) as runner:
            runner.begin()
            assert bed.shown() == bed.expected(OTHER)
    assert folders(bed) == ["g1", "g2"]
    with bed.runner(VIEW) as runner:
        runner.begin()
        bed.keep_up(runner)
        assert (runner.why, bed.shown()) == ("", bed.expected(VIEW))


def test_a_view_that_was_taken_out_comes_back_otherwise(bed: Bed, seed: int) -> None:
    dice = Random(seed)
    built(bed)
    built(bed, OTHER)
    for _ in range(20):
        bed.traffic(dice)
    built(bed, THIRD)
    bed.refuse_doubles()


def test_a_table_of_the_next_one_that_is_still_being_read_does_not_hold_up_the_live_one(bed: Bed) -> None:
    keyed = ("id",)
    names = WholeView(
        "names", {"public.customers": ("id", "name")}, {"public.customers": keyed}, keyed, VIEW.schema,
        lambda rows: [{"id": row["id"], "name": row["name"], "note": None} for row in rows["public.customers"]],
    )  # fmt: skip
    built(bed, names)
    bed.whole(complete=False)
    saved = status.read_capture(bed.folder / "run")
    assert saved is not None
    saved.snapshot.append(status.TableProgress("public.customers", 4, 4, finished=True))
    status.write(bed.folder / "run", "capture", saved)
    with bed.runner(VIEW, limits=SMALL) as runner:
        runner.begin()
        assert not runner.build()
        assert [one.state for one in runner.generations()] == ["live"]
        bed.commit((CUSTOMERS, Op.UPDATE, [{"id": 1, "name": "new"}]))
        followed(runner)
        assert bed.shown() == bed.expected(names)
        bed.whole()
        while not runner.building:
            runner.move_mark()
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(VIEW)


REKEYED = replace(VIEW, name="rekeyed", key=("id", "name"))
TEXTS = replace(
    VIEW,
    name="texts",
    schema=pa.schema([("id", pa.utf8()), ("name", pa.utf8()), ("note", pa.utf8())]),
    compute=lambda rows: [row | {"id": f"n{row['id']}"} for row in VIEW.compute(rows)],
)
"""The type of its key is another."""
NONE = replace(REKEYED, name="none", compute=lambda _: [])


@pytest.mark.parametrize("other", [RETYPED, REKEYED, TEXTS, NONE], ids=lambda one: one.name)
@pytest.mark.parametrize("rows", [200_000, 3])
def test_the_key_and_the_types_of_columns_change_with_the_generation(
    bed: Bed, other: WholeView, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.derive.pieces.MAX_ROWS", rows)
    built(bed)
    for view in (other, VIEW):
        with bed.runner(view, limits=SMALL) as runner:
            runner.begin()
            bed.commit((ORDERS, Op.UPDATE, [{"id": 3, "customer": 1, "note": f"for {view.name}"}]))
            bed.keep_up(runner)
            assert bed.shown() == bed.expected(view)
            [topic] = [one for one in bed.reader.topics() if one.name == "views.joined"]
            assert [column.name for column in topic.table.key] == list(view.key)
            bed.commit(
                (ORDERS, Op.UPDATE, [{"id": 5, "customer": 2, "note": f"for {view.name}"}]), (ORDERS, Op.DELETE, [{"id": 6}])
            )
            bed.keep_up(runner)
            assert bed.shown() == bed.expected(view)
    bed.refuse_doubles()


@pytest.mark.parametrize("other", [RETYPED, REKEYED], ids=lambda one: one.name)
@pytest.mark.parametrize("group", [1, 2])
def test_a_process_that_ends_while_the_topic_is_redefined_goes_on(
    bed: Bed, other: WholeView, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.derive.pieces.MAX_ROWS", 3)
    built(bed)
    with bed.runner(other) as runner, armed(f"derive.group_taken=error:{group}"):
        runner.begin()
        with pytest.raises(Fault):
            bed.keep_up(runner)
    built(bed, other)
    built(bed, VIEW)
    bed.refuse_doubles()


ODD = replace(
    VIEW, name="odd", compute=lambda rows: [row | {"id": None if row["id"] == 7 else row["id"]} for row in VIEW.compute(rows)]
)
"""Its key is NULL in a row."""


def test_a_refused_next_one_leaves_the_live_one_fresh_and_is_tried_again_once_it_is_resumed(bed: Bed) -> None:
    built(bed)
    before, run = digest(bed), bed.folder / "run"
    for _ in range(2):
        with bed.runner(ODD, limits=SMALL) as runner:
            runner.begin()
            bed.keep_up(runner)
            bed.commit((ORDERS, Op.UPDATE, [{"id": 3, "customer": 1, "note": f"at {bed.lsn}"}]))
            bed.keep_up(runner)
            assert (digest(bed), bed.shown(), folders(bed)) == (before, bed.expected(VIEW), ["g1"])
            refused = [(one.number, one.state, one.error) for one in runner.generations()]
            why = "view joined: column id of the view's key is NULL in one of its rows; generation 1, which is live, goes on"
            assert refused == [(1, "live", None), (2, "refused", why)]
    [stop] = stops.held(run)
    assert (stop.name, stop.message) == ("VIEW_REFUSED:view-joined@next", why)
    assert stop.hint.endswith("then cdc resume VIEW_REFUSED")
    with bed.runner(ODD, limits=SMALL) as runner:
        runner.begin()
        bed.commit((ORDERS, Op.DELETE, [{"id": 7}]))
        bed.keep_up(runner)
        assert digest(bed) == before
        assert stops.clear(run, "VIEW_REFUSED:view-joined")
        while not runner.building:
            runner.move_mark()
        bed.keep_up(runner)
        assert (digest(bed) == before, bed.shown()) == (False, bed.expected(ODD))
    assert not stops.held(run)
    bed.refuse_doubles()


def test_a_next_one_that_is_refused_as_its_tables_are_leaves_the_live_one_fresh(bed: Bed) -> None:
    built(bed)
    with bed.runner(Unbound(VIEW), limits=SMALL) as runner:
        for number in range(2):
            runner.begin()
            bed.commit((ORDERS, Op.UPDATE, [{"id": 3, "customer": number, "note": "new"}]))
            bed.keep_up(runner)
            assert bed.shown() == bed.expected(VIEW)
            assert [one.state for one in runner.generations()] == ["live", "refused"]
    assert stops.held(bed.folder / "run")
    built(bed, VIEW)
    assert not stops.held(bed.folder / "run"), "the change was taken back"
    with bed.runner(Unbound(VIEW), "elsewhere") as runner, pytest.raises(Stopped, match="no such column"):
        runner.begin()


@pytest.mark.parametrize("while_it_runs", [True, False])
def test_a_live_one_whose_state_is_lost_is_computed_again_where_the_next_one_is_refused(bed: Bed, *, while_it_runs: bool) -> None:
    built(bed)
    with bed.runner(ODD, limits=SMALL) as runner:
        runner.begin()
        bed.keep_up(runner)
        if not while_it_runs:
            (bed.folder / "state/joined/g1/kernel/state").write_bytes(b"")
            runner.begin()
        else:
            bed.alter(99)
            bed.keep_up(runner)
        assert [one.state for one in runner.generations()] == ["live", "refused"]
        bed.commit((ORDERS, Op.UPDATE, [{"id": 3, "customer": 1, "note": "new"}]))
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(VIEW)
    bed.refuse_doubles()


def test_the_live_one_is_followed_while_the_log_is_looked_through_for_the_next_ones_rows(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sourcerows, "PAUSE_BATCHES", 1)
    for number in range(10):  # each of which is a batch of its own, whose rows are gone
        bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "a"}]), (ORDERS, Op.TRUNCATE, ()))
    built(bed)
    with bed.runner(OTHER, limits=SMALL) as runner:
        runner.begin()
        slices = 0
        while next((one.done for one in runner.generations() if one.state == "building"), 0) == 0:
            bed.commit((ORDERS, Op.INSERT, [{"id": 100 + slices, "customer": 1, "note": "b"}]))
            followed(runner)
            assert bed.shown() == bed.expected()
            runner.build()
            slices += 1
        assert slices > 20
        bed.keep_up(runner)
        assert bed.shown() == bed.expected(OTHER)
