"""A table in DuckDB. No index tells its rows apart: DuckDB's would have to be dropped for each change of a column, and this room never writes a key twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicSchema
from sinks.contract import audit_schema
from sinks.render.rowtext import rows_of_nothing
from sinks.sql.dialect import Occupant, StagedRows
from sinks.sql.duck.database import DuckSession
from sinks.sql.duck.kinds import TEXT, arrow_type, as_held, as_text, is_known
from sinks.sql.names import GONE, IDENTITY, NUMBER, TableSign, TargetPlace, quoted
from sinks.sql.refusals import RowRefusal
from sinks.sql.table import TargetTable, digested

_ROWS_AT_ONCE: Final = 100_000
_FLOATS: Final = ("FLOAT", "DOUBLE")


def standing(session: DuckSession, place: TargetPlace) -> Occupant | None:
    """As ``Dialect.standing``."""
    found = session.rows(
        """select t.comment from duckdb_tables() t where t.database_name = current_database()
        and lower(t.schema_name) = lower(:schema) and lower(t.table_name) = lower(:name)""",
        schema=place.schema,
        name=place.name,
    )
    if found:
        sign = TableSign.of(found[0][0])
        return Occupant(0 if sign is None else sign.number, True, sign)
    view = session.rows(
        """select 1 from duckdb_views() v where v.database_name = current_database()
        and lower(v.schema_name) = lower(:schema) and lower(v.view_name) = lower(:name)""",
        schema=place.schema,
        name=place.name,
    )
    return Occupant(0, False, None) if view else None


def signed_tables(session: DuckSession, store: str) -> Iterator[tuple[TargetPlace, TableSign]]:
    """As ``Dialect.signed_tables``."""
    found = session.rows("select schema_name, table_name, comment from duckdb_tables() where database_name = current_database()")
    for schema, name, comment in found:
        sign = TableSign.of(comment)
        if sign is not None and sign.store == store:
            yield TargetPlace(schema, name), sign


class DuckTable(TargetTable):
    """See ``TargetTable``."""

    def __init__(self, session: DuckSession, place: TargetPlace) -> None:
        self._file = session
        self._never_null: frozenset[str] = frozenset()
        super().__init__(session, place)

    def sign(self, sign: TableSign) -> None:
        """The comment also holds the table's number, which it keeps."""
        there = standing(self._file, self.place)
        number = there.number if there is not None and there.number else secrets.randbits(62)
        text = replace(sign, number=number).text().replace("'", "''")  # a backslash is one here
        self._session.run(f"comment on table {self.place.sql} is '{text}'")

    def become_text(self, name: str) -> None:
        kind, column = self.columns[name], quoted(name)
        if kind == "BOOLEAN":
            self.retype(name, TEXT, f"case when {column} then 't' when not {column} then 'f' end")
        elif kind == "BLOB":
            self.retype(name, TEXT, f"'\\x' || lower(hex({column}))")
        elif kind in _FLOATS:
            values = self._file.read(f"select distinct {column} as value, {column}::varchar as text from {self.place.sql}")
            known = {"text": values.column("text"), "canonical": canonical_text(values.column("value").combine_chunks())}
            self.retype(name, TEXT, f"{column}::varchar")
            with self._file.given("headwater_texts", pa.table(known)):
                self._session.run(
                    f"update {self.place.sql} t set {column} = w.canonical from headwater_texts w where t.{column} = w.text"
                )
        else:
            self.retype(name, TEXT, f"{column}::varchar")

    def foreseen(self, schema: TopicSchema, staged: StagedRows) -> Mapping[int, RowRefusal]:
        """NULL where the column takes none, and what is not a value of a type that somebody else has given a column."""
        found: dict[int, RowRefusal] = {}
        for name in schema.names:
            column, kind = f"r.{quoted(name)}", self.columns[name]
            refusing = {f"the column {name} takes no NULL": f"{column} is null"} if name in self._never_null else {}
            if staged.columns[name] != kind:
                refusing[f"the column {name} does not take its value"] = (
                    f"{column} is not null and try_cast({column} as {kind}) is null"
                )
            for reason, condition in refusing.items():
                rows = self._session.rows(f"select r.{NUMBER} from {staged.sql} r where not r.{GONE} and {condition}")
                found |= dict.fromkeys((row[0] for row in rows), RowRefusal(reason))
        return found

    def compared(self, name: str) -> tuple[str, str]:
        kind, column = self.columns[name], f"t.{quoted(name)}"
        return (kind, column) if is_known(kind) else (TEXT, f"{column}::varchar")

    def put(self, schema: TopicSchema, staged: StagedRows, which: str = "true") -> None:
        own = dict(self.own.values(deleted=False))
        columns = ", ".join(map(quoted, (*schema.names, *own)))
        values = ", ".join((*(self._given(name, staged) for name in schema.names), *own.values()))
        if schema.key:
            self._session.run(
                f"delete from {self.place.sql} t using {staged.sql} r where not r.{GONE} and {which} and {self.match(schema, 'r')}"
            )
        self._session.run(
            f"insert into {self.place.sql} ({columns or IDENTITY}) select {values or 'null'} from {staged.sql} r where not r.{GONE} and {which}"
        )

    def _given(self, name: str, staged: StagedRows) -> str:
        column, kind = f"r.{quoted(name)}", self.columns[name]
        return column if staged.columns[name] == kind else f"cast({column} as {kind})"

    def match(self, schema: TopicSchema, staged: str) -> str:
        same = []
        for field in schema.key:
            one, other = f"t.{quoted(field.name)}", f"{staged}.{quoted(field.name)}"
            if self.columns[field.name] in _FLOATS:  # zero has two texts
                one, other = f"{one}::varchar", f"{other}::varchar"
            same.append(f"{one} is not distinct from {other}" if digested(schema) else f"{one} = {other}")
        return " and ".join(same)

    def texts(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        return self._read(schema, "")

    def found(self, schema: TopicSchema, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        names = [field.name for field in schema.key]
        wanted = pa.table([_wanted(keys.column(name), self.columns[name]) for name in names], names=names)
        with self._file.given("headwater_wanted", wanted):
            yield from self._read(schema, f" join headwater_wanted w on {self.match(schema, 'w')}")

    def _read(self, schema: TopicSchema, joined: str) -> Iterator[pa.RecordBatch]:
        there = [name for name in schema.names if name in self.columns]
        columns = ", ".join(self.compared(name)[1] for name in there) or "1"
        statement = f"select {columns} from {self.place.sql} t{joined} where {self.own.live}"
        for batch in self._file.stream(statement, _ROWS_AT_ONCE):
            if not schema.names:
                yield rows_of_nothing(len(batch))
                continue
            texts = {name: as_text(batch.column(at), self.compared(name)[0]) for at, name in enumerate(there)}
            nothing = pa.nulls(len(batch), pa.utf8())
            yield pa.RecordBatch.from_arrays([texts.get(name, nothing) for name in schema.names], schema=audit_schema(schema))

    def _retype_what_fits(self, name: str, kind: str) -> None:
        self.retype(name, kind, f"try_cast({quoted(name)}::varchar as {kind})")

    def tell_apart(self, schema: TopicSchema, *, again: bool = False) -> None:
        """One stays of equal rows that nothing tells apart any more."""
        if IDENTITY in self.columns and len(self.columns) > 1:
            self._drop(IDENTITY)
        if again and schema.names:
            groups = ", ".join(map(quoted, schema.names))
            self._session.run(
                f"delete from {self.place.sql} t where rowid not in (select min(rowid) from {self.place.sql} group by {groups})"
            )

    def told_apart(self, schema: TopicSchema) -> bool:  # noqa: ARG002
        return True

    def _drop(self, name: str) -> None:
        if len(self.columns) == 1:
            self._add(IDENTITY, TEXT)  # DuckDB has no table without a column
        super()._drop(name)

    def _look(self) -> None:
        found = self._session.rows(
            """select column_name, data_type, is_nullable from duckdb_columns() where database_name = current_database()
            and lower(schema_name) = lower(:schema) and lower(table_name) = lower(:name) order by column_index""",
            schema=self.place.schema,
            name=self.place.name,
        )
        self.columns = {row[0]: row[1] for row in found}
        self._never_null = frozenset(row[0] for row in found if not row[2])

    def retype(self, name: str, kind: str, using: str) -> None:
        self._session.run(f"alter table {self.place.sql} alter column {quoted(name)} type {kind} using {using}")
        self.columns[name] = kind


def _wanted(texts: pa.Array, kind: str) -> pa.Array:
    """A text that the column cannot hold is the key of no row, as NULL is."""
    values = as_held(texts, None, kind)
    if values is not None:
        return values
    found = (as_held(texts.slice(row, 1), None, kind) for row in range(len(texts)))
    return pa.concat_arrays([pa.nulls(1, arrow_type(kind)) if one is None else one for one in found])
