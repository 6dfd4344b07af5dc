"""An application whose tables change under it: rows for whatever columns there are, and random DDL of every kind that stores have to follow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tests.end_to_end.traffic import Traffic

_TABLES: Final = """
select c.oid::regclass::text, c.relname, c.relkind = 'p'
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'public' and c.relkind in ('r', 'p') and not c.relispartition
  and exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
order by c.relname
"""
_COLUMNS: Final = """
select a.attname, format_type(a.atttypid, null), a.attnum = any (coalesce(i.indkey::int2[], '{}'))
from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_KEYS: Final = 5000
"""Numbers that serve as keys; partitions end at their half."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str
    key: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A table with a primary key. ``quoted`` stands in SQL."""

    quoted: str
    name: str
    parted: bool
    columns: tuple[Column, ...]

    @property
    def key(self) -> list[Column]:
        return [column for column in self.columns if column.key]

    @property
    def plain(self) -> list[Column]:
        return [column for column in self.columns if not column.key]


def targets(connection: psycopg.Connection[Any]) -> list[Target]:
    return [
        Target(quoted, name, parted, tuple(Column(*row) for row in connection.execute(_COLUMNS, [quoted]).fetchall()))
        for quoted, name, parted in connection.execute(_TABLES).fetchall()
    ]


def value(chance: random.Random, column: Column) -> str:
    """A value as SQL; for a key one of few, so that keys meet again. Some fit none of the stores' types."""
    if not column.key and chance.random() < 0.15:
        return "null"
    number = chance.randrange(_KEYS if column.key else 10**6)
    match column.kind:
        case "integer" | "bigint" | "smallint":
            return str(number if column.key else number % 30_000)
        case "numeric" if not column.key:
            return chance.choice([f"{number / 100:.2f}", "-0.00", "'NaN'"])
        case "numeric" | "double precision" | "real":
            return str(number)
        case "boolean":
            return chance.choice(["true", "false"])
        case "date":
            return (
                f"date '2013-01-01' + {number % 3000}"
                if column.key
                else chance.choice(["'infinity'", f"date '2013-01-01' + {number % 3000}"])
            )
        case "timestamp with time zone":
            return f"timestamptz '2013-01-01' + interval '{number} s'"
        case "mood":
            return f"(enum_range(null::mood))[1 + {number} % array_length(enum_range(null::mood), 1)]"
        case "pair":
            return f'jsonb_populate_record(null::pair, \'{{"x": {number % 9}, "y": "{number}"}}\')'
        case "text[]":
            return f"array['{number}', null, 'a\"b']"
        case _:
            # Long ones stand beside the row, so that an update which leaves them alone leaves them out of the stream.
            return f"'k{number}'" if column.key else chance.choice([f"'v{number}'", f"'v{number}'", f"(select string_agg(md5(g::text || {number}), '') from generate_series(1, 80) g)"])  # fmt: skip


def insert(chance: random.Random, table: Target, count: int = 1) -> str:
    names = ", ".join(quoted(column.name) for column in table.columns)
    rows = ", ".join(f"({', '.join(value(chance, column) for column in table.columns)})" for _ in range(count))
    return f"insert into {table.quoted} ({names}) values {rows} on conflict do nothing"


def quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _some(chance: random.Random, table: Target, count: int) -> str:
    keys = ", ".join(quoted(column.name) for column in table.key)
    return f"({keys}) in (select {keys} from {table.quoted} order by {keys} offset {chance.randrange(30)} limit {count})"


def change(chance: random.Random, table: Target) -> str:
    """One random statement on rows."""
    at, plain, key = chance.random(), table.plain, table.key
    some = _some(chance, table, chance.choice([1, 3, 10]))
    if at < 0.35 or not key:
        return insert(chance, table, chance.choice([1, 1, 3, 20]))
    if at < 0.72 and plain:
        column = chance.choice(plain)
        return f"update {table.quoted} set {quoted(column.name)} = {value(chance, column)} where {some}"
    if at < 0.82:
        return f"delete from {table.quoted} where {some}"
    if at < 0.90:
        column = chance.choice(key)
        return f"update {table.quoted} set {quoted(column.name)} = {value(chance, column)} where {_some(chance, table, 1)}"
    if at < 0.92:
        return f"truncate {table.quoted}"
    return insert(chance, table, 30)


class AnyRows(Traffic):
    """Writes whatever the tables take by now. A statement that a change of definitions has overtaken is rolled back and counts for nothing."""

    pause_s = 0.05
    overtaken: Final = (
        psycopg.errors.ProgrammingError,
        psycopg.errors.DataError,
        psycopg.errors.IntegrityError,
        psycopg.errors.InternalError_,
        psycopg.errors.NotSupportedError,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.LockNotAvailable,
    )

    def transaction(self, connection: psycopg.Connection[Any]) -> None:
        connection.prepare_threshold = None
        try:
            found = targets(connection)
            for _ in range(self.chance.choice([1, 1, 1, 4])):
                connection.execute(change(self.chance, self.chance.choice(found)))  # type: ignore[call-overload]
            connection.commit()
            self.done += 1
        except self.overtaken:
            connection.rollback()


class Definitions:
    """Random DDL. ``step`` does one thing, whatever the tables are by then; what Postgres refuses is left as it was."""

    def __init__(self, chance: random.Random, connection: psycopg.Connection[Any]) -> None:
        """connection: in autocommit."""
        self.chance = chance
        self.done: list[str] = []
        """What was done, for whoever looks for a failure's cause."""
        self._connection = connection
        self._numbers = itertools.count(1)

    def fill(self) -> None:
        self._connection.execute("create type mood as enum ('good', 'bad'); create type pair as (x int, y text)")
        for _ in range(3):
            self._execute(self._new_table())
        self._execute("create table parted (id int not null, v text, m mood, primary key (id)) partition by range (id)")
        self._execute(f"create table parted_1 partition of parted for values from (minvalue) to ({_KEYS // 2})")
        self._execute(f"create table parted_2 partition of parted for values from ({_KEYS // 2}) to (maxvalue)")
        for table in targets(self._connection):
            self._execute(insert(self.chance, table, 200))

    def step(self) -> None:
        found = targets(self._connection)
        if len(found) < 3:
            self._execute(self._new_table())
            return
        self._execute(self.chance.choice(list(self._choices(self.chance.choice(found), found))))

    def _execute(self, statements: str) -> None:
        """Several statements are one transaction."""
        self.done.append(statements)
        try:
            with self._connection.transaction():
                self._connection.execute("set local lock_timeout = '5s'")
                self._connection.execute(statements)  # type: ignore[call-overload]
        except (*AnyRows.overtaken, psycopg.errors.ObjectNotInPrerequisiteState) as refused:
            self.done[-1] += f" -- {type(refused).__name__}"

    def _kind(self) -> str:
        return self.chance.choice(["int", "text", "numeric(10,2)", "numeric", "bigint", "date", "mood", "pair", "text[]", "float8"])

    def _new_table(self) -> str:
        return f"create table t{self.chance.randrange(6)} (id int primary key, v text, w {self._kind()}, x {self._kind()})"

    def _choices(self, table: Target, all_of_them: list[Target]) -> Iterator[str]:
        chance, t, n, row = self.chance, table.quoted, next(self._numbers), lambda: insert(self.chance, table)
        yield f"alter table {t} add column c{n} {self._kind()}"
        yield f"alter table {t} add column d{n} int default {n}"
        yield f"alter table {t} add column e{n} float8 default random()"
        yield f"alter table {t} rename to t{chance.randrange(6)}"
        yield f"truncate {t}"
        yield f"alter table {t} replica identity {chance.choice(['full', 'default'])}"
        yield f"alter type mood rename value '{self._label()}' to 'r{n}'"
        yield f"{row()}; alter table {t} add column f{n} text default 'f'; {row()}"
        if not table.parted:
            yield f"drop table {t}"
            yield f"drop table {t}; create table {t} (id {chance.choice(['int', 'bigint', 'text'])} primary key, v text, w {self._kind()})"
            yield from self._other_keys(table)
        else:
            yield from self._partitions(table)
        if len(table.plain) > 1:
            one, other = (quoted(column.name) for column in chance.sample(table.plain, 2))
            yield f"alter table {t} drop column {one}"
            yield f"alter table {t} drop column {one}; alter table {t} add column {one} {self._kind()}"
            yield f"alter table {t} rename column {one} to n{n}"
            yield f"alter table {t} rename {one} to aside; alter table {t} rename {other} to {one}; alter table {t} rename aside to {other}"
            yield f"alter table {t} alter column {one} type text using left({one}::text, 9)"
            yield f"alter table {t} alter column {one} type varchar(4000)"
        if len(all_of_them) > 1:
            other = chance.choice([found for found in all_of_them if found is not table])
            yield f"alter table {t} rename to aside; alter table {other.quoted} rename to {quoted(table.name)}; alter table aside rename to {quoted(other.name)}"

    def _label(self) -> str:
        found = self._connection.execute("select enumlabel from pg_enum order by random() limit 1").fetchone()
        assert found is not None
        return str(found[0])

    def _other_keys(self, table: Target) -> Iterator[str]:
        [(name,)] = self._connection.execute(
            "select conname from pg_constraint where conrelid = %s::regclass and contype = 'p'", [table.quoted]
        ).fetchall()
        key = [quoted(column.name) for column in table.key]
        yield f"alter table {table.quoted} alter column {key[0]} type {self.chance.choice(['bigint', 'text'])}"
        if len(key) > 1:
            yield f"truncate {table.quoted}; alter table {table.quoted} drop constraint {quoted(name)}, add primary key ({key[0]})"
        elif table.plain:
            more = quoted(self.chance.choice(table.plain).name)
            yield (
                f"delete from {table.quoted} where {more} is null; "
                f"alter table {table.quoted} drop constraint {quoted(name)}, add primary key ({key[0]}, {more})"
            )

    def _partitions(self, table: Target) -> Iterator[str]:
        found = self._connection.execute(
            "select c.oid::regclass::text, pg_get_expr(c.relpartbound, c.oid) from pg_inherits i join pg_class c on c.oid = i.inhrelid "
            "where i.inhparent = %s::regclass order by random() limit 1", [table.quoted],
        ).fetchone()  # fmt: skip
        if found is not None:
            leaf, bound = found
            again = f"alter table {table.quoted} attach partition {leaf} {bound}"
            yield f"alter table {table.quoted} detach partition {leaf}; delete from {leaf} where {quoted(table.key[0].name)} % 3 = 0; {again}"
            yield f"truncate {leaf}"
            yield f"alter table {table.quoted} detach partition {leaf}"
        yield from self._attachments(table)

    def _attachments(self, table: Target) -> Iterator[str]:
        """Of partitions that were detached: they have their former names."""
        for leaf, bound in (("parted_1", f"from (minvalue) to ({_KEYS // 2})"), ("parted_2", f"from ({_KEYS // 2}) to (maxvalue)")):
            yield f"alter table {table.quoted} attach partition {leaf} for values {bound}"
