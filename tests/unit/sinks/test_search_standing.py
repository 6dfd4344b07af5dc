"""What an index says of itself, and when that is believed: every case, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc.errors import Stopped, StopState
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.lineage import Mark
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from sinks.contract import Shape
from sinks.search.standing import IndexCopy, Standing, copy_of, document, holding, whole_of
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.logs import LooseLog

LINEAGE = MemoryLog().lineage


def cut(position: int) -> Cut:
    return Cut(Position(position), Lsn(position * 10), position)


def standing(position: int, **more: Any) -> Standing:
    said = replace(Standing.first("search", TopicSchema.of(ORDERS), LINEAGE), born="7").ended(LINEAGE, cut(position))
    return replace(said, since=cut(max(position - 5, 0)), **more)


def copied(said: Standing, *, shards: int = 1, written_in: int | None = None, term: int = 1) -> IndexCopy:
    found = {"found": True, "_source": document(said, "n", shards, written_in), "_seq_no": 3, "_primary_term": term}
    copy = copy_of(found)
    assert copy is not None
    return copy


def test_a_document_comes_back_as_it_was_written() -> None:
    said = standing(9, floor=Position(4), shape=Shape(TopicSchema.of(ORDERS), Position(3)), writing=True)
    copy = copied(said, shards=2, written_in=5, term=5)
    assert copy.standing == said
    assert (copy.shards, copy.written_in, copy.stand.seq_no, copy.stand.term) == (2, 5, 3, 5)


@pytest.mark.parametrize("said", [None, {}, {"store": "s"}, "text", {"cut": "x"}])
def test_a_document_that_was_tampered_with_is_as_good_as_lost(said: object) -> None:
    assert copy_of({"found": True, "_source": {"%standing": said}, "_seq_no": 1, "_primary_term": 1}) is None
    assert copy_of({"found": False}) is None


def test_an_index_says_nothing_when_a_shard_is_silent_or_it_was_filled_from_another() -> None:
    said = standing(9)
    assert whole_of([copied(said)], "7") is not None
    assert whole_of([], "7") is None
    assert whole_of([copied(said, shards=2), None], "7") is None
    assert whole_of([copied(said, shards=2)], "7") is None, "it had more shards"
    assert whole_of([copied(said)], "8") is None, "another index was made, and this was copied into it"


def test_a_stretch_counts_only_where_one_primary_saw_all_of_it() -> None:
    same, other = (whole_of([copied(standing(9), written_in=1, term=term)], "7") for term in (1, 2))
    assert same is not None
    assert same.standing.mark.cut == cut(9)
    assert other is not None
    assert other.standing.mark.cut == cut(4), "what was whole before the stretch"


def test_a_shape_that_stands_for_rows_which_may_be_gone_takes_the_index_with_it() -> None:
    said = standing(9, shape=Shape(TopicSchema.of(ORDERS), Position(8)), shape_since=Position(2))
    assert whole_of([copied(said, written_in=1, term=2)], "7") is None
    assert whole_of([copied(said, written_in=1, term=1)], "7") is not None


def test_shards_together_hold_what_the_least_of_them_holds() -> None:
    one = standing(9, shape=Shape(TopicSchema.of(ORDERS), Position(8)), floor=Position(2))
    two = standing(6, shape=Shape(TopicSchema.of(PAIRS), Position(3)), floor=Position(5))
    whole = whole_of([copied(one, shards=2), copied(two, shards=2)], "7")
    assert whole is not None
    assert whole.standing.mark.cut == cut(6)
    assert whole.standing.shape == Shape(TopicSchema.of(PAIRS), Position(3))
    assert (whole.standing.floor, whole.standing.reach) == (5, 9)
    assert {mark.cut.position for mark in whole.claims} == {6, 9}


def log() -> LooseLog:
    made = LooseLog()
    made.put(batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.INSERT, 2, order(2))]))
    made.put(batch(PAIRS, [(Op.INSERT, 3, {"a": "x", "b": "y", "v": None})]))
    made.put(batch(ORDERS, [(Op.INSERT, 9, order(3))]))
    return made


@pytest.mark.parametrize(
    ("ledger", "orders", "pairs", "applied", "held"),
    [
        (9, 9, 3, 9, (9, 9)),  # pairs has changed at 3 for the last time
        (9, 9, 2, 2, (9, 2)),
        (9, 2, 3, 2, (2, 9)),
        (9, None, 3, 0, (0, 9)),
        (9, 9, None, 0, (9, 0)),
        (3, 9, 3, 3, (9, 3)),  # the ledger is an older copy
        (None, 9, 3, 9, (9, 9)),  # the ledger is lost: the indices know
        (None, 2, 3, 3, (3, 3)),  # up to 3 all is there
        (None, None, None, 0, (0, 0)),
    ],
)
def test_a_store_holds_what_its_ledger_claims_as_far_as_its_indices_have_it(
    ledger: int | None, orders: int | None, pairs: int | None, applied: int, held: tuple[int, int]
) -> None:
    made = log()
    said = {}
    for topic, position in (("public.orders", orders), ("public.pairs", pairs)):
        if position is not None:
            whole = whole_of([copied(replace(standing(position), mark=made.lineage.mark(cut(position))))], "7")
            assert whole is not None
            said[topic] = whole
    claimed = None if ledger is None else made.lineage.mark(cut(ledger))
    found = holding(made.reader(), made.lineage, "search", claimed, made.reader().topics(), said)
    assert found.applied.position == applied
    assert (found.held["public.orders"], found.held["public.pairs"]) == held


def test_rows_beyond_what_the_log_had_are_not_believed_though_the_cut_is() -> None:
    made = log()
    former = made.lineage
    made.begin_history()  # at 9
    for reach, believed in ((9, True), (10, False)):
        whole = whole_of([copied(replace(standing(4), mark=former.mark(cut(4)), reach=Position(reach)))], "7")
        assert whole is not None
        if believed:
            assert holding(
                made.reader(),
                made.lineage,
                "search",
                None,
                [one for one in made.reader().topics() if one.name == "public.pairs"],
                {"public.pairs": whole},
            ).applied == cut(4)
            continue
        with pytest.raises(Stopped) as stopped:
            holding(
                made.reader(),
                made.lineage,
                "search",
                None,
                [one for one in made.reader().topics() if one.name == "public.pairs"],
                {"public.pairs": whole},
            )
        assert stopped.value.state is StopState.DIVERGED


def test_a_mark_of_another_log_stops() -> None:
    made = log()
    foreign = Mark("f" * 16, "f" * 32, ZERO_CUT)
    with pytest.raises(Stopped) as stopped:
        holding(made.reader(), made.lineage, "search", foreign, [], {})
    assert stopped.value.state is StopState.OTHER_LOG
