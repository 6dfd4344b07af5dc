"""A partition, or another table, that somebody has locked stands in nobody's way: neither a statement on another partition nor a look at the catalog waits for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.source.facts import read_facts
from cdc.source.leaves import leaf_problems
from snapshots.catalog import looks
from tests.conftest import Database

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"
LIMITED = "-c lock_timeout=2s"
PARTITIONS = 6
SCHEMA = (
    "create table big (id int, at int, v text, primary key (id, at)) partition by range (at)",
    *(f"create table big_{i} partition of big for values from ({i}) to ({i + 1})" for i in range(PARTITIONS)),
    "alter table big_5 rename to deep_leaf",
    "alter table big detach partition deep_leaf",
    "create table deep partition of big for values from (5) to (100) partition by range (id)",
    "alter table deep attach partition deep_leaf for values from (0) to (10)",
    "create table mine (id int primary key)",
    "create table deep_other partition of deep for values from (10) to (20)",
)
STATEMENTS = (
    "create table big_more partition of big for values from (100) to (101)",
    "alter table big_4 set (fillfactor = 90)",
    "alter table deep_other set (fillfactor = 90)",
    "create index on big_4 (v)",
    "comment on table big is 'x'",
    "alter table big_4 replica identity nothing",
    "alter table big_4 replica identity default",
    "drop table big_more",
    "create table another (id int primary key, v text)",
    "alter publication cdc add table another",
    "alter table another drop constraint another_pkey",
    "alter table another add primary key (id)",
    "drop table another",
)


@pytest.fixture
def busy(pg_versions: Database) -> Iterator[psycopg.Connection[Any]]:
    """The application's connection; one partition on each level has been locked by another transaction, which does not end, and so has
    a table of its own."""
    sql = pg_versions.connect()
    for statement in SCHEMA:
        sql.execute(statement.encode())
    run = [
        str(pg_versions.server.binary("psql")),
        "-Xqd",
        pg_versions.dsn,
        "-v",
        f"role=r_{pg_versions.name}",
        "-v",
        "schema=public",
    ]
    subprocess.run([*run, "-f", str(ROLES)], check=True, timeout=120)
    with pg_versions.connect(autocommit=False) as other:
        other.execute("truncate big_2")
        other.execute("truncate deep_leaf")
        other.execute("lock table mine in access exclusive mode")
        yield sql
        other.rollback()
    sql.execute(f"drop owned by r_{pg_versions.name}".encode())
    sql.execute(f"drop role r_{pg_versions.name}".encode())


def test_a_statement_waits_for_no_other_partition(busy: psycopg.Connection[Any]) -> None:
    busy.execute("set statement_timeout = '10s'")
    for statement in STATEMENTS:
        busy.execute(statement.encode())
    with busy.transaction():
        busy.execute("alter table big_4 set (fillfactor = 80)")
        locked = {name for (name,) in busy.execute("select relation::regclass::text from pg_locks where pid = pg_backend_pid()")}
    assert not locked & {"big_0", "big_1", "big_3", "deep"}, "somebody may come to wait for these"


@pytest.mark.usefixtures("busy")
def test_a_look_at_the_catalog_waits_for_no_partition(pg_versions: Database) -> None:
    with pg_versions.connect(options=LIMITED) as looking:
        oid = looking.execute("select 'big'::regclass::oid::int8").fetchone()
        assert oid is not None
        (facts,) = read_facts(looking, "cdc", oid)
        assert len(facts.leaves) == PARTITIONS + 1
        assert leaf_problems(looking, oid, listed=[], computed=False) == {}
        assert looks(looking, list(oid)).keys() == set(oid)


@pytest.mark.usefixtures("busy")
def test_what_is_told_of_partitions(pg_versions: Database) -> None:
    """Each leaf with its own link and those above it, up to the table that is looked at."""
    with pg_versions.connect(options=LIMITED) as looking:
        names = dict(looking.execute("select oid::int8, relname from pg_class where relkind in ('r', 'p')"))
        oids = {name: oid for oid, name in names.items()}
        made = dict(looking.execute("select inhrelid::int8, xmin::text from pg_inherits"))
        whole, alone, plain = read_facts(looking, "cdc", [oids["big"], oids["deep"], oids["big_1"]])
        told = {facts.name: {names[oid]: leaf.joined for oid, leaf in facts.leaves.items()} for facts in (whole, alone, plain)}
        deep = sorted((oids["deep"], oids["deep_leaf"]))
        assert told["big"]["deep_leaf"] == " ".join(made[oid] for oid in deep)
        assert told["big"]["big_1"] == made[oids["big_1"]]
        assert told["deep"] == {name: made[oids[name]] for name in ("deep_leaf", "deep_other")}
        assert told["big_1"] == {"big_1": ""}
