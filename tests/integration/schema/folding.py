"""The log of one table folded into the rows that a store must hold, columns by number: what a SCHEMA record means, as simply as it can be said."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from cdc.model.batch import EXACT, OP, POSITION, Op, table_of
from cdc.model.evolution import SchemaChange, schema_change_of
from cdc.model.pgtypes import canonical_text
from cdc.model.table import Table

Row = tuple[str | None, ...]
_Identity = int | str


def fold(batches: Iterable[pa.RecordBatch]) -> tuple[list[Row], list[tuple[int, SchemaChange]]]:
    """The rows at the end (under the last definition, sorted), and the SCHEMA records with their positions."""
    table: Table | None = None
    rows: dict[Row, dict[_Identity, str | None]] = {}
    changes: list[tuple[int, SchemaChange]] = []
    for batch in batches:
        now = table_of(batch.schema)
        change = schema_change_of(batch)
        if change is not None:
            changes.append((batch.column(POSITION)[0].as_py(), change))
            if change.empties:
                rows.clear()
            table = now
            continue
        assert table is None or table == now, f"a definition changed without a SCHEMA record: {table} {now} {changes}"
        table = now
        columns = [canonical_text(batch.column(name)).to_pylist() for name in now.names]
        for op, exact, *values in zip(batch.column(OP).to_pylist(), batch.column(EXACT).to_pylist(), *columns, strict=True):
            odd = dict(exact or ())
            row: dict[_Identity, str | None] = {
                column.attnum or column.name: odd.get(column.name, value) for column, value in zip(now.columns, values, strict=True)
            }
            key = tuple(row[column.attnum or column.name] for column in now.key)
            if op == Op.TRUNCATE:
                rows.clear()
            elif op == Op.DELETE:
                rows.pop(key, None)
            else:
                rows[key] = row
    if table is None:
        return [], changes
    found = [tuple(row.get(column.attnum or column.name) for column in table.columns) for row in rows.values()]
    return sorted(found, key=repr), changes
