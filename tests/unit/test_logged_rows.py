"""Of a table that is read again: whether its rows may stay meanwhile, and which of them nothing has come of."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.errors import LogAway, LogCorrupt, PositionGone
from cdc.ingest.loggedtables import LoggedTables
from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT4, INT8, TEXT
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from snapshots.loggedrows import next_keys
from tests.contract.rows import batch, schema

T = Table(
    7,
    "public",
    "t",
    (
        Column("id", INT4, -1, "", key=True, attnum=1),
        Column("part", TEXT, -1, "", key=True, attnum=2),
        Column("v", TEXT, -1, "", attnum=3),
    ),
)
INDEX = ("part", "id")
"""In another order than the table's."""


def row(key: int, value: str) -> dict[str, str | None]:
    return {"id": str(key), "part": f"p{key}", "v": value}


def logged(*batches: pa.RecordBatch) -> MemoryReader:
    writer = (log := MemoryLog()).writer()
    for one in batches:
        writer.append(one)
        writer.commit(Lsn(int(writer.next_position)), 0)
    return log.reader()


def tables(*batches: pa.RecordBatch) -> LoggedTables:
    reader = logged(*batches)
    return LoggedTables(lambda: nullcontext(reader))


def unread(found: LoggedTables, table: Table, since: int) -> list[tuple[str, ...]]:
    return [key for keys in found.unread(table, INDEX, since, lambda: None) for key in keys]


FIRST = batch(T, [(Op.READ, position, row(position, "old")) for position in (1, 2, 3, 4)])


def test_rows_of_which_nothing_has_come_since_are_named_by_the_index_s_columns() -> None:
    found = tables(
        FIRST,
        batch(T, [(Op.DELETE, 5, row(4, ""))]),
        schema(T, 6, Kind.REWRITTEN),
        batch(T, [(Op.READ, 7, row(2, "new")), (Op.INSERT, 8, row(9, "new"))]),
    )
    assert unread(found, T, 5) == [("p1", "1"), ("p3", "3")]
    assert unread(found, T, 0) == []


def test_nothing_is_left_behind_what_empties_the_topic() -> None:
    assert unread(tables(FIRST, schema(T, 5, Kind.REWRITTEN, empties=True)), T, 4) == []


def test_keys_have_the_names_that_they_have_now() -> None:
    renamed = replace(T, columns=(replace(T.columns[0], name="number"), *T.columns[1:]))
    found = tables(FIRST, schema(renamed, 5, Kind.ALTERED))
    assert [key for keys in found.unread(renamed, ("number", "part"), 4, lambda: None) for key in keys] == [
        (str(n), f"p{n}") for n in (1, 2, 3, 4)
    ]


def test_whoever_asks_may_end_it() -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        list(tables(FIRST).unread(T, INDEX, 4, stop))


@pytest.mark.parametrize(
    ("now", "index", "stay"),
    [
        (T, INDEX, True),
        (replace(T, columns=(*T.columns, Column("w", TEXT, -1, "", attnum=4))), INDEX, True),
        (replace(T, columns=T.columns[:2]), INDEX, True),
        (replace(T, oid=8), INDEX, False),
        (T, (), False),
        (T, ("id",), False),
        (replace(T, columns=(replace(T.columns[0], type_oid=INT8), *T.columns[1:])), INDEX, False),
        (replace(T, columns=(replace(T.columns[0], key=False), *T.columns[1:])), ("part",), False),
        (replace(T, columns=(replace(T.columns[0], protected="hmac:1"), *T.columns[1:])), INDEX, False),
        (replace(T, columns=(*T.columns[:2], replace(T.columns[2], protected="mask"))), INDEX, False),
        (replace(T, name="other"), INDEX, False),
    ],
    ids=["same", "added", "dropped", "another table", "no index", "part of the key", "key type", "key", "protected key", "policy", "no topic"],
)  # fmt: skip
def test_rows_stay_only_where_the_source_can_say_which_are_gone(now: Table, index: tuple[str, ...], stay: bool) -> None:
    found = tables(FIRST)
    assert found.since(now, index) == (4 if stay else None)
    if not stay:
        with pytest.raises(PositionGone):
            list(found.unread(now, index, 4, lambda: None))


def test_what_was_logged_under_a_key_that_was_kept_back_cannot_be_looked_for() -> None:
    kept_back = replace(T, columns=(replace(T.columns[0], protected="hmac:1"), *T.columns[1:]))
    assert tables(batch(kept_back, [(Op.READ, 1, row(1, "x"))])).since(kept_back, INDEX) is None


def test_a_topic_that_has_lost_its_beginning_cannot_be_compared() -> None:
    class Retired(MemoryReader):
        def topics(self):  # type: ignore[no-untyped-def]
            return [replace(topic, kept_from=3) for topic in super().topics()]

    whole = logged(FIRST)
    whole.__class__ = Retired
    assert LoggedTables(lambda: nullcontext(whole)).since(T, INDEX) is None


@pytest.mark.parametrize(
    "error", [LogAway("the tier does not answer", hint=""), LogCorrupt("a sealed file"), OSError(28, "no space")]
)
def test_a_past_that_cannot_be_read_empties_the_table_and_does_not_end_capture(error: Exception) -> None:
    class Unreadable(MemoryReader):
        def read(self, *_args, **_kwargs):  # type: ignore[no-untyped-def]
            raise error

    whole = logged(FIRST)
    whole.__class__ = Unreadable
    assert next_keys(LoggedTables(lambda: nullcontext(whole)).unread(T, INDEX, 4, lambda: None)) is None


def test_the_look_at_the_past_can_be_ended_before_it_has_found_anything() -> None:
    class Over(Exception):
        pass

    def go_on() -> None:
        raise Over

    emptied = batch(T, [(Op.TRUNCATE, 5, None)])
    with pytest.raises(Over):
        list(tables(FIRST, emptied).unread(T, INDEX, 5, go_on))
