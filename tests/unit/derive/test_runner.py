"""A view's topic is what its sources say, at every point, whatever ends the process that keeps it up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cdc.crashpoint import Fault, armed
from cdc.derive.around import StepLimits
from cdc.derive.inforce import ViewWaits
from cdc.errors import HeadwaterError
from cdc.inbox.verdicts import InboxMark
from cdc.model.batch import Op
from cdc.views.contract import StateFull
from cdc.views.marks import ViewMark
from tests.faults import points
from tests.unit.derive.bed import CUSTOMERS, ORDERS, OTHER, VIEW, Bed, bed_in
from tests.unit.derive.kernels import WholeKernel, WholeView, lose_power

POINTS = (*points.of("derive"), "inbox.take.appended", "inbox.take.marked", "inbox.take.durable")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bed_in(tmp_path) as found:
        found.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bo"}]))
        found.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}, {"id": 2, "customer": 3, "note": "b"}]))
        yield found


def test_the_first_build_and_then_every_change_is_in_the_views_topic(bed: Bed) -> None:
    with bed.runner() as runner:
        runner.begin()
        assert bed.shown() == {1: {"id": 1, "name": "Ann", "note": "a"}}
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 3, "name": "Cy"}]), (CUSTOMERS, Op.UPDATE, [{"id": 1, "name": "Anna"}]))
        bed.keep_up(runner)
        assert bed.shown() == bed.expected()
        bed.commit((ORDERS, Op.DELETE, [{"id": 1}]), (CUSTOMERS, Op.DELETE, [{"id": 1}]))
        bed.keep_up(runner)
        assert bed.shown() == bed.expected() == {2: {"id": 2, "name": "Cy", "note": "b"}}
        bed.commit((ORDERS, Op.TRUNCATE, ()))
        bed.keep_up(runner)
        assert bed.shown() == {}
        assert not runner.step()


def test_a_view_stands_still_until_its_tables_are_whole(bed: Bed) -> None:
    bed.whole(complete=False)
    with bed.runner() as runner:
        with pytest.raises(ViewWaits, match=r"public\.orders is still being read"):
            runner.begin()
        bed.whole()
        runner.begin()
        assert bed.shown() == bed.expected()


def test_a_step_without_an_effect_moves_the_mark_and_nothing_else(bed: Bed) -> None:
    with bed.runner() as runner:
        runner.begin()
        before = bed.history()
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 9, "name": "Nobody"}]))
        bed.keep_up(runner)
        for _ in range(20):  # each look takes a while by this clock
            runner.move_mark()
            bed.inbox.serve()
        assert bed.history() == before
        assert reached(bed).cut == bed.reader.head().position
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 10, "name": "Nobody"}]))
        assert runner.step()
    with bed.runner() as runner:  # a state ahead of the mark that says so is used
        runner.begin()
        assert runner.why == ""


def reached(bed: Bed) -> ViewMark:
    mark = ViewMark.read(InboxMark.decode(bed.reader.marks()["view:joined"]).to)
    assert mark is not None
    return mark


@pytest.mark.parametrize("point", POINTS)
def test_wherever_a_process_ends_no_change_is_lost_or_doubled(bed: Bed, point: str, seed: int) -> None:
    """Also where its definition changes in between, and back again, and where the machine loses its power."""
    dice = Random(f"{seed} {point}")
    limits = StepLimits(rows=4)
    hits = 0
    for life, view in enumerate((VIEW, VIEW, OTHER, VIEW, VIEW, OTHER, VIEW)):
        nth = 1 if life in (0, 3, 4) else dice.randrange(1, 5)
        with bed.runner(view, limits=limits) as runner, armed(f"{point}=error:{nth}") as trap:
            try:
                runner.begin()
                runner.build()
                for _ in range(4):
                    bed.traffic(dice)
                    bed.keep_up(runner)
            except Fault:
                pass
            hits += trap.hit
        if dice.random() < 0.3:
            lose_power(bed.folder / "state", dice)
        if life == 3:
            shutil.rmtree(bed.folder / "state")
    with bed.runner(limits=limits) as runner:
        runner.begin()
        bed.keep_up(runner)
    assert bed.shown() == bed.expected()
    bed.refuse_doubles()
    assert hits


def test_of_two_runners_the_older_one_is_fenced(bed: Bed, seed: int) -> None:
    dice = Random(seed)
    with bed.runner(state="one") as one, bed.runner(state="two") as two:
        one.begin()
        bed.traffic(dice)
        two.begin()
        bed.commit(
            (ORDERS, Op.INSERT, [{"id": 77, "customer": 2, "note": "new"}]), (CUSTOMERS, Op.UPDATE, [{"id": 2, "name": "B"}])
        )
        with pytest.raises(HeadwaterError, match="opened again since"):
            bed.keep_up(one)
        bed.keep_up(two)
        assert bed.shown() == bed.expected()
        one.begin()
        bed.commit((ORDERS, Op.DELETE, [{"id": 77}]))
        with pytest.raises(HeadwaterError, match="opened again since"):
            bed.keep_up(two)
        bed.keep_up(one)
    assert bed.shown() == bed.expected()
    bed.refuse_doubles()


def test_a_lost_state_is_computed_again_and_the_topic_gets_only_what_differs(bed: Bed) -> None:
    with bed.runner() as runner:
        runner.begin()
    before = bed.history()
    shutil.rmtree(bed.folder / "state")
    bed.commit((ORDERS, Op.INSERT, [{"id": 5, "customer": 2, "note": "c"}]), (ORDERS, Op.DELETE, [{"id": 1}]))
    with bed.runner() as runner:
        runner.begin()
        assert runner.why == "it has no state yet"
        assert bed.shown() == bed.expected()
        assert [(op, row["id"]) for _, op, row in bed.history()[len(before) :]] == [("u", 5), ("d", 1)]


def test_a_full_disk_ends_the_process_and_does_not_refuse_the_view(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StateFull("the state does not fit on its disk")

    with bed.runner() as runner:
        runner.begin()
        bed.commit((ORDERS, Op.DELETE, [{"id": 1}]))
        with monkeypatch.context() as patch:
            patch.setattr(WholeKernel, "advance", full)
            with pytest.raises(StateFull):
                runner.step()
    with bed.runner() as runner:
        runner.begin()
        bed.keep_up(runner)
        assert bed.shown() == bed.expected()


def test_a_state_that_is_ahead_of_the_log_is_thrown_away(bed: Bed, tmp_path: Path) -> None:
    with bed.runner() as runner:
        runner.begin()
        bed.commit((ORDERS, Op.INSERT, [{"id": 5, "customer": 2, "note": "c"}]))
        bed.keep_up(runner)
    state = tmp_path / "state"
    shutil.copytree(state, tmp_path / "later")
    with bed_in(tmp_path / "restored") as other:  # a log that has come less far
        other.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]))
        other.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        shutil.copytree(tmp_path / "later", other.folder / "state")
        with other.runner() as runner:
            runner.begin()
            assert "another history" in runner.why
            assert other.shown() == other.expected()


def test_a_machine_that_loses_its_power_behind_a_first_build_leaves_all_of_it(bed: Bed) -> None:
    """Its pieces are commits, too, and facts that are durable say that there are no more."""
    bed.commit((CUSTOMERS, Op.INSERT, [{"id": 10 + n, "name": "Ann"} for n in range(20)]))
    bed.commit((ORDERS, Op.INSERT, [{"id": 10 + n, "customer": 10 + n, "note": "a"} for n in range(20)]))
    for number in range(5):
        with bed.runner(limits=StepLimits(rows=1), state=str(number)) as runner:
            runner.begin()
            bed.keep_up(runner)
        lose_power(bed.folder / str(number), Random(number))
        bed.commit((ORDERS, Op.UPDATE, [{"id": 10 + n, "customer": 10 + n, "note": f"{number}"} for n in range(20)]))
        with bed.runner(state=str(number)) as runner:
            runner.begin()
            bed.keep_up(runner)
        assert bed.shown() == bed.expected()


def test_an_older_state_does_not_catch_up_through_changes_that_were_compacted(bed: Bed, tmp_path: Path) -> None:
    """Of order 5 the log has only what became of it after the view's mark: up to the mark, the older state would not learn of it."""
    with bed.runner() as runner:
        runner.begin()
    shutil.copytree(tmp_path / "state", tmp_path / "older")
    with bed.runner() as runner:
        runner.begin()
        bed.commit((ORDERS, Op.INSERT, [{"id": 5, "customer": 1, "note": "c"}]))
        bed.keep_up(runner)
    assert 5 in bed.shown()
    bed.commit((ORDERS, Op.UPDATE, [{"id": 5, "customer": 3, "note": "c"}]))
    bed.commit((ORDERS, Op.UPDATE, [{"id": 2, "customer": 1, "note": "d"}]))
    bed.compact()
    with bed.runner(state="older") as runner:
        runner.begin()
        bed.keep_up(runner)
    assert bed.shown() == bed.expected()


def test_no_step_ends_before_changes_that_took_others_place(bed: Bed) -> None:
    with bed.runner(limits=StepLimits(rows=1)) as runner:
        runner.begin()
        for note in "cde":
            bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 1, "note": note}]))
            bed.commit((CUSTOMERS, Op.UPDATE, [{"id": 1, "name": note}]))
        bed.compact()
        runner.step()
        assert reached(bed).cut >= max(topic.clean_from - 1 for topic in bed.reader.topics())
        bed.keep_up(runner)
        assert bed.shown() == bed.expected()


@pytest.mark.parametrize("taken", [1, 2])
def test_large_outputs_come_in_several_groups_and_go_on_in_the_middle(
    bed: Bed, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.derive.pieces.MAX_ROWS", 2)
    bed.commit((ORDERS, Op.INSERT, [{"id": 10 + n, "customer": 1, "note": "x"} for n in range(7)]))
    with bed.runner() as runner, armed(f"derive.group_taken=error:{taken}"), pytest.raises(Fault):
        runner.begin()
    assert reached(bed).done == taken
    with bed.runner() as runner:
        runner.begin()
        assert bed.shown() == bed.expected()
        bed.commit((CUSTOMERS, Op.UPDATE, [{"id": 1, "name": "Zoe"}]))
        with armed(f"derive.group_taken=error:{taken}"), pytest.raises(Fault):
            bed.keep_up(runner)
    with bed.runner() as runner:
        runner.begin()
        bed.keep_up(runner)
    assert bed.shown() == bed.expected()
    bed.refuse_doubles()


def test_a_view_may_read_only_some_columns(bed: Bed) -> None:
    view = WholeView(
        "ids", {"public.orders": ("id",)}, {"public.orders": ("id",)}, ("id",), VIEW.schema.empty_table().select(["id"]).schema,
        lambda rows: [{"id": row["id"]} for row in rows["public.orders"]],
    )  # fmt: skip
    with bed.runner(view) as runner:
        runner.begin()
        before = bed.history()
        bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 2, "note": "other"}]))
        bed.keep_up(runner)
        assert bed.history() == before
        assert bed.shown() == bed.expected(view)
