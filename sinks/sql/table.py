"""One table in the target database: its columns as the catalog has them, and the changes that make them fit a definition.

A column keeps its name and takes the type of ``column_type``. Where a value is none of that type (a store whose policy keeps the former definition is given
such), the column becomes text, which holds everything. Columns that somebody has added by himself stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.errors import StopState, StoreError
from cdc.model.topic import TopicField, TopicSchema
from sinks.reshape import origins
from sinks.sql.database import DataRefused, SqlSession
from sinks.sql.kinds import TEXT, column_type
from sinks.sql.names import IDENTITY, TableSign, TargetPlace, literal, quoted

_HAS_INPUT_IS_VALID: Final = 160_000
"""The first server version with pg_input_is_valid."""
_MOST_ARGUMENTS: Final = 90
"""A function takes a hundred."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A relation that is at a place: its OID, kind (pg_class.relkind) and comment."""

    oid: int
    kind: str
    sign: TableSign | None


def standing(session: SqlSession, place: TargetPlace) -> Occupant | None:
    """The relation at the place; None where there is none."""
    found = session.rows(
        """select c.oid::bigint, c.relkind::text, pg_catalog.obj_description(c.oid, 'pg_class')
        from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where n.nspname = :schema and c.relname = :name""",
        schema=place.schema,
        name=place.name,
    )
    return Occupant(found[0][0], found[0][1], TableSign.of(found[0][2])) if found else None


def signed_tables(session: SqlSession, store: str) -> Iterator[tuple[TargetPlace, TableSign]]:
    """Every table whose comment says that it is of this store, of whatever log."""
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


def refused(place: TargetPlace, whose: str) -> StoreError:
    """``whose``: what is said of the table that stands where the store's is to be."""
    return StoreError(
        f"the table {place} in the database {whose}",
        retryable=False,
        hint='give this store another database, or a schema of its own: namespace = "copy_{schema}"',
    )


def digested(schema: TopicSchema) -> bool:
    """Whether rows are told apart by all they hold, and so in the table by a digest of it: NULL, long and unordered values have no index."""
    return schema.identity == "row" and bool(schema.key) and all(field.key for field in schema.fields)


def key_columns(schema: TopicSchema) -> tuple[str, ...]:
    """The columns of the table's primary key; none where nothing tells rows apart."""
    return (IDENTITY,) if digested(schema) else tuple(field.name for field in schema.key)


def digest(schema: TopicSchema, alias: str) -> str:
    """The expression for ``IDENTITY`` over a row with the schema's columns. ``%L`` keeps NULL and every text apart from each other."""
    names = [f"{alias}.{quoted(name)}" for name in schema.names]
    pieces = [names[at : at + _MOST_ARGUMENTS] for at in range(0, len(names), _MOST_ARGUMENTS)]
    texts = " || ',' || ".join(f"format({literal(','.join(['%L'] * len(piece)))}, {', '.join(piece)})" for piece in pieces)
    return f"sha256(convert_to({texts}, 'UTF8'))"


class TargetTable:
    """Lives as long as one transaction."""

    def __init__(self, session: SqlSession, place: TargetPlace) -> None:
        self.place = place
        self._session = session
        self._version: int | None = None
        self.columns: dict[str, str] = {}
        """Name → type, as the catalog has them now."""
        self._look()

    @classmethod
    def made(cls, session: SqlSession, schema: TopicSchema, place: TargetPlace, sign: TableSign) -> TargetTable:
        """A new, empty table."""
        if not session.rows("select 1 from pg_catalog.pg_namespace where nspname = :name", name=place.schema):
            session.run(f"create schema {quoted(place.schema)}")
        session.run(f"create table {place.sql} ({', '.join(_definitions(schema))})")
        table = cls(session, place)
        table.sign(sign)
        table._tell_apart(schema)
        return table

    @property
    def oid(self) -> int:
        found = standing(self._session, self.place)
        assert found is not None
        return found.oid

    def sign(self, sign: TableSign) -> None:
        self._session.run(f"comment on table {self.place.sql} is {literal(sign.text())}")

    def empty(self) -> None:
        """DELETE: unlike TRUNCATE it waits for no reader, and whoever has begun to read goes on."""
        self._session.run(f"delete from {self.place.sql}")

    def evolve(self, old: TopicSchema, new: TopicSchema, *, emptied: bool) -> None:
        """Rows under ``old`` become what they would be under ``new``. ``emptied``: there are none."""
        came = {} if emptied and old.holding != new.holding else origins(old, new)
        self._keep_columns(
            old, {name: field.name for name, field in came.items() if field is not None and field.name in self.columns}
        )
        for field in new.fields:
            self._fit(field, emptied=emptied)
        self._tell_apart(new, anew=digested(new) and not emptied and (not digested(old) or set(came) != set(old.names)))

    def replace_columns(self, known: Sequence[str], schema: TopicSchema) -> None:
        """Makes those of an empty table what the schema wants. ``known``: columns that were the store's before."""
        wanted = {field.name: column_type(field) for field in schema.fields}
        for name in known:
            if name in self.columns and self.columns[name] != wanted.get(name):
                self._drop(name)
        for field in schema.fields:
            if self.columns.get(field.name) not in (None, wanted[field.name]):
                self._drop(field.name)
            self._fit(field, emptied=True)
        self._tell_apart(schema)

    def fits(self, schema: TopicSchema) -> bool:
        """Whether nothing has to change before rows of the schema are written, whatever else is there."""
        return all(self.columns.get(field.name) == column_type(field) for field in schema.fields) and (
            self._primary_key()[1] == set(key_columns(schema))
        )

    def admit(self, schema: TopicSchema) -> None:
        """Adds the columns that rows of the schema have and the table lacks."""
        for field in schema.fields:
            if field.name not in self.columns:
                self._add(field.name, column_type(field))

    def become_text(self, name: str) -> None:
        self._retype(name, TEXT, f"{quoted(name)}::text" if self.columns[name] != "boolean" else f"left({quoted(name)}::text, 1)")

    def _keep_columns(self, old: TopicSchema, kept: Mapping[str, str]) -> None:
        """``kept``: new name → the name until now. The others that were the definition's go."""
        staying = set(kept.values())
        for name in old.names:
            if name in self.columns and name not in staying:
                self._drop(name)
        moved = {now: new for new, now in kept.items() if new != now}
        for number, now in enumerate(moved):
            self._rename(now, f"_cdc_moving_{number}")
        for number, new in enumerate(moved.values()):
            if new in self.columns:  # somebody's own
                raise refused(self.place, f"has a column {new} of its own, which a column of the source is called now")
            self._rename(f"_cdc_moving_{number}", new)

    def _fit(self, field: TopicField, *, emptied: bool) -> None:
        name, wanted = field.name, column_type(field)
        there = self.columns.get(name)
        if there is None:
            self._add(name, wanted)
        elif there != wanted:
            if wanted == TEXT:
                self.become_text(name)
            elif emptied:
                self._retype(name, wanted, f"null::{wanted}")
            else:
                self._retype_what_fits(name, wanted)

    def _retype_what_fits(self, name: str, wanted: str) -> None:
        """A value that is none of the new type becomes NULL: the rows of such a change are read again."""
        text = f"{quoted(name)}::text"
        if self._server_version() >= _HAS_INPUT_IS_VALID:
            valid = f"pg_input_is_valid({text}, {literal(wanted)})"
            self._retype(name, wanted, f"case when {valid} then {text}::{wanted} end")
            return
        try:
            with self._session.attempt():
                self._retype(name, wanted, f"{text}::{wanted}")
        except DataRefused:
            self._look()
            self._retype(name, wanted, f"null::{wanted}")

    def _tell_apart(self, schema: TopicSchema, *, anew: bool = False) -> None:
        """The primary key. ``anew``: the digests of the rows that are there are of other columns."""
        wanted = key_columns(schema)
        constraint, there = self._primary_key()
        if there == set(wanted) and not anew:
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
        self.columns = {
            row[0]: row[1]
            for row in self._session.rows(
                """select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) from pg_catalog.pg_attribute a
                join pg_catalog.pg_class c on c.oid = a.attrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                where n.nspname = :schema and c.relname = :name and a.attnum > 0 and not a.attisdropped order by a.attnum""",
                schema=self.place.schema,
                name=self.place.name,
            )
        }

    def _server_version(self) -> int:
        if self._version is None:
            self._version = int(self._session.rows("select current_setting('server_version_num')")[0][0])
        return self._version

    def _add(self, name: str, kind: str) -> None:
        self._session.run(f"alter table {self.place.sql} add column {quoted(name)} {kind}")
        self.columns[name] = kind

    def _drop(self, name: str) -> None:
        self._session.run(f"alter table {self.place.sql} drop column {quoted(name)}")
        del self.columns[name]

    def _rename(self, name: str, new: str) -> None:
        self._session.run(f"alter table {self.place.sql} rename column {quoted(name)} to {quoted(new)}")
        self.columns[new] = self.columns.pop(name)

    def _retype(self, name: str, kind: str, using: str) -> None:
        self._session.run(f"alter table {self.place.sql} alter column {quoted(name)} type {kind} using {using}")
        self.columns[name] = kind


def _definitions(schema: TopicSchema) -> Iterator[str]:
    if IDENTITY in schema.names:
        raise StoreError(
            f"{schema.topic} has a column {IDENTITY}, which is ours", retryable=False, hint=f"cdc resume {StopState.STORE_REFUSES}"
        )
    for field in schema.fields:
        yield f"{quoted(field.name)} {column_type(field)}"
