"""Random changes for a log, and what a store must hold after them: the in-memory twin fed with the same."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.contract import Sink
from sinks.memory import MemorySink, Options
from sinks.warehouse.sink import Warehouse
from tests.contract.rows import ORDERS, PAIRS, Row, batch, order
from tests.integration.spark.sparkreading import rows_by_spark


class Traffic:
    """Writes transactions on two tables into a log. ``truncates`` allows TRUNCATE."""

    def __init__(self, folder: Path, seed: int, *, truncates: bool = True) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.truncates = truncates
        self.writer = EmbeddedLogWriter(folder)
        self.keys = 40

    def transactions(self, number: int, changes: int = 6) -> Cut:
        for _ in range(number):
            self.transaction(self.random.randint(1, changes))
        return self.writer.head

    def transaction(self, changes: int) -> Cut:
        position = int(self.writer.next_position)
        for _ in range(changes):
            table = self.random.choice((ORDERS, PAIRS))
            op, row = self._change(table)
            self.writer.append(batch(table, [(op, position, row)]))
            position += 1
        lsn = position * 10
        return self.writer.commit(Lsn(lsn), lsn)

    def bulk(self, rows: int) -> Cut:
        """One large transaction of inserts and updates on ``orders``."""
        position = int(self.writer.next_position)
        changes = [(Op.UPDATE, position + i, order(self.random.randrange(rows), f"v{position + i}")) for i in range(rows)]
        self.writer.append(batch(ORDERS, changes))
        return self.writer.commit(Lsn((position + rows) * 10), 1)

    def append(self, changes: pa.RecordBatch, lsn: int) -> Cut:
        self.writer.append(changes)
        return self.writer.commit(Lsn(lsn), lsn)

    def close(self) -> None:
        self.writer.close()

    def _change(self, table: Table) -> tuple[Op, Row]:
        kind = self.random.random()
        op = Op.TRUNCATE if self.truncates and kind < 0.01 else Op.DELETE if kind < 0.25 else Op.UPDATE if kind < 0.7 else Op.INSERT
        key = self.random.randrange(self.keys)
        if table is ORDERS:
            return op, order(key, f"s{self.random.randrange(10**6)}", note=self.random.choice([None, "", "né", "x" * 50]))
        return op, {"a": f"a{key % 5}", "b": f"b:{key // 5}", "v": str(self.random.randrange(10**6))}


def expected(folder: Path, upto: Position | None = None) -> MemorySink:
    """The twin, fed with the log up to a position (default: all of it)."""
    reader = EmbeddedLogReader(folder)
    twin = MemorySink(f"twin-{uuid.uuid4().hex}", Options(kind="memory"))
    twin.open(reader, 1)
    end = reader.head().position if upto is None else upto
    for topic in reader.topics():
        for changes in reader.read(topic.name, Position(0), end):
            twin.apply(changes)
    return twin


def held(sink: Sink, table: Table) -> list[dict[str, Any]]:
    """The store's rows as an audit reads them, which of a warehouse is what Spark reads."""
    sink.make_visible()
    schema = TopicSchema.of(table)
    rows = _by_key(sink.scan(schema), table)
    if isinstance(sink, Warehouse):
        assert rows == _by_key(rows_by_spark(sink, schema), table), "an audit reads something else than Spark"
    return rows


def _by_key(parts: Iterable[pa.RecordBatch], table: Table) -> list[dict[str, Any]]:
    rows = [row for part in parts for row in part.to_pylist()]
    return sorted(rows, key=lambda row: [*(str(row[column.name]) for column in table.key), str(row)])


def assert_equal(sink: Sink, folder: Path) -> None:
    """The store holds what the log says."""
    twin = expected(folder)
    for table in (ORDERS, PAIRS):
        assert held(sink, table) == held(twin, table), table.qualified
