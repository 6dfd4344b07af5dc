"""What the log alone says of a topic's past, against the plainest fold of it that there is: a dict."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest

from cdc.errors import PositionGone
from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import META_FIELDS, OP, POSITION, Op, first_position, table_of, topic_schema
from cdc.model.evolution import Kind, topic_change_of
from cdc.model.pgtypes import INT4, TEXT
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks import newest
from sinks.barrier import emptied
from sinks.past import all_keys, condensed, live_rows, rows_under
from sinks.render.rowtext import keys, row_text
from sinks.reshape import rekeyed, reshaped
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, Row, batch, order, schema, upserts

TINY = 2_000
"""So little memory that a few hundred keys are divided among files, and those among files again."""

PEOPLE = Table(
    77,
    "public",
    "people",
    (
        Column("id", INT4, -1, "", key=True, attnum=1),
        Column("name", TEXT, -1, "", attnum=2),
        Column("town", TEXT, -1, "", attnum=3),
    ),
)


def logged(*batches: pa.RecordBatch) -> MemoryReader:
    log = MemoryLog()
    writer = log.writer()
    for one in batches:
        writer.append(one)
        writer.commit(Lsn(int(writer.next_position)), 0)
    return log.reader()


def rows(found: Iterable[pa.RecordBatch]) -> list[tuple[int, str, Row]]:
    """(position, definition, row as text) of each."""
    return [
        (position, topic_schema(one.schema).to_json(), row)
        for one in found
        for position, row in zip(one.column(POSITION).to_pylist(), row_text(one, topic_schema(one.schema)).to_pylist(), strict=True)
    ]


def live(log: MemoryReader, topic: str, upto: int, memory_bytes: int = 1 << 20) -> list[tuple[int, str, Row]]:
    return rows(live_rows(log, topic, Position(upto), memory_bytes=memory_bytes))


def positions(found: Iterable[pa.RecordBatch]) -> list[int]:
    return [position for one in found for position in one.column(POSITION).to_pylist()]


def test_of_each_key_the_last_change_is_live_unless_it_is_a_delete() -> None:
    log = logged(
        upserts(ORDERS, 1, [order(1), order(2), order(3)]),
        batch(ORDERS, [(Op.UPDATE, 4, order(1, "paid")), (Op.DELETE, 5, order(2)), (Op.DELETE, 6, order(3))]),
        upserts(ORDERS, 7, [order(3, "again")]),
    )
    assert [(at, row["id"], row["status"]) for at, _, row in live(log, "public.orders", 7)] == [
        (4, "1", "paid"),
        (7, "3", "again"),
    ]
    assert [at for at, _, _ in live(log, "public.orders", 5)] == [3, 4], "what came after `upto` does not count"
    assert live(log, "public.orders", 0) == live(log, "public.absent", 7) == []


@pytest.mark.parametrize(
    "emptying",
    [
        batch(ORDERS, [(Op.TRUNCATE, 3, {})]),
        schema(ORDERS, 3, Kind.REWRITTEN, empties=True),
        schema(dataclasses.replace(ORDERS, oid=99), 3, Kind.CREATED),
    ],
)
def test_nothing_is_live_from_before_the_topic_was_emptied(emptying: pa.RecordBatch) -> None:
    table = table_of(emptying.schema)
    log = logged(upserts(ORDERS, 1, [order(1), order(2)]), emptying, upserts(table, 4, [order(2)]))
    assert [at for at, _, _ in live(log, "public.orders", 2)] == [1, 2]
    assert [at for at, _, _ in live(log, "public.orders", 3)] == []
    assert [at for at, _, _ in live(log, "public.orders", 4)] == [4]
    assert positions(all_keys(log, "public.orders", Position(0), Position(4))) == [1, 4], "but its keys are known"


def test_rows_come_under_the_definition_that_they_were_logged_with() -> None:
    wider = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("rank", INT4)))
    log = logged(upserts(ORDERS, 1, [order(1)]), schema(wider, 2), upserts(wider, 3, [order(2, rank="7")]))
    assert [table_of(one.schema) for one in live_rows(log, "public.orders", Position(3))] == [ORDERS, wider]


def test_keys_come_once_each_and_with_the_columns_of_their_definition() -> None:
    log = logged(
        upserts(PAIRS, 1, [{"a": "x", "b": "y", "v": "1"}, {"a": "x:y", "b": "", "v": "2"}, {"a": "x", "b": ":y", "v": "3"}]),
        batch(PAIRS, [(Op.DELETE, 4, {"a": "x", "b": "y"})]),
        batch(ORDERS, [(Op.INSERT, 5, order(1))]),
        batch(PAIRS, [(Op.TRUNCATE, 6, {})]),
        upserts(PAIRS, 7, [{"a": "x", "b": "y", "v": "1"}]),
    )
    found = list(all_keys(log, "public.pairs", Position(0), Position(6)))
    assert found[0].schema.names == [*(field.name for field in META_FIELDS), "a", "b"]
    assert positions(found) == [2, 3, 4]
    assert positions(all_keys(log, "public.pairs", Position(2), Position(7))) == [3, 7]


def test_a_key_of_other_columns_is_another_key() -> None:
    ada = {"id": "7", "name": "7", "town": None}
    columns = tuple(dataclasses.replace(column, key=column.name == "name") for column in PEOPLE.columns)
    by_name = dataclasses.replace(PEOPLE, columns=columns)
    log = logged(upserts(PEOPLE, 1, [ada]), schema(by_name, 2), upserts(by_name, 3, [ada]))
    found = list(all_keys(log, "public.people", Position(0), Position(3)))
    assert [(at, table_of(one.schema).key[0].name) for one, at in zip(found, positions(found), strict=True)] == [
        (1, "id"),
        (3, "name"),
    ]
    assert [at for at, _, _ in live(log, "public.people", 3)] == [3], "but the row is the same one"


def test_a_rewrite_gives_every_live_row_under_the_new_definition() -> None:
    renamed = dataclasses.replace(
        NUMBERED, columns=tuple(dataclasses.replace(c, name="state") if c.name == "status" else c for c in NUMBERED.columns)
    )
    log = logged(upserts(NUMBERED, 1, [order(1, "new"), order(2)]), batch(NUMBERED, [(Op.DELETE, 3, order(2))]), schema(renamed, 4))
    (made,) = rows_under(log, TopicSchema.of(renamed), Position(3), Position(4))
    assert [(at, row["id"], row["state"]) for at, _, row in rows([made])] == [(4, "1", "new")]


def test_a_column_of_a_dropped_one_s_name_inherits_nothing() -> None:
    """Without numbers of columns only the definitions between tell the two apart."""
    without = dataclasses.replace(ORDERS, columns=tuple(c for c in ORDERS.columns if c.name != "note"))
    log = logged(upserts(ORDERS, 1, [order(1, note="old")]), schema(without, 2), schema(ORDERS, 3))
    (made,) = rows_under(log, TopicSchema.of(ORDERS), Position(2), Position(3))
    assert [row["note"] for _, _, row in rows([made])] == [None]


class Retired(MemoryReader):
    """A log whose beginning is no longer kept."""

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:  # noqa: ARG002
        raise PositionGone(f"position {after} is gone")


def test_a_log_that_lost_the_beginning_does_not_have_smaller_tables() -> None:
    log = Retired(MemoryLog())
    with pytest.raises(PositionGone):
        next(live_rows(log, "public.orders", Position(1)))
    with pytest.raises(PositionGone):
        next(all_keys(log, "public.orders", Position(0), Position(1)))


# -- against a dict ----------------------------------------------------------------------------------------------------


def folded(batches: Sequence[pa.RecordBatch], upto: int) -> dict[int, tuple[str, Row]]:
    """position → (definition, row as logged) of what is live, the plain way."""
    _, found = past_of(batches, upto)
    return {
        at: (topic_schema(one.schema).to_json(), row_text(one, topic_schema(one.schema)).to_pylist()[0])
        for at, one in found.values()
    }


def past_of(batches: Sequence[pa.RecordBatch], upto: int) -> tuple[TopicSchema | None, dict[str, tuple[int, pa.RecordBatch]]]:
    """The definition at a position, and of what is live there: its key → its position, and its change as logged."""
    held: TopicSchema | None = None
    found: dict[str, tuple[int, pa.RecordBatch]] = {}
    as_of: dict[str, pa.RecordBatch] = {}
    for one in (one for many in batches for one in _alone(many)):
        at, table, change = first_position(one), topic_schema(one.schema), topic_change_of(one)
        if at > upto:
            break
        if one.column(OP)[0].as_py() == Op.TRUNCATE or (change is not None and emptied(held, change)):
            found, as_of = {}, {}
        elif change is not None and held is not None:
            under = {key: reshaped(row_text(row, held), held, table, found[key][0]) for key, row in as_of.items()}
            as_of = under
            if rekeyed(held, table):
                moved = {key: keys(row, table)[0].as_py() for key, row in under.items()}
                ordered = sorted(found, key=lambda key: found[key][0])
                found, as_of = {moved[key]: found[key] for key in ordered}, {moved[key]: under[key] for key in ordered}
        elif change is None:
            key = keys(one, table)[0].as_py()
            if one.column(OP)[0].as_py() == Op.DELETE:
                found.pop(key, None)
                as_of.pop(key, None)
            else:
                found[key], as_of[key] = (at, one), one
        held = table
    return held, found


def _alone(many: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [many.slice(at, 1) for at in range(len(many))]


class History:
    """Random changes of one table, its definition among them, and of another one beside it."""

    def __init__(self, chance: random.Random, *, length: int = 150, after: History | None = None) -> None:
        """``after``: goes on where another one ended."""
        self.chance = chance
        self.table = after.table if after else PEOPLE
        self.batches: list[pa.RecordBatch] = []
        self.position = after.position if after else 0
        self._attnum = after._attnum if after else 3
        self._oid = after._oid if after else PEOPLE.oid
        end = self.position + length
        while self.position < end:
            self._step()

    def _next(self) -> int:
        self.position += 1
        return self.position

    def _step(self) -> None:
        dice = self.chance.random()
        if dice < 0.72:
            changes = [self._change() for _ in range(self.chance.randint(1, 12))]
            self.batches.append(batch(self.table, changes))
        elif dice < 0.86:
            self.batches.append(upserts(ORDERS, self._next(), [order(self.chance.randrange(3))]))
        elif dice < 0.9:
            self.batches.append(batch(self.table, [(Op.TRUNCATE, self._next(), {})]))
        else:
            empties = self._redefine()
            kind = Kind.REWRITTEN if empties else Kind.ALTERED
            self.batches.append(schema(self.table, self._next(), kind, empties=empties))

    def _change(self) -> tuple[Op, int, Row]:
        row = {column.name: self._value(column) for column in self.table.columns}
        op = self.chance.choice([Op.INSERT, Op.UPDATE, Op.READ, Op.DELETE]) if self.table.key else Op.INSERT
        return op, self._next(), row

    def _value(self, column: Column) -> str | None:
        text = self.chance.choice(["1", "2", "3", "4", "17", "5"])
        if column.type_oid == INT4:
            return text
        return self.chance.choice([text, "", ":", "\\N", "\\", "a:b", None])

    def _redefine(self) -> bool:
        columns, dice = list(self.table.columns), self.chance.random()
        if dice < 0.2:
            self._attnum += 1
            columns.append(Column(f"c{self._attnum}", TEXT, -1, "", attnum=self._attnum))
        elif dice < 0.4 and len(columns) > 2:
            one, two = self.chance.sample(range(len(columns)), 2)
            names = columns[one].name, columns[two].name
            columns[one], columns[two] = (
                dataclasses.replace(columns[at], name=name) for at, name in ((one, names[1]), (two, names[0]))
            )
        elif dice < 0.55 and sum(not column.key for column in columns) > 1:
            columns.remove(self.chance.choice([column for column in columns if not column.key]))
        elif dice < 0.85:
            chosen = self.chance.sample(range(len(columns)), self.chance.randint(0, min(2, len(columns))))
            columns = [dataclasses.replace(column, key=at in chosen) for at, column in enumerate(columns)]
        elif dice < 0.92:
            self._oid += 1
        self.table = dataclasses.replace(self.table, columns=tuple(columns), oid=self._oid)
        return self.chance.random() < 0.2


@pytest.mark.parametrize("round", range(25))
def test_the_past_is_what_a_dict_makes_of_it(seed: int, round: int) -> None:
    chance = random.Random(seed + round)
    history = History(chance)
    log = logged(*history.batches)
    for upto in (history.position, chance.randrange(history.position), chance.randrange(history.position)):
        expected = folded([one for one in history.batches if table_of(one.schema).name == "people"], upto)
        for memory_bytes in (TINY, 1 << 20):
            found = live(log, "public.people", upto, memory_bytes)
            assert {at: (definition, row) for at, definition, row in found} == expected
            assert [at for at, _, _ in found] == sorted(expected)
        after = chance.randrange(upto + 1)
        last: dict[tuple[tuple[str, ...], str], int] = {}
        for one in (one for many in history.batches for one in _alone(many)):
            table, at = topic_schema(one.schema), first_position(one)
            alone = one.column(OP)[0].as_py() == Op.TRUNCATE or topic_change_of(one) is not None
            if table.name == "people" and after < at <= upto and not alone:
                last[(tuple(column.name for column in table.key), keys(one, table)[0].as_py())] = at
        for memory_bytes in (TINY, 1 << 20):
            found_keys = positions(all_keys(log, "public.people", Position(after), Position(upto), memory_bytes=memory_bytes))
            assert found_keys == sorted(last.values())


@pytest.mark.parametrize("round", range(12))
def test_a_state_stands_for_everything_before_it(seed: int, round: int) -> None:
    """Each made on top of the one before. What is asked for behind one is the same without any, its way through later definitions included."""
    chance = random.Random(seed + round)
    history = History(chance)
    plain, log = logged(*history.batches), logged(*history.batches)
    memory_bytes = chance.choice([TINY, 1 << 20])
    for cut in sorted(chance.sample([int(cut.position) for cut in log._log.cuts], 4)):
        with condensed(log, "public.people", Position(cut), memory_bytes=memory_bytes) as found:
            made = list(found.batches)
            assert found.rows == sum(map(len, made))
        log._log.keep_state("public.people", Position(cut), made)
        assert positions(live_rows(log, "public.people", Position(cut))) == [
            at for one in made if topic_change_of(one) is None for at in one.column(POSITION).to_pylist()
        ]
    for upto in (history.position, *(chance.randrange(history.position) for _ in range(3))):
        assert live(log, "public.people", upto, memory_bytes) == live(plain, "public.people", upto)
        shape, at = TopicSchema.of(history.table), Position(history.position + 1)
        again, expected = (rows(rows_under(one, shape, Position(upto), at)) for one in (log, plain))
        assert again == expected


def test_many_keys_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided twice and more, and never more of them at once than fit."""
    made = [upserts(ORDERS, 1 + 500 * i, [order(key % 3000) for key in range(500 * i, 500 * i + 500)]) for i in range(12)]
    log = logged(*made, batch(ORDERS, [(Op.DELETE, 6001 + i, order(2 * i)) for i in range(1500)]))
    kept: list[int] = []
    highest = newest._highest

    def watched(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        kept.append(sum(one.nbytes for one in batches))
        return highest(batches)

    monkeypatch.setattr(newest, "_highest", watched)
    found = live(log, "public.orders", 7500, 8_000)
    assert [row["id"] for _, _, row in found] == [str(key) for key in range(1, 3000, 2)]
    assert max(kept) < 30_000, "one batch of the log and a little"
