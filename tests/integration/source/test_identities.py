"""What each version of Postgres demands of a published table before it takes updates and deletes, and that nobody here demands less."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.source import connect, read_publication
from cdc.source.facts import read_facts
from cdc.source.problems import find_problems
from tests.conftest import Database

SECONDS = 60.0 if "HEADWATER_FAULTS" in os.environ else 3.0
"""For the combinations of one test and version; all of them take a minute or two."""
LEAST = 150
"""So many are tried on the busiest machine."""
ROLES = Path(__file__).parents[3] / "deploy/roles.sql"

KEYS = (
    "",
    "primary key (a)",
    "primary key (a, g)",
    "primary key (g)",
    "primary key (a) deferrable",
    "unique (a)",
    "unique (a, g)",
    "unique (a) deferrable",
    "primary key (a), unique (b)",
    "exclude (a with =)",
)
IDENTITIES = ("default", "full", "nothing", "using index one_a_key", "using index one_a_g_key", "using index one_b_key")
GENERATED = ("g int not null", "g int generated always as (a + 1) stored not null", "g int generated always as (a + 1) virtual")
LISTS = ("", "(a)", "(a, b)", "(b)", "(a, b, g)")
OPTIONS = ("", "publish_generated_columns = stored")


def some(seed: int, *choices: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Combinations in random order, all of them where there is the time."""
    combinations = list(product(*choices))
    random.Random(seed).shuffle(combinations)
    until = time.monotonic() + SECONDS
    return (one for _, one in takewhile(lambda numbered: numbered[0] < LEAST or time.monotonic() < until, enumerate(combinations)))


def taken(sql: psycopg.Connection[Any], statement: str) -> bool:
    """False when the server refuses the statement; what it does is kept."""
    try:
        with sql.transaction():
            sql.execute(statement.encode())
    except (psycopg.errors.Error, psycopg.errors.FeatureNotSupported):
        return False
    return True


def works(sql: psycopg.Connection[Any], table: str) -> bool:
    """Whether the server takes updates and deletes of the (empty) table."""
    return taken(sql, f"update {table} set b = b") and taken(sql, f"delete from {table}")


@pytest.fixture
def sql(pg_versions: Database) -> psycopg.Connection[Any]:
    connection = pg_versions.connect()
    psql = [str(pg_versions.server.binary("psql")), "-Xqd", pg_versions.dsn, "-v", "role=postgres", "-v", "schema=public"]
    subprocess.run([*psql, "-f", str(ROLES)], check=True, timeout=120)
    return connection


@pytest.fixture
def ours(pg_versions: Database) -> Iterator[psycopg.Connection[Any]]:
    with connect(pg_versions.dsn) as connection:
        yield connection


def disagreements(sql: psycopg.Connection[Any], ours: psycopg.Connection[Any], table: str) -> list[str]:
    """Whether the trigger or capture take the table (in publication p) for the contrary of what the server does."""
    row = sql.execute(
        "select headwater.ddl_breaks(%s::regclass, p.oid) from pg_publication p where pubname = 'p'", (table,)
    ).fetchone()
    assert row is not None
    refused = not works(sql, table)
    known = read_publication(ours, "p")
    assert known is not None
    facts = read_facts(ours, "p", published=True)
    problems = find_problems(ours, facts, computed=known.computed)
    said = [] if row[0] is refused else [f"the trigger says {row[0]}"]
    return said + (["capture would publish it"] if refused and not problems else [])


def all_made(sql: psycopg.Connection[Any], statements: Sequence[str]) -> bool:
    sql.execute("drop table if exists one; drop publication if exists p")
    return all(taken(sql, statement) for statement in statements if statement)


def test_what_the_server_demands_of_a_table(
    sql: psycopg.Connection[Any], ours: psycopg.Connection[Any], pg_versions: Database, seed: int
) -> None:
    wrong, made = [], 0
    newest = pg_versions.server.version >= 18
    for key, identity, generated, columns, option in some(
        seed, KEYS, IDENTITIES, GENERATED[: 2 + newest], LISTS, OPTIONS[: 1 + newest]
    ):
        statements = (
            f"create table one (a int not null, b int not null, {generated}{', ' if key else ''}{key})",
            f"alter table one replica identity {identity}",
            f"create publication p for table one {columns} {f'with ({option})' if option else ''}",
        )
        if all_made(sql, statements):
            made += 1
            wrong += [(*statements, found) for found in disagreements(sql, ours, "one")]
    assert wrong == []
    assert made > 10


def test_what_the_server_demands_of_partitions(
    sql: psycopg.Connection[Any], ours: psycopg.Connection[Any], pg_versions: Database, seed: int
) -> None:
    wrong, made = [], 0
    newest = pg_versions.server.version >= 18
    keys = ("", "primary key (a)", "primary key (a, b)")
    leaf_keys = ("", "alter table leaf add primary key (a)", "alter table leaf add primary key (a, g)")
    identities = ("default", "full", "nothing", "using index leaf_pkey")
    lists = ("", "(a)", "(a, b)")
    for generated, key, above, leaf, leaf_key, columns, option in some(
        seed, GENERATED[: 2 + newest], keys, identities[:3], identities, leaf_keys, lists, OPTIONS[: 1 + newest]
    ):
        statements = (
            f"create table one (a int not null, b int not null, {generated}{', ' if key else ''}{key}) partition by range (a)",
            f"alter table one replica identity {above}",
            "create table leaf partition of one default",
            leaf_key,
            f"alter table leaf replica identity {leaf}",
            f"create publication p for table one {columns} with (publish_via_partition_root = true{', ' + option if option else ''})",
        )
        if all_made(sql, statements):
            made += 1
            wrong += [(*statements, found) for found in disagreements(sql, ours, "one")]
    assert wrong == []
    assert made > 10
