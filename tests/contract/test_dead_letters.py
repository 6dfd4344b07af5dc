"""What a store does with a row that it cannot hold: every kind of store that may be unable to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.follow.letters import Deciding
from cdc.model.batch import Op, last_position
from cdc.model.pgtypes import INT4
from cdc.model.position import Position
from cdc.model.table import Column
from cdc.model.topic import TopicSchema
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from sinks import deadletters
from sinks.contract import Deferring, Sink
from sinks.deadletters import Letter, LetterBox, LetterState, box_of
from tests.contract.labs import Lab, Narrow
from tests.contract.rows import ORDERS, Row, batch, order, schema, upserts
from tests.contract.test_sinks import commit, feed, held, meant
from tests.logs import cut

RANKED = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("rank", INT4)))
CANARY = "canary" * 7000


def good(key: int, status: str = "new") -> dict[str, str | None]:
    return order(key, status, rank="1")


def bad(key: int) -> dict[str, str | None]:
    """Beyond what any of the narrow stores can hold."""
    return order(key, note=CANARY, rank="1000")


@pytest.fixture
def narrow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Narrow:
    if lab.narrow is None:
        pytest.skip("holds every row")
    return lab.narrow(monkeypatch)


@pytest.fixture
def sink(lab: Lab, narrow: Narrow) -> Sink:
    return opened(lab, narrow)


def opened(lab: Lab, narrow: Narrow) -> Sink:
    """One that can hold no bad row."""
    sink = lab.opened(**narrow.options)
    sink.prepare(TopicSchema.of(ORDERS))
    narrow.begin()
    change = schema(RANKED, 1)
    lab.log.put(change)
    sink.apply(change)
    commit(lab, sink, cut(1))
    return sink


def box(sink: Sink) -> LetterBox:
    found = box_of(sink)
    assert found is not None
    return found


def letters(sink: Sink) -> list[tuple[int, LetterState]]:
    """As the writer knows them."""
    return sorted((int(one.position), one.state) for one in box(sink).letters())


def take(lab: Lab, sink: Sink, changes: pa.RecordBatch, *, logged: bool = False) -> list[tuple[str, int]]:
    """Has the store take them, to where it says which of them it cannot hold. ``logged``: they stand in the log already."""
    outcome = sink.apply(changes) if logged else feed(lab, sink, changes)
    if not lab.staged:
        return [(one.table, one.position) for one in outcome.dead]
    sink.commit(cut(last_position(changes)))
    assert isinstance(sink, Deferring)
    return [(one.table, one.position) for one in sink.refused()]


def holds(sink: Sink, rows: Sequence[Row]) -> bool:
    return held(sink, RANKED) == sorted(meant(sink, RANKED, list(rows)), key=lambda row: str(row["id"]))


def decide(lab: Lab, sink: Sink, verb: Verb, position: int, **values: str | None) -> LetterAnswer:
    request = LetterRequest(verb, [f"public.orders@{position}"], "ops", values)
    (answer,) = Deciding(sink, box(sink), lab.log.reader(), sink.applied()).answers(request)
    return answer


def aside(lab: Lab, sink: Sink) -> None:
    """Key 2 is set aside at position 4, where it was held before."""
    assert take(lab, sink, upserts(RANKED, 2, [good(1), good(2)])) == []
    assert take(lab, sink, batch(RANKED, [(Op.UPDATE, 4, bad(2)), (Op.INSERT, 5, good(3))])) == [("public.orders", 4)]
    commit(lab, sink, cut(5))


def test_the_store_holds_nothing_in_its_place_and_others_flow(lab: Lab, narrow: Narrow, sink: Sink) -> None:
    aside(lab, sink)
    assert holds(sink, [good(1), good(3)]), "not even the row as it was before"
    assert letters(sink) == [(4, LetterState.ASIDE)]
    (letter,) = box(lab.sink(**narrow.options)).letters()
    assert letter == box(sink).letters()[0], "anybody can read them, without opening the store"
    assert "canary" not in letter.reason
    assert "1000" not in letter.reason
    assert letter.at_s > 0


@pytest.mark.parametrize("ends", ["update", "delete", "truncate", "same batch", "another"])
def test_a_later_change_of_the_row_ends_its_letter(lab: Lab, sink: Sink, ends: str) -> None:
    aside(lab, sink)
    rows, left = [good(1), good(3)], list[tuple[int, LetterState]]()
    if ends == "update":
        feed(lab, sink, batch(RANKED, [(Op.UPDATE, 6, good(2, "paid"))]))
        rows.append(good(2, "paid"))
    elif ends == "delete":
        feed(lab, sink, batch(RANKED, [(Op.DELETE, 6, good(2))]))
    elif ends == "truncate":
        feed(lab, sink, batch(RANKED, [(Op.TRUNCATE, 6, {})]))
        rows = []
    elif ends == "same batch":
        feed(lab, sink, batch(RANKED, [(Op.UPDATE, 6, bad(2)), (Op.UPDATE, 7, good(2, "paid"))]))
        rows.append(good(2, "paid"))
    else:
        feed(lab, sink, batch(RANKED, [(Op.UPDATE, 6, bad(2))]))
        left = [(6, LetterState.ASIDE)]
    commit(lab, sink, cut(7))
    assert holds(sink, rows)
    assert letters(sink) == left


def test_they_survive_a_restart_and_a_batch_that_comes_again(lab: Lab, narrow: Narrow, sink: Sink) -> None:
    changes = [upserts(RANKED, 2, [good(1), bad(2)]), batch(RANKED, [(Op.UPDATE, 4, good(1, "paid")), (Op.UPDATE, 5, bad(2))])]
    for one in changes:
        feed(lab, sink, one)
    again = opened(lab, narrow)  # nothing was committed
    assert letters(again) == ([] if lab.staged else [(5, LetterState.ASIDE)])
    for one in changes:
        feed(lab, again, one)
    commit(lab, again, cut(5))
    assert letters(again) == [(5, LetterState.ASIDE)]
    assert holds(again, [good(1, "paid")])


def test_replay_tries_the_row_again(lab: Lab, narrow: Narrow, sink: Sink) -> None:
    aside(lab, sink)
    answer = decide(lab, sink, Verb.REPLAY, 4)
    assert not answer.done
    assert "canary" not in answer.text
    assert letters(sink) == [(4, LetterState.ASIDE)]
    narrow.end()
    for _ in range(2):  # as when its follower is killed before it can answer
        assert decide(lab, sink, Verb.REPLAY, 4).done
    assert letters(sink) == []
    assert len(held(sink, RANKED)) == 3
    feed(lab, sink, batch(RANKED, [(Op.UPDATE, 6, good(2, "paid"))]))
    commit(lab, sink, cut(6))
    assert holds(sink, [good(1), good(2, "paid"), good(3)]), "a later change wins"


def test_a_replay_also_comes_after_other_changes_and_a_restart(lab: Lab, narrow: Narrow, sink: Sink) -> None:
    aside(lab, sink)
    for position in range(6, 9):
        feed(lab, sink, upserts(RANKED, position, [good(position)]))
        commit(lab, sink, cut(position))
    again = opened(lab, narrow)
    narrow.end()
    assert decide(lab, again, Verb.REPLAY, 4).done
    assert len(held(again, RANKED)) == 6
    assert again.applied() == cut(8)


def test_an_edit_holds_until_the_row_changes(lab: Lab, narrow: Narrow, sink: Sink) -> None:
    aside(lab, sink)
    assert not decide(lab, sink, Verb.EDIT, 4, rank="2000").done
    assert letters(sink) == [(4, LetterState.ASIDE)]
    for _ in range(2):
        assert decide(lab, sink, Verb.EDIT, 4, rank="7", note="short").done
    mended = order(2, note="short", rank="7")
    assert holds(sink, [good(1), mended, good(3)])
    assert letters(sink) == [(4, LetterState.EDITED)]
    (letter,) = box(opened(lab, narrow)).letters()
    assert (letter.by, letter.values["rank"]) == ("ops", "7")
    assert letter.decided_s > 0
    sink = opened(lab, narrow)
    assert decide(lab, sink, Verb.EDIT, 4, status="paid").done, "it adds to what was corrected before"
    assert holds(sink, [good(1), {**mended, "status": "paid"}, good(3)])
    feed(lab, sink, batch(RANKED, [(Op.UPDATE, 6, good(2, "paid"))]))
    commit(lab, sink, cut(6))
    assert holds(sink, [good(1), good(2, "paid"), good(3)])
    assert letters(sink) == []


def test_an_edit_names_columns_of_the_row_that_are_not_its_key(lab: Lab, sink: Sink) -> None:
    aside(lab, sink)
    for values in ({"id": "9"}, {"nothing": "9"}):
        assert not decide(lab, sink, Verb.EDIT, 4, **values).done
    assert holds(sink, [good(1), good(3)])


def test_what_is_dropped_is_accepted_until_the_row_changes(lab: Lab, narrow: Narrow, sink: Sink) -> None:
    aside(lab, sink)
    assert decide(lab, sink, Verb.EDIT, 4, rank="7", note="short").done
    for _ in range(2):
        assert decide(lab, sink, Verb.DROP, 4).done
    assert holds(sink, [good(1), good(3)]), "the corrected row is gone, too"
    sink = opened(lab, narrow)
    assert letters(sink) == [(4, LetterState.ACCEPTED)]
    assert box(sink).letters()[0].by == "ops"
    narrow.end()
    assert decide(lab, sink, Verb.REPLAY, 4).done, "it can be taken back"
    assert letters(sink) == []


def test_a_change_of_the_table_that_writes_its_rows_again_tries_them_all(lab: Lab, sink: Sink) -> None:
    feed(lab, sink, upserts(RANKED, 2, [good(1), bad(2), bad(3)]))
    commit(lab, sink, cut(4))
    columns = tuple(dataclasses.replace(one, name="remark") if one.name == "status" else one for one in RANKED.columns)
    renamed = dataclasses.replace(RANKED, columns=tuple(dataclasses.replace(one, attnum=n) for n, one in enumerate(columns, 1)))
    change = schema(renamed, 5)
    lab.log.put(change)
    sink.apply(change)
    commit(lab, sink, cut(5))
    if len(held(sink, renamed)) == 1:
        assert letters(sink) == [(3, LetterState.ASIDE), (4, LetterState.ASIDE)], "each by its own change"
    else:
        assert letters(sink) == [], "the place was made again, and has room now"


def test_there_are_never_more_than_a_store_may_have(lab: Lab, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletters, "LETTERS_MAX", 2)
    if lab.kind == "memory":
        pytest.skip("the twin has room")
    take(lab, sink, upserts(RANKED, 2, [bad(1), bad(2), good(3)]))
    for _ in range(2):
        with pytest.raises(StoreError, match="dead letters") as failure:
            take(lab, sink, upserts(RANKED, 5, [bad(4)]))
    assert not failure.value.retryable
    assert "canary" not in failure.value.line()


def test_those_that_are_accepted_are_not_counted(lab: Lab, narrow: Narrow, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a store that has stopped for them goes on once they are, also where nothing of them is committed yet."""
    if lab.kind == "memory":
        pytest.skip("the twin has room")
    monkeypatch.setattr(deadletters, "LETTERS_MAX", 2)
    rows = upserts(RANKED, 2, [bad(1), bad(2), bad(3), good(4), bad(5)])
    take(lab, sink, rows.slice(0, 2))
    lab.log.put(rows.slice(2))
    with pytest.raises(StoreError, match="dead letters"):
        take(lab, sink, rows.slice(2), logged=True)
    sink = opened(lab, narrow)
    assert accepted(lab, sink) == [True] * 2
    for begin in (0, 2):
        sink.apply(rows.slice(begin))
    commit(lab, sink, cut(6))
    assert letters(sink) == [
        (2, LetterState.ACCEPTED), (3, LetterState.ACCEPTED), (4, LetterState.ASIDE), (6, LetterState.ASIDE),
    ]  # fmt: skip
    assert letters(opened(lab, narrow)) == letters(sink)
    assert holds(sink, [good(4)])


def accepted(lab: Lab, sink: Sink) -> list[bool]:
    """Every letter, by one request."""
    request = LetterRequest(Verb.DROP, [one.id for one in box(sink).letters()], "ops")
    return [one.done for one in Deciding(sink, box(sink), lab.log.reader(), sink.applied()).answers(request)]


def test_an_accepted_row_that_gets_another_key_stays_accepted_until_it_changes(lab: Lab, sink: Sink) -> None:
    """The letter goes by the key that the row has now, whether the table's key has changed or its other columns."""
    if lab.kind == "memory":
        pytest.skip("the twin forgets what it could not hold")
    feed(lab, sink, upserts(RANKED, 2, [good(1), bad(2), bad(3), bad(4)]))
    commit(lab, sink, cut(5))
    assert all(decide(lab, sink, Verb.DROP, position).done for position in (3, 4))
    rekeyed = dataclasses.replace(
        RANKED,
        columns=tuple(
            dataclasses.replace(
                one, name={"status": "remark"}.get(one.name, one.name), key=one.name in ("id", "customer_id"), attnum=n
            )
            for n, one in enumerate(RANKED.columns, 1)
        ),
    )
    change = schema(rekeyed, 6)
    lab.log.put(change)
    sink.apply(change)
    commit(lab, sink, cut(6))
    if len(held(sink, rekeyed)) > 1:
        assert letters(sink) == [], "the place was made again, and has room now"
        return
    assert letters(sink) == [(3, LetterState.ACCEPTED), (4, LetterState.ACCEPTED), (5, LetterState.ASIDE)]
    feed(lab, sink, batch(rekeyed, [(Op.DELETE, 7, bad(2)), (Op.UPDATE, 8, {**good(3), "remark": "x"})]))
    commit(lab, sink, cut(8))
    assert letters(sink) == [(5, LetterState.ASIDE)]


def test_a_row_without_a_key_is_corrected_in_its_own_place(lab: Lab, narrow: Narrow) -> None:
    """Its position names it, and the position at which a corrected row stands is another row's."""
    if lab.kind == "redis":
        pytest.skip("holds no such table")
    loose = dataclasses.replace(RANKED, identity="n", columns=tuple(dataclasses.replace(one, key=False) for one in RANKED.columns))
    sink = lab.opened(**narrow.options)
    sink.prepare(TopicSchema.of(loose))
    narrow.begin()
    feed(lab, sink, upserts(loose, 1, [good(1), bad(2), good(3)]))
    commit(lab, sink, cut(3))
    assert letters(sink) == [(2, LetterState.ASIDE)]
    for _ in range(2):
        assert decide(lab, sink, Verb.EDIT, 2, rank="7", note="short").done
    mended = order(2, note="short", rank="7")
    wanted = meant(sink, loose, [good(1), mended, good(3)])
    assert sorted(held(sink, loose), key=lambda row: str(row["id"])) == wanted
    assert decide(lab, sink, Verb.DROP, 2).done
    assert sorted(row["id"] or "" for row in held(sink, loose)) == ["1", "3"]


def test_a_key_that_is_an_empty_text_is_a_key() -> None:
    letter = Letter("public.t", Position(3), "why", "")
    assert Letter.from_json(letter.to_json()).key == ""
    taken = deadletters.TakenChanges(np.array([True]), np.array([True]))
    known = deadletters.Letters("s", [letter])
    assert known.ended("public.t", lambda: pa.array([""]), np.array([4]), taken) == [letter.id]


def test_no_table_can_be_called_so_that_its_letters_are_another_s() -> None:
    names = ["public.t", "public.t@5", "public.t@all", "public.t@rows", "public.t@5@all"]
    one_row = [Letter(name, Position(position), "why", "k") for name in names for position in (5, 6)]
    whole = [Letter(name, Position(5), "why", whole_table=True) for name in names]
    assert len({letter.id for letter in (*one_row, *whole)}) == len(one_row) + len(whole)


def test_letters_are_written_as_they_are_read() -> None:
    letter = Letter("public.t", Position(3), "why", "1", 2.5, LetterState.EDITED, "ops", 3.5, {"a": None, "b": "ü"})
    assert Letter.from_json(letter.to_json()) == letter
    old = Letter.from_json('{"table":"public.t","position":3,"reason":"why"}')
    assert (old.id, old.key, old.state) == ("public.t@3", None, LetterState.ASIDE)


def test_the_last_row_of_each_key() -> None:
    keys = pa.array(["a", "b", "a", "c", "b"])
    assert deadletters.last_of_keys(keys, [0, 1, 2, 3]) == [2, 3]
