"""A random workload from one seed: everything that a service does to its tables, a transaction at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

SCHEMA: Final = """
create table accounts (id int primary key, owner text not null, balance numeric(12,2), note text, seen timestamptz);
create table items (shop int, code text, price float8, tags int[], primary key (code, shop));
create table events (id int, kind text, body text);
alter table events replica identity full;
"""
FIRST_ROWS: Final = 40


class Workload:
    """``step`` runs one random transaction (some are rolled back). ``ddl``: columns come, go and change their names as well."""

    def __init__(self, chance: random.Random, *, ddl: bool = False) -> None:
        self.chance = chance
        self._next = FIRST_ROWS + 1
        self._columns: list[str] = []
        self._ddl = ddl
        self.calm = False
        """No TRUNCATE and no DDL: a slot that is made in the middle of one may never be able to decode it."""
        self.done = 0

    def fill(self, connection: psycopg.Connection[Any]) -> None:
        """The tables, and rows for the snapshot to find."""
        connection.execute(SCHEMA)
        for number in range(1, FIRST_ROWS + 1):
            self._insert_account(connection, number)
            connection.execute(
                "insert into items values (%s, %s, %s, %s)", (number % 4, f"code {number}", self.chance.random(), [number, None])
            )
            connection.execute("insert into events values (%s, %s, %s)", (number, "first", None))

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """One transaction, committed unless the dice say otherwise. ``connection`` in autocommit."""
        kinds: list[tuple[int, Callable[[psycopg.Connection[Any]], None]]] = [
            (8, self._mixed), (2, self._copy), (2, self._savepoints), (1, self._rolled_back), (0 if self.calm else 1, self._truncate), (1, self._wide),
            (1 if self._ddl and not self.calm else 0, self.alter),
        ]  # fmt: skip
        [chosen] = self.chance.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        chosen(connection)
        self.done += 1

    # --- kinds of transactions -----------------------------------------------------------------------------------------------

    def _mixed(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(self.chance.randrange(1, 8)):
                self._one(connection)

    def _copy(self, connection: psycopg.Connection[Any]) -> None:
        with connection.cursor() as cursor, cursor.copy("copy events (id, kind, body) from stdin") as copy:
            for number in self._numbers(self.chance.randrange(1, 30)):
                copy.write_row((number, "copied", self._text(40)))

    def _savepoints(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            self._one(connection)
            for _ in range(self.chance.randrange(1, 4)):
                with connection.transaction(force_rollback=self.chance.random() < 0.5):
                    self._one(connection)
                    self._one(connection)

    def _rolled_back(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction(force_rollback=True):
            self._one(connection)
            connection.execute("delete from accounts where id %% 2 = %s", (self.chance.randrange(2),))

    def _truncate(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute("truncate events")
            self._one(connection)

    def _wide(self, connection: psycopg.Connection[Any]) -> None:
        """More than logical_decoding_work_mem holds, so that a server that streams does so."""
        with connection.transaction():
            for number in self._numbers(60):
                connection.execute("insert into events values (%s, %s, %s)", (number, "wide", self._text(2500)))
            connection.execute("delete from events where kind = 'wide' and id % 3 > 0")

    def alter(self, connection: psycopg.Connection[Any]) -> None:
        """A column comes, goes or is renamed, and a row is written under the new definition."""
        with connection.transaction():
            if not self._columns or self.chance.random() < 0.4:
                name = f"more {self._next}"
                self._next += 1
                connection.execute(sql.SQL("alter table accounts add column {} text").format(sql.Identifier(name)))
                self._columns.append(name)
            elif self.chance.random() < 0.5:
                name = self._columns.pop(self.chance.randrange(len(self._columns)))
                connection.execute(sql.SQL("alter table accounts drop column {}").format(sql.Identifier(name)))
            else:
                at = self.chance.randrange(len(self._columns))
                now = f"renamed {self._next}"
                self._next += 1
                connection.execute(
                    sql.SQL("alter table accounts rename column {} to {}").format(
                        sql.Identifier(self._columns[at]), sql.Identifier(now)
                    )
                )
                self._columns[at] = now
            self._insert_account(connection, next(iter(self._numbers(1))))

    # --- single changes ------------------------------------------------------------------------------------------------------

    def _one(self, connection: psycopg.Connection[Any]) -> None:
        self.chance.choice(
            (
                self._insert, self._insert, self._update_small, self._update_small, self._update_wide, self._move_key, self._delete,
                self._item, self._event,
            )
        )(connection)  # fmt: skip

    def _insert(self, connection: psycopg.Connection[Any]) -> None:
        self._insert_account(connection, next(iter(self._numbers(1))))

    def _insert_account(self, connection: psycopg.Connection[Any], number: int) -> None:
        note = self._text(self.chance.choice((0, 20, 3000, 9000))) or None
        values = {
            "id": number,
            "owner": self._text(8),
            "balance": self.chance.choice(("0.10", "-0.00", "NaN", None, "1234567890.12")),
            "note": note,
            "seen": self.chance.choice(("2024-02-29 23:59:59.5+00", "infinity", "0044-03-15 12:00:00+00 BC", None)),
            **{name: self._text(5) for name in self._columns},
        }
        connection.execute(
            sql.SQL("insert into accounts ({}) values ({})").format(
                sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join([sql.Placeholder()] * len(values))
            ),
            list(values.values()),
        )

    def _update_small(self, connection: psycopg.Connection[Any]) -> None:
        """The wide note stays as it is, so the stream leaves it out."""
        connection.execute("update accounts set owner = %s where id %% 7 = %s", (self._text(8), self.chance.randrange(7)))

    def _update_wide(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "update accounts set note = %s where id = (select id from accounts order by id offset %s limit 1)",
            (self._text(4000), self.chance.randrange(30)),
        )

    def _move_key(self, connection: psycopg.Connection[Any]) -> None:
        [number] = self._numbers(1)
        connection.execute(
            "update accounts set id = %s where id = (select id from accounts order by id offset %s limit 1)",
            (number, self.chance.randrange(30)),
        )

    def _delete(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "delete from accounts where id = (select id from accounts order by id offset %s limit 1)", (self.chance.randrange(30),)
        )

    def _item(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "insert into items values (%s, %s, %s, %s) on conflict (code, shop) do update set price = excluded.price",
            (self.chance.randrange(4), f"code {self.chance.randrange(60)}", self.chance.random() * 10, [1, None, 3]),
        )

    def _event(self, connection: psycopg.Connection[Any]) -> None:
        [number] = self._numbers(1)
        connection.execute("insert into events values (%s, %s, %s)", (number, "one", self._text(30)))
        connection.execute("update events set kind = 'seen' where id %% 5 = %s", (number % 5,))

    def _numbers(self, count: int) -> list[int]:
        """Never used before."""
        self._next += count
        return list(range(self._next - count, self._next))

    def _text(self, length: int) -> str:
        """Incompressible, so that long ones are really moved out of line."""
        return "".join(self.chance.choices("abcdefghijklmnopqrstuvwxyzäöü0123456789 '\\\t", k=length))
