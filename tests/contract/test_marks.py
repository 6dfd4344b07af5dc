"""What every store does when it is lost, restored, taken over or another log's, in whole or in part, at any moment between two calls.

The rules are those of ``sinks/contract.py``. Whatever happened, a store never says that it holds what it does not, and is whole again once it
was brought what it says it lacks.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing, suppress
from pathlib import Path

import pytest

from cdc.errors import Stopped, StopState, StoreError
from cdc.follow.apply import Prepared, apply_range
from cdc.follow.rules import Rules
from cdc.follow.survey import survey
from cdc.log.home import open_reader
from cdc.model.batch import Op, last_position, topic_schema
from cdc.model.pgtypes import TEXT
from cdc.model.position import START, ZERO_CUT, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.contract import EpochPassed, Outcome, Sink
from tests.contract.labs import Lab
from tests.contract.rows import ORDERS, PAIRS, Row, batch, order, schema, upserts
from tests.contract.test_sinks import held
from tests.logs import LooseLog, cut

TABLES = (ORDERS, PAIRS)
UNITS = ("ledger", "orders", "all")


@pytest.fixture(autouse=True)
def _can_be_lost(lab: Lab) -> None:
    if not lab.readable:
        pytest.skip("what was printed is nobody's to lose")


def pair(key: int, value: str = "v") -> Row:
    return {"a": str(key), "b": "b", "v": value}


FIRST = [
    upserts(ORDERS, 1, [order(1), order(2), order(3)]),
    upserts(PAIRS, 4, [pair(1), pair(2)]),
]
SECOND = [
    batch(ORDERS, [(Op.UPDATE, 6, order(1, "paid")), (Op.DELETE, 7, order(2))]),
    batch(PAIRS, [(Op.UPDATE, 8, pair(1, "w")), (Op.INSERT, 9, pair(3))]),
]
THIRD = [
    batch(ORDERS, [(Op.DELETE, 10, order(3)), (Op.INSERT, 11, order(4))]),
    batch(PAIRS, [(Op.DELETE, 12, pair(2))]),
    batch(ORDERS, [(Op.UPDATE, 13, order(4, "paid"))]),
]
END = cut(13)


def step(lab: Lab, sink: Sink, *batches: object) -> None:
    """One range: all of it into the log, then into the store, then the commit."""
    for changes in batches:
        lab.log.put(changes)
    for changes in batches:
        apply(sink, changes)
    sink.commit(lab.log.head)


def apply(sink: Sink, changes: object) -> Outcome:
    sink.prepare(topic_schema(changes.schema))  # type: ignore[attr-defined]
    return sink.apply(changes)  # type: ignore[arg-type]


def bring(lab: Lab, sink: Sink) -> None:
    """As a follower does: everything that the opened store lacks by its own word."""
    log, start = lab.log.reader(), sink.applied()
    for topic in log.topics():
        begin = max(start.position, sink.held(topic.name))
        for changes in log.read(topic.name, begin, log.head().position, log.lineage().history):
            apply(sink, changes)
    sink.commit(log.head())


def heal(lab: Lab) -> Sink:
    """A follower that begins again until the store takes what it lacks."""
    for _ in range(5):
        sink = lab.opened()
        with suppress(StoreError):
            bring(lab, sink)
            return sink
    raise AssertionError("the store takes nothing")


def folded(lab: Lab, table: Table) -> list[Row]:
    """What the log says the table holds."""
    rows: dict[tuple[str | None, ...], Row] = {}
    for changes in lab.log.reader().read(table.qualified, 0, lab.log.head.position):  # type: ignore[arg-type]
        names = [column.name for column in table.key]
        texts = [{name: None if value is None else str(value) for name, value in row.items()} for row in changes.to_pylist()]
        for row in texts:
            key = tuple(row[name] for name in names)
            rows.pop(key, None)
            if row["_cdc_op"] != str(int(Op.DELETE)):
                rows[key] = row
    return [{name: rows[key][name] for name in table.names} for key in sorted(rows, key=str)]


def whole(lab: Lab, sink: Sink) -> None:
    for table in TABLES:
        found = [{**row, **({"created_at": None} if "created_at" in row else {})} for row in held(sink, table)]
        wanted = [{**row, **({"created_at": None} if "created_at" in row else {})} for row in folded(lab, table)]
        assert found == wanted, table.qualified
    assert lab.applied() == sink.applied() == lab.log.head


def strike(lab: Lab, older: object, unit: str, how: str) -> None:
    names = (
        {lab.units.of(None)}
        if unit == "ledger"
        else {lab.units.of(ORDERS.qualified)}
        if unit == "orders"
        else set(lab.units.there())
    )
    if unit != "all" and names == set(lab.units.there()):
        pytest.skip("is one unit")
    if how == "lost":
        lab.units.lose(*names)
    else:
        lab.units.restore(older, *names)


def still_held(unit: str, how: str) -> int:
    """Of the nine changes; without its ledger a store may go by what the tables themselves say."""
    return 9 if unit == "ledger" else 5 if how == "older" else 0


def says(lab: Lab) -> int:
    """How far the store says it is, to somebody who only looks; nothing when it says that something is wrong."""
    try:
        return lab.applied().position
    except StoreError:
        return 0


@pytest.mark.parametrize("how", ["lost", "older"])
@pytest.mark.parametrize("unit", UNITS)
def test_between_two_processes(lab: Lab, unit: str, how: str) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    older = lab.units.copy()
    step(lab, sink, *SECOND)
    sink.close()
    strike(lab, older, unit, how)
    assert says(lab) <= still_held(unit, how)
    sink = heal(lab)
    whole(lab, sink)
    step(lab, sink, *THIRD)
    whole(lab, sink)


@pytest.mark.parametrize("how", ["lost", "older"])
@pytest.mark.parametrize("unit", UNITS)
def test_after_a_commit(lab: Lab, unit: str, how: str) -> None:
    """The sink stays open: asked, it does not say any more that it holds everything, and its next commit records nothing."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    older = lab.units.copy()
    step(lab, sink, *SECOND)
    strike(lab, older, unit, how)
    with suppress(StoreError):
        assert sink.applied().position <= still_held(unit, how)
    if unit == "ledger":
        with suppress(StoreError):
            step(lab, sink, *THIRD)
    else:
        with pytest.raises(StoreError) as refused:
            step(lab, sink, *THIRD)
        assert refused.value.retryable
        assert says(lab) <= still_held(unit, how)
    whole(lab, heal(lab))


@pytest.mark.parametrize("how", ["lost", "older"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("moment", ["before the first", "between two", "before the commit"])
def test_in_the_middle_of_a_range(lab: Lab, moment: str, unit: str, how: str) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    step(lab, sink, *SECOND)
    older = lab.units.copy()  # of the very moment at which the range begins: its marks are the present ones
    for changes in THIRD:
        lab.log.put(changes)
    strikes_at = {"before the first": 0, "between two": 1, "before the commit": 3}[moment]
    taken, committed = 0, False
    with suppress(StoreError):
        for number, changes in enumerate(THIRD):
            if number == strikes_at:
                strike(lab, older, unit, how)
            written = apply(sink, changes).written
            taken += written if number < strikes_at else 0
        if strikes_at == len(THIRD):
            strike(lab, older, unit, how)
        sink.commit(END)
        committed = True
    if committed:
        # A unit that was set back to where it stood anyway has lost nothing but what was written since.
        assert how == "older", "it has committed onto what was lost"
        assert not taken or lab.staged or unit == "ledger", "it has committed what was taken back"
    whole(lab, heal(lab))


def test_what_was_not_lost_is_not_brought_again(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    step(lab, sink, *SECOND)
    names = {lab.units.of(topic) for topic in (None, ORDERS.qualified, PAIRS.qualified)}
    if len(names) < 3 or lab.spread:
        pytest.skip("has no unit for each table")
    lab.units.lose(lab.units.of(ORDERS.qualified))
    sink = lab.opened()
    assert sink.applied() == ZERO_CUT
    assert (sink.held(ORDERS.qualified), sink.held(PAIRS.qualified)) == (0, 9)
    for changes in (FIRST[1], SECOND[1]):
        outcome = apply(sink, changes)
        assert lab.staged or outcome.written == 0
    assert sink.held(PAIRS.qualified) == 9
    bring(lab, sink)
    whole(lab, sink)
    assert sink.held(ORDERS.qualified) >= sink.applied().position == 9


def test_held_is_at_least_what_is_applied(lab: Lab) -> None:
    sink = lab.opened()
    assert (sink.held(ORDERS.qualified), sink.held("public.nobody")) == (0, 0)
    step(lab, sink, *FIRST)
    assert sink.held(ORDERS.qualified) >= 5
    assert sink.held("public.nobody") == 5
    again = lab.opened()
    assert again.held(ORDERS.qualified) >= 5


# -- changes of definition ----------------------------------------------------------------------------------------------------------

WIDER = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", TEXT)))
CHANGED = [
    batch(ORDERS, [(Op.INSERT, 10, order(4))]),
    schema(WIDER, 11),
    upserts(WIDER, 12, [{**order(5), "more": "x"}]),
]


def widened_whole(lab: Lab, sink: Sink) -> None:
    rows = [order(1, "paid"), order(3), order(4), {**order(5), "more": "x"}]
    assert held(sink, WIDER) == [{"more": None, **row} for row in rows]
    assert lab.applied() == sink.applied() == lab.log.head


@pytest.mark.parametrize("unit", ["orders", "all"])
@pytest.mark.parametrize("strikes_at", [1, 2])
def test_an_older_copy_takes_no_shape_for_rows_that_it_lacks(lab: Lab, unit: str, strikes_at: int) -> None:
    """A follower skips what came before a table's shape."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    older, holds = lab.units.copy(), lab.log.head.position
    step(lab, sink, *SECOND)
    for changes in CHANGED:
        lab.log.put(changes)
    with suppress(StoreError):
        for number, changes in enumerate(CHANGED):
            if number == strikes_at:
                strike(lab, older, unit, "older")
            apply(sink, changes)
        sink.commit(lab.log.head)
    shape = lab.opened().shape(ORDERS.qualified)
    # In a database a table that was put back by itself is another table, and so lost.
    assert shape is not None or (lab.kind, unit) == ("sql", "orders")
    assert shape is None or shape.position <= holds
    widened_whole(lab, heal(lab))


@pytest.mark.parametrize("how", ["lost", "older"])
@pytest.mark.parametrize("unit", ["orders", "all"])
def test_a_shape_that_was_seen_counts_only_for_the_copy_that_it_was_seen_in(lab: Lab, unit: str, how: str) -> None:
    """A writer before this one has changed the definition and not committed; then the table goes, or is set back to the same commit."""
    sink = lab.opened()
    if how == "older":
        step(lab, sink, *FIRST)
        step(lab, sink, *SECOND)
    older = lab.units.copy()
    changes = [*(() if how == "older" else (FIRST[0], SECOND[0])), *CHANGED]
    for one in changes:
        lab.log.put(one)
    for one in changes[:-1]:
        apply(sink, one)
    sink.close()
    sink = lab.opened()
    shape = sink.shape(ORDERS.qualified)
    assert shape is not None or lab.staged
    strike(lab, older, unit, how)
    with suppress(StoreError):
        for one in changes:
            if shape is None or last_position(one) > shape.position:
                apply(sink, one)
        sink.commit(lab.log.head)
    widened_whole(lab, heal(lab))


# -- which log, and which of its histories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["ledger", "orders", "none"])
def test_another_logs_store_is_refused_and_left_alone(lab: Lab, unit: str) -> None:
    """Also where nothing but one of its tables says so: the other service's ledger was lost, or its table."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    theirs = lab.log
    before = [held(sink, table) for table in TABLES]
    if unit != "none":
        strike(lab, None, unit, "lost")
    lab.log = LooseLog()
    lab.log.put(upserts(ORDERS, 1, [order(9)]))
    for attempt in (lab.applied, lambda: lab.opened().applied()):
        with pytest.raises(Stopped) as stopped:
            attempt()
        assert stopped.value.state is StopState.OTHER_LOG
        assert "--rebuild" in (stopped.value.hint or "")
    lab.log = theirs
    if unit == "none":
        assert [held(lab.opened(), table) for table in TABLES] == before
    whole(lab, heal(lab))


def test_another_logs_rows_are_named_where_there_is_no_log_yet(lab: Lab, tmp_path: Path) -> None:
    """Who only reads: `cdc doctor`, before the first `cdc run`."""
    step(lab, lab.opened(), *FIRST)
    with closing(open_reader(tmp_path / "nothing")) as none, pytest.raises(Stopped) as stopped:
        lab.sink().open(none)
    assert stopped.value.state is StopState.OTHER_LOG
    assert "another log" in str(stopped.value)
    assert "cdc resume OTHER_LOG --rebuild" in (stopped.value.hint or "")


def test_positions_of_a_history_that_the_log_has_left_are_not_believed(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    older = lab.log.copied()
    step(lab, sink, *SECOND)
    sink.close()
    lab.log = older
    lab.log.begin_history()
    for _ in range(2):
        for attempt in (lab.applied, lambda: lab.opened().applied()):
            with pytest.raises(Stopped) as stopped:
                attempt()
            assert stopped.value.state is StopState.DIVERGED
            assert "--rebuild" in (stopped.value.hint or "")
        # The log passes the position that the store holds, with other changes.
        lab.log.put(batch(ORDERS, [(Op.INSERT, 6 + n, order(60 + n)) for n in range(20)]))
    lab.sink().erase()
    whole(lab, heal(lab))


def test_what_both_histories_share_is_believed(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    lab.log.begin_history()
    with suppress(StoreError):  # it may want to be opened again first
        assert sink.applied() == cut(5)
        step(lab, sink, *SECOND)
    for changes in SECOND:
        lab.log.put(changes)
    heal(lab)
    assert lab.opened().applied() == cut(9)
    lab.log.begin_history()
    sink = lab.opened()
    assert sink.applied() == cut(9)
    step(lab, sink, *THIRD)
    whole(lab, sink)


def test_rows_that_no_commit_covers_are_of_a_history_too(lab: Lab) -> None:
    """A follower ends in the middle of a range, and the log comes back from a copy that has never had that range."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    older = lab.log.copied()
    for changes in THIRD:
        lab.log.put(changes)
        apply(sink, changes)
    sink.close()
    lab.log = older
    lab.log.begin_history()
    lab.log.put(batch(ORDERS, [(Op.UPDATE, 6, order(3, "of the new history"))]))
    try:
        sink = heal(lab)
    except Stopped:
        with pytest.raises(Stopped, match=StopState.DIVERGED):
            lab.applied()
        lab.sink().erase()
        sink = heal(lab)
    whole(lab, sink)


# -- DELETEs that are gone from the log ----------------------------------------------------------------------------------------------


def test_a_store_from_before_a_dropped_delete_is_refused(lab: Lab) -> None:
    """Its row 2 was deleted since, and nothing in the log tells of that any more."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    sink.close()
    for changes in SECOND:
        lab.log.put(changes)
    lab.log.put(batch(ORDERS, [(Op.UPDATE, 10, order(3, "later"))]))
    lab.log.forget(ORDERS.qualified, 9)
    for _ in range(2):
        for attempt in (lab.applied, lambda: lab.opened().applied()):
            with pytest.raises(Stopped) as stopped:
                attempt()
            assert stopped.value.state is StopState.POSITION_GONE
            assert "--rebuild" in (stopped.value.hint or "")
    lab.sink().erase()
    whole(lab, heal(lab))


def test_a_store_that_holds_the_dropped_deletes_goes_on(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    step(lab, sink, *SECOND)
    lab.log.forget(ORDERS.qualified, 9)
    with suppress(StoreError):  # it wants to be opened again first
        step(lab, sink, *THIRD)
    for changes in THIRD:
        lab.log.put(changes)
    whole(lab, heal(lab))


def test_a_store_that_is_filled_after_they_went_passes_the_floor_in_many_steps(lab: Lab) -> None:
    for changes in (*FIRST, *SECOND, *THIRD):
        lab.log.put(changes)
    lab.log.forget(ORDERS.qualified, 12)
    end = lab.log.head
    sink = lab.opened()
    for position in (1, 3, 5, 8):
        part = lab.log.copied()
        for topic in part.reader().topics():
            start = max(sink.applied().position, sink.held(topic.name))
            for changes in part.reader().read(topic.name, start, position, part.lineage.history):  # type: ignore[arg-type]
                apply(sink, changes)
        sink.commit(cut(position))
        sink.close()
        sink = lab.opened()
        assert sink.applied() == cut(position)
    lab.log.forget(PAIRS.qualified, 13)
    with pytest.raises(Stopped, match=StopState.POSITION_GONE):
        lab.opened()
    lab.sink().erase()
    lab.log.reach(end)
    whole(lab, heal(lab))


def test_a_store_in_the_middle_of_its_first_range_is_refused_when_deletes_go_then(lab: Lab) -> None:
    """It may have rows, and says nothing yet of how far."""
    for changes in FIRST:
        lab.log.put(changes)
    sink = lab.opened()
    for changes in FIRST:
        apply(sink, changes)
    sink.close()
    for changes in (*SECOND, *THIRD):
        lab.log.put(changes)
    lab.log.forget(ORDERS.qualified, 12)
    try:
        sink = heal(lab)
    except Stopped as stopped:
        assert stopped.state is StopState.POSITION_GONE  # noqa: PT017
        lab.sink().erase()
        sink = heal(lab)
    whole(lab, sink)


def test_rows_left_without_a_ledger_do_not_stay_for_want_of_a_delete(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    sink.close()
    for changes in (*SECOND, *THIRD):
        lab.log.put(changes)
    lab.log.forget(ORDERS.qualified, 12)
    strike(lab, None, "ledger", "lost")
    try:
        sink = heal(lab)
    except Stopped as stopped:
        assert stopped.state is StopState.POSITION_GONE  # noqa: PT017
        lab.sink().erase()
        sink = heal(lab)
    whole(lab, sink)


# -- who writes -------------------------------------------------------------------------------------------------------------------------


def test_an_earlier_epoch_is_refused(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    late = lab.sink()
    with pytest.raises(EpochPassed) as passed:
        late.open(lab.log.reader(), lab.epoch - 1)
    assert passed.value.retryable
    assert passed.value.seen >= lab.epoch
    lab.epoch = passed.value.seen
    sink = lab.opened()
    assert sink.applied() == cut(5)
    step(lab, sink, *SECOND)
    whole(lab, sink)


def test_the_same_writer_may_open_it_again(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    again = lab.sink()
    assert again.open(lab.log.reader(), lab.epoch) == cut(5)
    step(lab, again, *SECOND)
    whole(lab, again)


def test_a_writer_that_was_replaced_commits_nothing(lab: Lab) -> None:
    zombie = lab.opened()
    step(lab, zombie, *FIRST)
    for changes in SECOND:
        lab.log.put(changes)
    with suppress(StoreError):
        apply(zombie, SECOND[0])
    sink = lab.opened()
    bring(lab, sink)
    step(lab, sink, *THIRD)
    with suppress(StoreError):
        apply(zombie, SECOND[1])
    lab.log.put(upserts(ORDERS, 14, [order(5)]))
    with pytest.raises(StoreError) as refused:
        zombie.commit(cut(14))
    assert refused.value.retryable
    assert sink.applied() == END
    whole(lab, heal(lab))


def test_a_writer_that_was_replaced_commits_no_table_without_rows(lab: Lab) -> None:
    zombie, sink = lab.opened(), lab.opened()
    lab.log.put(schema(ORDERS, 1))
    options = options_model(lab.kind).model_validate({"kind": lab.kind, **lab._options})
    reader, rules = lab.log.reader(), Rules(lab.name, options)
    lab.log.reach(cut(1))
    seen = survey(reader, {ORDERS.qualified: START}, Position(1))
    with suppress(StoreError):
        apply_range(zombie, reader, seen, Prepared(), rules)
    with pytest.raises(StoreError):
        zombie.commit(cut(1))
    assert lab.applied() == ZERO_CUT
    apply_range(sink, reader, seen, Prepared(), rules)
    sink.commit(cut(1))
    shape = sink.shape(ORDERS.qualified)
    assert shape is not None
    assert shape.schema == TopicSchema.of(ORDERS)
    assert held(sink, ORDERS) == []


# -- reading, erasing, choosing -----------------------------------------------------------------------------------------------------------


def test_whoever_only_reads_makes_nothing(lab: Lab) -> None:
    lab.log.put(FIRST[0])
    reading = lab.sink()
    assert reading.open(lab.log.reader()) == ZERO_CUT
    assert reading.applied() == ZERO_CUT
    assert (reading.shape(ORDERS.qualified), reading.held(ORDERS.qualified)) == (None, 0)
    reading.make_visible()
    assert held(reading, ORDERS) == []
    with pytest.raises(StoreError):
        reading.prepare(TopicSchema.of(ORDERS))
    assert lab.units.there() == []


def test_a_reader_sees_what_a_writer_has_done_since(lab: Lab) -> None:
    reading = lab.sink()
    assert reading.open(lab.log.reader()) == ZERO_CUT
    sink = lab.opened()
    step(lab, sink, *FIRST)
    assert reading.applied() == cut(5)
    step(lab, sink, *SECOND)
    assert reading.applied() == cut(9)
    step(lab, sink, *THIRD)  # nobody who reads fences a writer


def test_erasing_takes_all_of_it_and_may_be_done_again(lab: Lab) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    step(lab, sink, *SECOND)
    lab.sink().erase()
    assert lab.units.there() == []
    lab.sink().erase()
    assert says(lab) == 0
    sink = lab.opened()
    assert (sink.applied(), sink.held(ORDERS.qualified), sink.shape(ORDERS.qualified)) == (ZERO_CUT, 0, None)
    assert [held(sink, table) for table in TABLES] == [[], []]
    bring(lab, sink)
    whole(lab, sink)
    sink.erase()
    assert lab.units.there() == []
    whole(lab, heal(lab))


def test_what_another_log_has_put_there_is_erased_too(lab: Lab) -> None:
    step(lab, lab.opened(), *FIRST)
    lab.log = LooseLog()
    lab.log.put(upserts(ORDERS, 1, [order(9)]))
    lab.sink().erase()
    whole_orders = heal(lab)
    assert held(whole_orders, ORDERS) == [order(9)]
    assert held(whole_orders, PAIRS) == []


def test_a_table_that_is_selected_later_gets_its_past(lab: Lab) -> None:
    sink = lab.sink(tables=["public.pairs"])
    lab.epoch += 1
    sink.open(lab.log.reader(), lab.epoch)
    for changes in (*FIRST, *SECOND):
        lab.log.put(changes)
    for changes in (FIRST[1], SECOND[1]):
        apply(sink, changes)
    sink.commit(cut(9))
    assert sink.applied() == cut(9)
    assert lab.sink(tables=["public.pairs"]).open(lab.log.reader()) == cut(9)
    sink = lab.opened()
    assert sink.applied() == ZERO_CUT
    assert (sink.held(ORDERS.qualified), sink.held(PAIRS.qualified)) == (0, 9)
    bring(lab, sink)
    whole(lab, sink)


@pytest.mark.parametrize("widened", [False, True])
def test_a_table_that_is_selected_again_leaves_nothing_of_what_was_there(lab: Lab, widened: bool) -> None:
    """It was emptied in the middle of its past, has lost rows while nobody followed it, and may have got another definition."""
    step(
        lab,
        lab.opened(),
        *FIRST,
        batch(ORDERS, [(Op.TRUNCATE, 6, {})]),
        upserts(ORDERS, 7, [order(5)]),
        upserts(PAIRS, 8, [pair(3)]),
    )
    sink = lab.opened(tables=["public.pairs"])
    now = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", TEXT))) if widened else ORDERS
    more = {"more": "x"} if widened else {}
    lab.log.put(batch(ORDERS, [(Op.DELETE, 9, order(5))]))
    if widened:
        lab.log.put(schema(now, 10))
    lab.log.put(upserts(now, 11, [{**order(6), **more}]))
    last = upserts(PAIRS, 12, [pair(4)])
    lab.log.put(last)
    apply(sink, last)
    sink.commit(cut(12))
    sink = lab.opened()
    bring(lab, sink)
    assert held(sink, now) == [{**order(6), **more}]
    assert held(sink, PAIRS) == [pair(1), pair(2), pair(3), pair(4)]


def test_changes_that_the_store_passes_over_count_as_held(lab: Lab) -> None:
    """A store's policy may ignore a change of definition; it is not brought again at each opening, nor what came before it."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    lab.log.put(schema(dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", TEXT))), 6))
    sink.commit(cut(6))
    assert sink.applied() == lab.applied() == lab.opened().applied() == cut(6)


def test_a_definition_that_was_changed_before_the_process_ended_counts_as_held(lab: Lab) -> None:
    """What a shape covers is not brought again, so nothing more is written up to there."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    change = schema(dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", TEXT))), 6)
    lab.log.put(change)
    apply(sink, change)
    sink = lab.opened()
    shape = sink.shape(ORDERS.qualified)
    assert shape is not None
    if shape.position < 6:
        apply(sink, change)
    sink.commit(cut(6))
    assert sink.applied() == lab.applied() == lab.opened().applied() == cut(6)


def test_a_table_whose_topic_only_reads_like_one_of_the_stores_is_none_of_its_tables(lab: Lab) -> None:
    """Of "public.other"."pairs" the topic's name could be read as a table of the schema public, too."""
    stranger = dataclasses.replace(PAIRS, oid=16499, schema="public.other")
    only = {"tables": ["public.*"]}
    sink = lab.sink(**only)
    lab.open(sink)
    lab.log.put(upserts(stranger, 1, [pair(1), pair(2)]))
    step(lab, sink, upserts(ORDERS, 3, [order(1)]))
    assert sink.applied() == lab.log.head == lab.sink(**only).open(lab.log.reader())
    both = lab.sink(tables=["public.*", "public.other.*"])
    lab.open(both)
    assert both.held(stranger.qualified) == 0, "the past of a table that is selected later is brought"
