"""A topic that another producer brings gets another key, or other types, as a view's topic does with a generation: every store ends as its new rows are, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from cdc.inbox.changes import changes
from cdc.inbox.definition import numbered, table_for
from cdc.model.batch import OP
from cdc.model.position import Cut, Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.contract import Sink
from tests.contract.labs import Lab
from tests.contract.test_sinks import commit, expect, feed
from tests.logs import cut

Values = dict[str, Any]
Rows = Sequence[Values]
BEFORE = pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.utf8())])
OLD: Rows = [{"id": n, "place": f"p{n % 3}", "amount": "7" if n % 2 else "none"} for n in range(1, 8)]
RETYPED = pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.decimal128(12, 2))])
TEXT_KEY = pa.schema([("id", pa.utf8()), ("place", pa.utf8()), ("amount", pa.utf8())])
GROUPED = pa.schema([("place", pa.utf8()), ("n", pa.int64())])


class Producer:
    """The topic's groups, one after the other, into a store of its own."""

    def __init__(self, lab: Lab, sink: Sink) -> None:
        self._lab, self._sink = lab, sink
        self.known: Table | None = None
        self._head = Cut(Position(0), cut(0).commit_lsn, 0)

    def brings(self, schema: pa.Schema, key: Sequence[str], rows: Rows, gone: Rows = ()) -> None:
        table = numbered(table_for("views.v", list(schema), key), self.known, self._head.position + 1)
        ops = pa.array(["u"] * len(rows) + ["d"] * len(gone), pa.utf8())
        batch = pa.RecordBatch.from_pylist([*rows, *gone], schema).add_column(0, pa.field(OP, pa.utf8()), ops)
        at = self._head.position
        for one in changes(table, [batch], self.known, self._head):
            if self.known is None:
                self._sink.prepare(TopicSchema.of(table))
            feed(self._lab, self._sink, one)
            at = Position(at + len(one))
        self.known, self._head = table, cut(at)
        commit(self._lab, self._sink, self._head)

    def shows(self, rows: Rows) -> None:
        assert self.known is not None
        texts = [{name: None if value is None else str(value) for name, value in row.items()} for row in rows]
        expect(self._lab, self._sink, self.known, texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "key", "rows", "gone"),
    [
        (RETYPED, ["id"], [{"id": n, "place": "x", "amount": None if n == 3 else 1} for n in range(1, 7)], [{"id": 7}]),
        (TEXT_KEY, ["id"], [{"id": f"n{n}", "place": "x", "amount": "1"} for n in range(9)], []),
        (GROUPED, ["place"], [{"place": f"p{n}", "n": n} for n in range(3)], []),
    ],
    ids=["types", "type of the key", "key"],
)
def test_the_store_shows_the_new_rows_and_after_the_way_back_the_former_ones(
    lab: Lab, schema: pa.Schema, key: Sequence[str], rows: Rows, gone: Rows
) -> None:
    producer = Producer(lab, lab.opened())
    producer.brings(BEFORE, ["id"], OLD)
    producer.shows(OLD)
    fixed = [
        row | ({"amount": f"{row['amount']}.00" if row["amount"] is not None else None} if schema is RETYPED else {})
        for row in rows
    ]
    producer.brings(schema, key, rows, gone)
    producer.shows(fixed)
    producer.brings(BEFORE, ["id"], OLD)
    producer.shows(OLD)


KINDS: Sequence[tuple[pa.DataType, str, str | None]] = (
    (pa.int64(), "7", "12.50"),
    (pa.decimal128(12, 2), "12.50", "none"),
    (pa.float64(), "12.5", ""),
    (pa.date32(), "2026-11-30", "none"),
    (pa.date32(), "infinity", None),
    (pa.timestamp("us", tz="UTC"), "2026-11-30 10:00:00+00", "none"),
    (pa.bool_(), "t", "none"),
)
"""A type, a text that is a value of it, and one that is not."""


def test_until_its_rows_come_again_a_value_that_the_new_type_does_not_have_is_null(lab: Lab) -> None:
    producer, names = Producer(lab, lab.opened()), [f"v{n}" for n in range(len(KINDS))]
    had: Values = {"id": 1, **{name: one for name, (_, one, _) in zip(names, KINDS, strict=True)}}
    others: Values = {"id": 2, **{name: one for name, (_, _, one) in zip(names, KINDS, strict=True)}}
    producer.brings(pa.schema([("id", pa.int64()), *((name, pa.utf8()) for name in names)]), ["id"], [had, others])
    after = [(name, kind) for name, (kind, _, _) in zip(names, KINDS, strict=True)]
    comes: Values = {"id": 3, **dict.fromkeys(names)}
    producer.brings(pa.schema([("id", pa.int64()), *after]), ["id"], [comes])
    producer.shows([had, {"id": 2, **dict.fromkeys(names)}, comes])
