"""What is true: the source's tables as text, the log's fold as text, and whether they are the same value for value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import EXACT, OP, Op, table_of
from cdc.model.evolution import differences, schema_change_of
from cdc.model.pgtypes import PINNED_SETTINGS, canonical_text
from cdc.model.position import Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema

Row = tuple[tuple[str, str | None], ...]
"""(column, text), sorted by column."""
Tables = dict[str, list[Row]]

_TABLES = """
select quote_ident(n.nspname) || '.' || quote_ident(c.relname), n.nspname || '.' || c.relname
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'r' and n.nspname = 'public' order by 2
"""


def pin(connection: psycopg.Connection[Any]) -> None:
    for name, value in PINNED_SETTINGS.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))


def of_source(connection: psycopg.Connection[Any]) -> Tables:
    """Every table of schema ``public`` at one moment; ``connection`` pinned, in autocommit."""
    found: Tables = {}
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        for quoted, name in connection.execute(_TABLES).fetchall():  # type: ignore[misc]
            with connection.cursor() as cursor:
                cursor.execute(sql.SQL("select * from {} limit 0").format(sql.SQL(quoted)))
                columns = [column.name for column in cursor.description or ()]
                with cursor.copy(sql.SQL("copy (select * from {}) to stdout").format(sql.SQL(quoted))) as copy:
                    found[name] = sorted((_row(columns, row) for row in copy.rows()), key=repr)
    return found


class LogFold:
    """The log's tables, brought forward by what is new at each call."""

    def __init__(self, folder: Path) -> None:
        self._reader = EmbeddedLogReader(folder)
        self._upto = Position(0)
        self._tables: dict[str, tuple[Table, dict[Any, dict[str, str | None]]]] = {}

    def tables(self) -> Tables:
        head = self._reader.head().position
        for topic in self._reader.topics():
            for batch in self._reader.read(topic.name, self._upto, head):
                self._take(batch)
        self._upto = head
        return {name: sorted((_row(*_split(row)) for row in rows.values()), key=repr) for name, (_, rows) in self._tables.items()}

    def close(self) -> None:
        self._reader.close()

    def _take(self, batch: Any) -> None:
        table = table_of(batch.schema)
        name = table.qualified
        before, rows = self._tables.get(name, (table, {}))
        if before != table:
            rows = _evolved(before, table, rows)
        self._tables[name] = (table, rows)
        change = schema_change_of(batch)
        if change is not None:
            if change.empties:
                rows.clear()
            return
        keys = [column.name for column in table.key]
        for op, row in zip(batch.column(OP).to_pylist(), texts(batch, table), strict=True):
            key = tuple(row[column] for column in keys)
            if op == Op.TRUNCATE:
                rows.clear()
            elif op == Op.DELETE:
                rows.pop(key, None)
            else:
                rows[key] = row


def _evolved(before: Table, after: Table, rows: Mapping[Any, dict[str, str | None]]) -> dict[Any, dict[str, str | None]]:
    """The rows under the new definition; an added column is NULL until the log says otherwise."""
    kept = {column.name: column.name for column in after.columns if column.name in before.names}
    for difference in differences(TopicSchema.of(before), TopicSchema.of(after)):
        if difference.old is None and difference.new is not None:
            kept.pop(difference.new.name, None)
        elif difference.new is not None and difference.old is not None:
            kept[difference.new.name] = difference.old.name
    changed = [{name: row[kept[name]] if name in kept else None for name in after.names} for row in rows.values()]
    keys = [column.name for column in after.key]
    return {tuple(row[column] for column in keys): row for row in changed}


def texts(batch: Any, table: Table) -> list[dict[str, str | None]]:
    """The batch's rows as the text that Postgres gives."""
    columns = [canonical_text(batch.column(name)).to_pylist() for name in table.names]
    exact = [dict(entry or ()) for entry in batch.column(EXACT).to_pylist()]
    return [
        {name: instead.get(name, text) for name, text in zip(table.names, row, strict=True)}
        for row, instead in zip(zip(*columns, strict=True), exact, strict=True)
    ]


def difference(source: Tables, held: Tables) -> str | None:
    """The first difference in words; None when both are equal. Tables that are empty may be missing from either side."""
    for name in sorted({*source, *held}):
        left, right = source.get(name, []), held.get(name, [])
        if left != right:
            missing, extra = [row for row in left if row not in right], [row for row in right if row not in left]
            return f"{name}: {len(missing)} rows missing ({_short(missing)}), {len(extra)} rows too many ({_short(extra)})"
    return None


def _short(rows: Sequence[Row]) -> str:
    return "; ".join(str([(name, text if text is None else text[:24]) for name, text in row]) for row in rows[:2])


def _row(columns: Sequence[str], values: Sequence[str | None]) -> Row:
    return tuple(sorted(zip(columns, values, strict=True)))


def _split(row: Mapping[str, str | None]) -> tuple[list[str], list[str | None]]:
    return list(row), list(row.values())
