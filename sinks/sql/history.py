"""Every version of a topic's rows, in a table beside the current one: from which change to which, by position and by commit time.

A version is open (``valid_to_position`` is NULL) until a change of its key closes it. It is written in the transaction that writes the current rows, so the
open versions are the current rows. A row that comes again as it is, as in a snapshot, begins none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.errors import ConfigError
from cdc.model.batch import POSITION, TS, topic_schema
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of
from sinks.reshape import origins, same_origin
from sinks.rowversions import FROM, FROM_POSITION, TO, TO_POSITION, gone, versioned
from sinks.sql.dialect import SqlSession
from sinks.sql.names import GONE, LONGEST, TargetPlace, quoted
from sinks.sql.table import TargetTable, digested
from sinks.versionage import time_text

_FIRST: Final = "_cdc_first"
_SAME: Final = "_cdc_same"
_WHEN: Final = "timestamp with time zone"
COLUMNS: Final[Mapping[str, str]] = {FROM_POSITION: "bigint", TO_POSITION: "bigint", FROM: _WHEN, TO: _WHEN}
"""Name → type."""
_BESIDE: Final = {GONE: "boolean", _FIRST: "boolean", _SAME: "boolean", **COLUMNS}
_WIDER: Final = {("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint")}
"""A column that becomes such a type holds the same values, whatever the letters' case."""


class HistoryWriter:
    """Over one history, within one transaction. ``schema``: the definition that its open versions stand under."""

    def __init__(self, session: SqlSession, table: TargetTable, schema: TopicSchema, horizon_us: int | None = None) -> None:
        """``horizon_us``: versions that ended at or before it are not needed (``sinks.versionage``); None: all are."""
        self.schema = schema
        self._needed = "true" if horizon_us is None else f"({TO} is null or {TO} > {_time(horizon_us)})"
        self._session = session
        self._table = table

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """All changes of a topic, barriers among them."""
        for batch in batches:
            barrier = barrier_of(batch, self.schema)
            if barrier is not None:
                self.close(barrier, batch)
            elif len(batch):
                self.write(topic_schema(batch.schema), batch)

    def write(self, schema: TopicSchema, batch: pa.RecordBatch) -> None:
        """batch: rows in position order, under the schema."""
        self._table.admit(schema)
        changes = versioned(batch, schema)
        rows = batch.take(pa.array(changes.rows))
        positions, times = batch.column(POSITION), batch.column(TS)
        beside = {
            GONE: pa.array(gone(rows)),
            _FIRST: pa.array(changes.first),
            _SAME: pa.array(np.zeros(len(rows), np.bool_)),
            FROM_POSITION: rows.column(POSITION),
            TO_POSITION: positions.take(changes.ends),
            FROM: rows.column(TS),
            TO: times.take(changes.ends),
        }
        staged = self._session.dialect.stage(self._session, schema, self._table.columns, _BESIDE)
        for name in staged.send(rows, beside):
            self._table.become_text(name)
        self._merge(schema, staged.sql)
        staged.drop()

    def _merge(self, schema: TopicSchema, staged: str) -> None:
        history, names = self._table.place.sql, list(map(quoted, schema.names))
        open_one = f"t.{TO_POSITION} is null and r.{_FIRST} and {self._match(schema)}"
        if schema.key:
            equal = " and ".join(f"cast(t.{name} as text) is not distinct from cast(r.{name} as text)" for name in names)
            self._session.run(
                f"update {staged} r set {_SAME} = true from {history} t where not r.{GONE} and {open_one} and {equal}"
            )
            self._session.run(
                f"""update {history} t set
                {TO_POSITION} = case when r.{_SAME} then r.{TO_POSITION} else r.{FROM_POSITION} end,
                {TO} = case when r.{_SAME} then r.{TO} else r.{FROM} end
                from {staged} r where {open_one} and not (r.{_SAME} and r.{TO_POSITION} is null)"""
            )
        columns = ", ".join((*names, *COLUMNS))
        self._session.run(
            f"insert into {history} ({columns}) select {columns} from {staged} r where not r.{GONE} and not r.{_SAME} and {self._needed}"
        )

    def _match(self, schema: TopicSchema) -> str:
        names = [quoted(field.name) for field in schema.key]
        if digested(schema):
            return " and ".join(f"cast(t.{name} as text) is not distinct from cast(r.{name} as text)" for name in names)
        return " and ".join(f"t.{name} = r.{name}" for name in names)

    def close(self, barrier: TableBarrier, change: pa.RecordBatch) -> None:
        """change: the barrier's record, one row."""
        if barrier.rows is RowsBefore.GONE:
            when = canonical_text(change.column(TS))[0].as_py()
            ends = "null" if when is None else _literal(when)
            self._session.run(
                f"update {self._table.place.sql} set {TO_POSITION} = {int(barrier.position)}, {TO} = {ends} where {TO_POSITION} is null"
            )
        if barrier.defines:
            self.evolve(barrier.schema, int(barrier.position))

    def forget(self, horizon_us: int, most_rows: int) -> bool:
        """Takes away versions that ended at or before the horizon, so many at most. Whether that was all of them."""
        history, row = self._table.place.sql, self._session.dialect.row_id
        some = f"select {row} from {history} where {TO} <= {_time(horizon_us)} limit {most_rows}"
        return self._session.run(f"delete from {history} where {row} in ({some})") < most_rows

    def evolve(self, new: TopicSchema, position: int) -> None:
        """Old versions keep what they hold: a column that is dropped stays, one of another type becomes text, and whatever has the name of a new column
        gets another one."""
        old, table = self.schema, self._table
        if same_origin(old, new) and old.holding == new.holding:
            came = {
                name: field.name for name, field in origins(old, new).items() if field is not None and field.name in table.columns
            }
        else:
            came = {name: name for name in new.names if name in old.names and name in table.columns}
        moving = {before: name for name, before in came.items() if before != name}
        for number, before in enumerate(moving):
            table.rename(before, f"_cdc_moving_{number}")
        same = self._session.dialect.same_name
        former = {same(name): name for name in table.columns}
        for name in new.names:
            there = former.get(same(name))
            if there is not None and there in table.columns and came.get(name) != there:
                table.rename(there, _until(there, position, table.columns))
        for number, name in enumerate(moving.values()):
            table.rename(f"_cdc_moving_{number}", name)
        for field in new.fields:
            there, wanted = table.columns.get(field.name), self._session.dialect.column_type(field)
            if there is None or there == wanted or there == self._session.dialect.text:
                continue
            if (there.lower(), wanted.lower()) in _WIDER:
                table.retype(field.name, wanted, f"cast({quoted(field.name)} as {wanted})")
            else:
                table.become_text(field.name)
        table.admit(new)
        self.schema = new


def _time(time_us: int) -> str:
    return _literal(time_text(time_us))


def _literal(when: str) -> str:
    return f"cast('{when}' as {_WHEN})"


def _until(name: str, position: int, taken: Collection[str]) -> str:
    """The name of a column that another one has taken the name of. Postgres would cut one that is too long, to one that may be there."""
    for number in count():
        end = f"__until_{position}{f'_{number}' if number else ''}".encode()
        found = name.encode()[: LONGEST - len(end)].decode(errors="ignore") + end.decode()
        if found not in taken:
            return found
    raise AssertionError


def history_place(place: TargetPlace, said: bool | str) -> TargetPlace:
    """``said``: the option's value. Raises ConfigError for a name that the database would cut."""
    name = f"{place.name}_history" if said is True else str(said)
    if len(name.encode()) > LONGEST:
        raise ConfigError(f"the history of {place} would be called {name}, which is too long", hint='give it a name: history = "…"')
    return TargetPlace(place.schema, name)
