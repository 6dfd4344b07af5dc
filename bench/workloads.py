"""What bench/capture drains, by name: each makes its tables, publishes them and writes ``changes`` changes behind the slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg

from bench.orders import PUBLICATION, ROW, TRANSACTION, create_orders, load_changes

SLOT: Final = "bench"
"""The slot that has the changes before it. Peers read copies of it."""
WIDE_COLUMNS: Final = 40
TABLES: Final = 1000
TABLES_TRANSACTION: Final = 10


@dataclass(frozen=True, slots=True)
class Workload:
    create: Callable[[psycopg.Connection], None]
    load: Callable[[psycopg.Connection, int], None]
    changes: int
    """As many as measured by default."""


def _create_wide(connection: psycopg.Connection) -> None:
    """40 columns, about 1.6 kB of text a row: half of it in one column, the rest numbers, times and short texts."""
    kinds = ("bigint", "numeric(12,2)", "timestamptz", "text")
    columns = ", ".join(f"c{n} {kinds[n % 4]}" for n in range(WIDE_COLUMNS - 2))
    connection.execute(f"create table wide (id bigint primary key, {columns}, note text)")
    connection.execute(f"create publication {PUBLICATION} for table wide")


def _load_wide(connection: psycopg.Connection, changes: int) -> None:
    values = (
        "g * 1000 + {n}",
        "(g % 100000) * 0.25",
        "timestamptz '2026-01-01 00:00:00.123456+00' + g * interval '1 second'",
        "'value ' || g * {n}",
    )
    row = ", ".join(values[n % 4].format(n=n) for n in range(WIDE_COLUMNS - 2))
    _run(connection, changes // TRANSACTION, f"insert into wide select g, {row}, repeat(md5(g::text), 27) from "
         f"generate_series(k * {TRANSACTION} + 1, (k + 1) * {TRANSACTION}) g")  # fmt: skip


def _create_tables(connection: psycopg.Connection) -> None:
    """1,000 small tables."""
    for first in range(0, TABLES, 100):
        with connection.transaction():
            for n in range(first, first + 100):
                connection.execute(f"create table t{n} (id bigint primary key, status text, amount numeric(12,2), at timestamptz)")
    connection.execute(f"create publication {PUBLICATION} for all tables")


def _load_tables(connection: psycopg.Connection, changes: int) -> None:
    """Transactions of 10 rows, in 5 tables each; which, goes round."""
    one = "execute format('insert into t%s select $1 * 10 + g, ''new'', g * 0.25, now() from generate_series(1, 2) g', (k * 5 + {n}) % {tables}) using k"
    _run(connection, changes // TABLES_TRANSACTION, "; ".join(one.format(n=n, tables=TABLES) for n in range(5)))


def _run(connection: psycopg.Connection, transactions: int, statements: str) -> None:
    connection.execute("set synchronous_commit = off")
    connection.execute(
        "create or replace procedure load(transactions int) language plpgsql as $$ declare k int; begin "
        f"for k in 0 .. transactions - 1 loop {statements}; commit; end loop; end $$"
    )
    connection.execute(f"call load({transactions})")
    connection.execute("set synchronous_commit = on")
    connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")


def _load_one(connection: psycopg.Connection, changes: int) -> None:
    """All in one transaction."""
    connection.execute(f"insert into orders select {ROW} from generate_series(1, {changes}) g")
    connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")


WORKLOADS: Final = {
    "orders": Workload(create_orders, load_changes, 1_000_000),
    "wide": Workload(_create_wide, _load_wide, 200_000),
    "tables": Workload(_create_tables, _load_tables, 300_000),
    "large": Workload(create_orders, _load_one, 10_000_000),
}
