"""Random statements over random tables: definitions that come, change and go, and what an application does with the rows meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

MOST_TABLES: Final = 9
_TABLES: Final = """
select c.relname::text, c.relkind::text, c.relispartition,
       array(select conname::text from pg_constraint where conrelid = c.oid and contype in ('p', 'u', 'x', 'c') order by 1),
       array(select indexrelid::regclass::text from pg_index where indrelid = c.oid order by 1),
       array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped and attname <> 'u' order by 1)
from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and c.relname <> 'anchor' order by 1
"""


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    kind: str
    partition: bool
    constraints: Sequence[str]
    indexes: Sequence[str]
    columns: Sequence[str]


def known_tables(connection: psycopg.Connection[Any]) -> list[Known]:
    return [Known(*row) for row in connection.execute(_TABLES).fetchall()]


class Statements:
    """Every row has another ``u``, so that no two rows of a table are equal."""

    def __init__(self, chance: random.Random, version: int) -> None:
        self._chance = chance
        self._newest = version >= 18
        self._number = 0
        self._makers: tuple[tuple[int, Callable[[Sequence[Known]], str]], ...] = (
            (3, self._table),
            (2, self._child),
            (2, self._root),
            (4, self._leaf),
            (8, self._constraint),
            (8, self._identity),
            (5, self._column),
            (2, self._index),
            (4, self._belonging),
            (2, self._name),
            (2, self._drop),
        )

    def definition(self, tables: Sequence[Known]) -> str:
        """A DDL statement, which the server may refuse."""
        if not tables:
            return self._table(tables)
        if len(tables) > MOST_TABLES:
            return self._drop(tables)
        weights, makers = zip(*self._makers, strict=True)
        return self._chance.choices(makers, weights)[0](tables)

    def rows(self, table: Known) -> list[str]:
        """What an application may do with a table, each in a transaction of its own or all in one."""
        n, low = self._next(), self._chance.randrange(0, 300)
        into = f"insert into {table.name} (id, b, v, u) values ({low}, {low % 7}, 'a', {n})"
        text = "v = v || '!'" if "v" in table.columns else f"b = {low}"
        return [
            into,
            f"update {table.name} set {text}",
            self._chance.choice(
                [
                    f"update only {table.name} set {text}",
                    f"delete from {table.name} where id % 5 = {low % 5}",
                    f"{into.replace(str(n), str(self._next()))} on conflict do nothing",
                    f"insert into {table.name} (id, b, v, u) values ({low}, 1, 'c', {self._next()}) on conflict (id) do update set v = 'd'",
                    f"merge into {table.name} t using (select {low} as k) s on t.id = s.k when matched then delete",
                    f"merge into {table.name} t using (select {low} as k) s on t.id = s.k when matched then update set v = 'm'",
                    f"truncate {table.name}",
                    f"update {table.name} set id = id + 1000 where id = {low} and b = 99",
                ]
            ),
            f"delete from {table.name} where u = {n}",
        ]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _one(self, tables: Sequence[Known], kind: str = "") -> Known:
        return self._chance.choice([table for table in tables if not kind or table.kind == kind] or tables)

    def _generated(self, name: str) -> str:
        virtual = self._newest and self._chance.random() < 0.4
        return f"{name} int generated always as (id % 3) {'virtual' if virtual else 'stored'}"

    def _key(self, among: Sequence[str] = ()) -> str:
        return self._chance.choice(
            [
                "primary key (id)",
                "primary key (id)",
                "primary key (id, b)",
                "primary key (id, g)",
                "primary key (id) deferrable",
                "unique (id)",
                "unique (id, b)",
                "unique (id, g)",
                "unique (id) deferrable",
                *among,
            ]
        )

    def _columns(self) -> str:
        listed = ["id int not null", "b int not null default 0", "v text", "u bigint not null"]
        if self._chance.random() < 0.25:
            listed.append(self._generated("g"))
        if self._chance.random() < 0.75:
            listed.append(self._key())
        return ", ".join(listed)

    def _table(self, _: Sequence[Known]) -> str:
        return f"create table t{self._next()} ({self._columns()})"

    def _child(self, tables: Sequence[Known]) -> str:
        key = self._key() if self._chance.random() < 0.5 else ""
        return f"create table c{self._next()} ({key}) inherits ({self._one(tables, 'r').name})"

    def _root(self, _: Sequence[Known]) -> str:
        return f"create table r{self._next()} ({self._columns()}) partition by range (id)"

    def _leaf(self, tables: Sequence[Known]) -> str:
        begin = self._chance.choice([0, 100, 200])
        values = self._chance.choice(["default", f"for values from ({begin}) to ({begin + 100})"])
        below = self._chance.choice(["", "", "", " partition by range (id)"])
        return f"create table l{self._next()} partition of {self._one(tables, 'p').name} {values}{below}"

    def _constraint(self, tables: Sequence[Known]) -> str:
        table = self._one(tables)
        dropped = f"drop constraint {self._chance.choice(table.constraints)}" if table.constraints else ""
        added = f"add {self._key()}"
        changes = self._chance.choice([dropped, added, f"{dropped}, {added}" if dropped else added])
        return f"alter table {table.name} {changes or added}"

    def _identity(self, tables: Sequence[Known]) -> str:
        table = self._one(tables)
        choices = ["default", "full", "nothing", *[f"using index {index}" for index in table.indexes]]
        return f"alter table {table.name} replica identity {self._chance.choice(choices)}"

    def _column(self, tables: Sequence[Known]) -> str:
        table = self._one(tables)
        column = self._chance.choice(table.columns or ["id"])
        change = self._chance.choice(
            [
                f"add column n{self._next()} int",
                f"add column n{self._next()} int not null default 7",
                f"add column {self._generated(self._chance.choice(['g', f'n{self._next()}']))}",
                f"drop column {column}",
                f"drop column {column} cascade",
                f"alter column {column} drop not null",
                f"alter column {column} set not null",
                f"alter column {column} type bigint",
                f"alter column {column} drop expression",
            ]
        )
        return f"alter table {table.name} {change}"

    def _index(self, tables: Sequence[Known]) -> str:
        table = self._one(tables)
        made = f"create unique index on {table.name} ({self._chance.choice(['id', 'id, b', 'u', 'b, u', 'id) where (b > 0'])})"
        dropped = f"drop index {self._chance.choice(table.indexes)}" if table.indexes else made
        return self._chance.choice([made, dropped])

    def _belonging(self, tables: Sequence[Known]) -> str:
        one, other, begin = self._one(tables), self._one(tables), self._chance.choice([0, 100, 200])
        return self._chance.choice(
            [
                f"alter table {self._one(tables, 'p').name} attach partition {one.name} for values from ({begin}) to ({begin + 100})",
                f"alter table {self._one(tables, 'p').name} attach partition {one.name} default",
                f"alter table {self._one(tables, 'p').name} detach partition {one.name}",
                f"alter table {one.name} inherit {other.name}",
                f"alter table {one.name} no inherit {other.name}",
            ]
        )

    def _name(self, tables: Sequence[Known]) -> str:
        table = self._one(tables)
        column = self._chance.choice(table.columns or ["id"])
        return self._chance.choice(
            [f"alter table {table.name} rename to m{self._next()}", f"alter table {table.name} rename {column} to n{self._next()}"]
        )

    def _drop(self, tables: Sequence[Known]) -> str:
        return f"drop table {self._one(tables).name}{self._chance.choice(['', ' cascade'])}"
