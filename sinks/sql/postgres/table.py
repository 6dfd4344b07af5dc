"""A table in Postgres. Its primary key tells rows apart; where a row's whole content does, a digest of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.contract import audit_schema
from sinks.sql.dialect import Occupant, SqlSession, StagedRows
from sinks.sql.names import GONE, IDENTITY, TableSign, TargetPlace, literal, quoted
from sinks.sql.postgres.database import PostgresSession
from sinks.sql.postgres.kinds import TEXT
from sinks.sql.refusals import RowRefusal, RowsRefused
from sinks.sql.table import TargetTable, digested

_HAS_INPUT_IS_VALID: Final = 160_000
"""The first server version with pg_input_is_valid."""
_MOST_ARGUMENTS: Final = 90
"""A function takes a hundred."""
_WANTED: Final = "pg_temp.headwater_wanted"


def standing(session: SqlSession, place: TargetPlace) -> Occupant | None:
    """As ``Dialect.standing``; the number is the relation's OID."""
    found = session.rows(
        """select c.oid::bigint, c.relkind = 'r', pg_catalog.obj_description(c.oid, 'pg_class')
        from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where n.nspname = :schema and c.relname = :name""",
        schema=place.schema,
        name=place.name,
    )
    return Occupant(found[0][0], found[0][1], TableSign.of(found[0][2])) if found else None


def signed_tables(session: PostgresSession, store: str) -> Iterator[tuple[TargetPlace, TableSign]]:
    """As ``Dialect.signed_tables``."""
    found = session.rows(
        """select n.nspname, c.relname, d.description from pg_catalog.pg_description d
        join pg_catalog.pg_class c on c.oid = d.objoid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass and d.objsubid = 0 and c.relkind = 'r'
        and d.description like 'Headwater: {%'"""
    )
    for schema, name, comment in found:
        sign = TableSign.of(comment)
        if sign is not None and sign.store == store:
            yield TargetPlace(schema, name), sign


def key_columns(schema: TopicSchema) -> tuple[str, ...]:
    """The columns of the table's primary key; none where nothing tells rows apart. NULL, long and unordered values have no index, so where all of a row does it is a digest."""
    return (IDENTITY,) if digested(schema) else tuple(field.name for field in schema.key)


def digest(schema: TopicSchema, alias: str) -> str:
    """The expression for ``IDENTITY`` over a row with the schema's columns. ``%L`` keeps NULL and every text apart from each other."""
    names = [f"{alias}.{quoted(name)}" for name in schema.names]
    pieces = [names[at : at + _MOST_ARGUMENTS] for at in range(0, len(names), _MOST_ARGUMENTS)]
    texts = " || ',' || ".join(f"format({literal(','.join(['%L'] * len(piece)))}, {', '.join(piece)})" for piece in pieces)
    return f"sha256(convert_to({texts}, 'UTF8'))"


class PostgresTable(TargetTable):
    """See ``TargetTable``."""

    def __init__(self, session: PostgresSession, place: TargetPlace) -> None:
        self._server = session
        self._version: int | None = None
        self._assigned: frozenset[str] = frozenset()
        """The columns of texts and bits, of any length."""
        super().__init__(session, place)

    def sign(self, sign: TableSign) -> None:
        self._session.run(f"comment on table {self.place.sql} is {literal(sign.text())}")

    def become_text(self, name: str) -> None:
        self.retype(name, TEXT, as_text(name, self.columns[name]))

    def foreseen(self, schema: TopicSchema, staged: StagedRows) -> Mapping[int, RowRefusal]:  # noqa: ARG002
        """It is tried."""
        return {}

    def compared(self, name: str) -> tuple[str, str]:
        column = f"t.{quoted(name)}::text"
        return TEXT, f"left({column}, 1)" if self.columns[name] == "boolean" else column

    def _given(self, name: str, staged: StagedRows) -> str:
        """The staged column's expression. What is staged as text for a column of another type is read as that; to a shorter text it is assigned, for a cast would cut
        it."""
        column, kind = f"r.{quoted(name)}", self.columns[name]
        return column if staged.columns[name] == kind or name in self._assigned else f"{column}::{kind}"

    def put(self, schema: TopicSchema, staged: StagedRows, which: str = "true") -> None:
        names = list(schema.names)
        columns, values = list(map(quoted, names)), [self._given(name, staged) for name in names]
        if digested(schema):
            columns.append(IDENTITY)
            values.append(digest(schema, "r"))
        own = dict(self.own.values(deleted=False))
        columns += map(quoted, own)
        values += own.values()
        key = key_columns(schema)
        others = [quoted(name) for name in (*names, *own) if name in own or (name not in key and not digested(schema))]
        conflict = ""
        if key:
            done = f"update set {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "nothing"
            conflict = f" on conflict ({', '.join(map(quoted, key))}) do {done}"
        into = f"({', '.join(columns)}) " if columns else ""
        self._session.run(
            f"insert into {self.place.sql} {into}select {', '.join(values)} from {staged.sql} r where not r.{GONE} and {which}{conflict}"
        )

    def match(self, schema: TopicSchema, staged: str) -> str:
        if digested(schema):
            return f"t.{IDENTITY} = {digest(schema, staged)}"
        return " and ".join(f"t.{quoted(name)} = {staged}.{quoted(name)}" for name in key_columns(schema))

    def texts(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        return self._copied(schema, "")

    def found(self, schema: TopicSchema, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        names = [field.name for field in schema.key]
        wanted = ", ".join(f"{quoted(name)} {self.columns[name]}" for name in names)
        self._session.run(f"create temporary table {_WANTED.split('.')[1]} ({wanted}) on commit drop")
        self._server.copy_in(f"copy {_WANTED} ({', '.join(map(quoted, names))}) from stdin", [keys.select(names)])
        return self._copied(schema, f" join {_WANTED} w on {self.match(schema, 'w')}")

    def _copied(self, schema: TopicSchema, joined: str) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(f"t.{quoted(name)}" if name in self.columns else "null::text" for name in schema.names)
        return self._server.copy_out(
            f"copy (select {columns} from {self.place.sql} t{joined} where {self.own.live}) to stdout", audit_schema(schema)
        )

    def _retype_what_fits(self, name: str, kind: str) -> None:
        text = f"{quoted(name)}::text"
        if self._server_version() >= _HAS_INPUT_IS_VALID:
            valid = f"pg_input_is_valid({text}, {literal(kind)})"
            self.retype(name, kind, f"case when {valid} then {text}::{kind} end")
            return
        try:
            with self._server.attempt():
                self.retype(name, kind, f"{text}::{kind}")
        except RowsRefused as error:
            if not error.value:
                raise
            self._look()
            self.retype(name, kind, f"null::{kind}")

    def tell_apart(self, schema: TopicSchema, *, again: bool = False) -> None:
        """The primary key."""
        wanted = key_columns(schema)
        constraint, there = self._primary_key()
        if there == set(wanted) and not again:
            return
        if constraint is not None:
            self._session.run(f"alter table {self.place.sql} drop constraint {quoted(constraint)}")
            for name in there - set(wanted):
                self._session.run(f"alter table {self.place.sql} alter column {quoted(name)} drop not null")
        if IDENTITY in self.columns and IDENTITY not in wanted:
            self._drop(IDENTITY)
        if IDENTITY in wanted:
            if IDENTITY not in self.columns:
                self._add(IDENTITY, "bytea")
            self._session.run(f"update {self.place.sql} t set {IDENTITY} = {digest(schema, 't')}")
            self._session.run(
                f"delete from {self.place.sql} t using (select ctid as at, row_number() over (partition by {IDENTITY}) as number "
                f"from {self.place.sql}) twice where twice.at = t.ctid and twice.number > 1"
            )
        if wanted:
            self._session.run(f"alter table {self.place.sql} add primary key ({', '.join(map(quoted, wanted))})")

    def told_apart(self, schema: TopicSchema) -> bool:
        return self._primary_key()[1] == set(key_columns(schema))

    def _primary_key(self) -> tuple[str | None, set[str]]:
        """The constraint's name and columns."""
        found = self._session.rows(
            """select k.conname, a.attname from pg_catalog.pg_constraint k
            join pg_catalog.pg_class c on c.oid = k.conrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = any (k.conkey)
            where k.contype = 'p' and n.nspname = :schema and c.relname = :name""",
            schema=self.place.schema,
            name=self.place.name,
        )
        return (found[0][0] if found else None), {row[1] for row in found}

    def _look(self) -> None:
        found = self._session.rows(
            """select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), t.typcategory in ('S', 'V') from pg_catalog.pg_attribute a
            join pg_catalog.pg_type t on t.oid = a.atttypid
            join pg_catalog.pg_class c on c.oid = a.attrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            where n.nspname = :schema and c.relname = :name and a.attnum > 0 and not a.attisdropped order by a.attnum""",
            schema=self.place.schema,
            name=self.place.name,
        )
        self.columns = {row[0]: row[1] for row in found}
        self._assigned = frozenset(row[0] for row in found if row[2])

    def _server_version(self) -> int:
        if self._version is None:
            self._version = int(self._session.rows("select current_setting('server_version_num')")[0][0])
        return self._version

    def retype(self, name: str, kind: str, using: str) -> None:
        self._session.run(f"alter table {self.place.sql} alter column {quoted(name)} type {kind} using {using}")
        self.columns[name] = kind


def as_text(name: str, kind: str) -> str:
    """The expression for the column's canonical text."""
    return f"left({quoted(name)}::text, 1)" if kind == "boolean" else f"{quoted(name)}::text"
