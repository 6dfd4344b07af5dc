"""Every statement that works without Headwater works with it: the same random statements on a database that is captured and on a twin.

With the event trigger this holds at once, also inside a transaction; without it, once the catalog has been looked at. Capture never ends, and
what it captures is right in the end.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.source import inspection, watch
from tests.conftest import Database, PostgresServers
from tests.integration.capture.running import Capture, counted_looks
from tests.integration.schema.folding import Row, fold
from tests.integration.source.random_schemas import Known, Statements, known_tables

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"
SECONDS = 60.0 if "HEADWATER_FAULTS" in os.environ else 2.5
"""Of statements, for each version and mode."""
LOOKS = 40
"""So many looks at the catalog at most, until what is published is right again: some find tables locked."""
PUBLICATIONS = (
    None,
    None,
    "for table anchor",
    "for table anchor (id, v)",
    "for table anchor where (id > 0)",
    "for all tables",
    "for tables in schema public",
)
"""Made by hand before capture; None: capture makes it."""


class Differs(AssertionError):
    """A statement works on the twin and not here."""


class Pair:
    """The captured database and its twin."""

    def __init__(self, here: psycopg.Connection[Any], twin: psycopg.Connection[Any]) -> None:
        self.here, self.twin = here, twin
        self.history: list[str] = []
        self.refused = 0

    def do(self, *statements: str) -> bool:
        """All of them in one transaction; False when the twin refuses, and nothing was done."""
        if not self._works(self.twin, statements):
            self.refused += 1
            return False
        self.history.append("; ".join(statements))
        with self.here.transaction():
            for statement in statements:
                try:
                    self.here.execute(statement.encode())
                except psycopg.Error as error:
                    raise Differs(f"{statement}: {str(error).splitlines()[0]}") from None
        return True

    @staticmethod
    def _works(connection: psycopg.Connection[Any], statements: Sequence[str]) -> bool:
        try:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
        except psycopg.Error:
            return False
        return True


@pytest.fixture(params=[15, 16, 17, 18], ids=lambda version: f"pg{version}")
def databases(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> Iterator[tuple[Database, Database]]:
    server = postgres_servers.of(request.param)
    made = [Database(server, f"test_{uuid.uuid4().hex[:12]}") for _ in range(2)]
    for database in made:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f'create database "{database.name}"')
    yield made[0], made[1]
    for database in made:
        database.drop()


@pytest.mark.parametrize("trigger", [True, False], ids=["trigger", "polling"])
def test_statements_work_as_without_headwater(
    databases: tuple[Database, Database], trigger: bool, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.05)
    monkeypatch.setattr(inspection, "UNSETTLED_S", 0.1)
    chance = random.Random(seed)
    here, _ = databases
    pair = Pair(databases[0].connect(), databases[1].connect())
    publication = chance.choice(PUBLICATIONS)
    pair.do("create table anchor (id int primary key, v text)")
    if publication is not None:
        pair.do(f"create publication cdc {publication} with (publish_via_partition_root = true)")
    if trigger:
        psql = [str(here.server.binary("psql")), "-Xqd", here.dsn, "-v", "role=postgres", "-v", "schema=public", "-f", str(ROLES)]
        subprocess.run(psql, check=True, timeout=120)
    looks = counted_looks(monkeypatch)
    capture = Capture(here.dsn, tmp_path, tables=("public.*",), slot=f"s_{here.name}")
    try:
        with capture.running():
            capture.until_snapshot_done()
            play(pair, chance, capture, looks, trigger=trigger)
            pair.do("insert into anchor values (7, 'alive')")
            capture.until(lambda: ("7", "alive") in content(capture, "anchor"), "for the row that comes last")
            agree(pair, capture)
    except BaseException as error:
        pair.history.append(f"-- {error}")
        print(f"seed {seed}, trigger {trigger}, publication {publication}", *pair.history, sep="\n")
        raise


def play(pair: Pair, chance: random.Random, capture: Capture, looks: list[int], *, trigger: bool) -> None:
    statements = Statements(chance, pair.twin.info.server_version // 10_000)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        tables = known_tables(pair.twin)
        changes = [statements.definition(tables) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        if trigger and tables and chance.random() < 0.5:
            changes += statements.rows(chance.choice(tables))[:2]
        if not pair.do(*changes):
            continue
        asked = [one for table in known_tables(pair.twin) for one in statements.rows(table)]
        if trigger:
            for statement in asked:
                pair.do(statement)
        else:
            once_looked_at(pair, asked, looks)
        if capture.error is not None:
            raise capture.error


def once_looked_at(pair: Pair, asked: Sequence[str], looks: list[int]) -> None:
    """A look that has begun before the change does not count; then each statement has to work, within a few more."""
    enough = looks[0] + 2
    most = looks[0] + LOOKS
    deadline = time.monotonic() + 60
    while looks[0] < enough and time.monotonic() < deadline:
        time.sleep(0.005)
    for statement in asked:
        if not pair._works(pair.twin, [statement]):
            continue
        pair.history.append(statement)
        while not pair._works(pair.here, [statement]):
            if looks[0] > most or time.monotonic() > deadline:
                raise Differs(f"{statement}, {looks[0] - most + LOOKS} looks later")
            time.sleep(0.02)


# --- what capture has of it --------------------------------------------------------------------------------------------------


def content(capture: Capture, table: str) -> list[Row]:
    topic = f"public.{table}"
    return fold(capture.batches(topic))[0] if topic in capture.topics() else []


def agree(pair: Pair, capture: Capture) -> None:
    """Every table that status does not name is in the log as it is here."""

    def unequal() -> list[str]:
        left_out = {line.split()[1] for line in capture.status.left_out if line.startswith("table ")}
        tables = [table for table in known_tables(pair.here) if not table.partition and f"public.{table.name}" not in left_out]
        return [table.name for table in tables if sorted(content(capture, table.name)) != rows(pair, table)]

    capture.until(lambda: not unequal(), "for equal tables")


def rows(pair: Pair, table: Known) -> list[Row]:
    """The published columns of the table itself (of a partitioned one: of all partitions)."""
    (names,) = pair.here.execute(
        "select array_to_string(attnames, ',') from pg_publication_tables where pubname = 'cdc' and tablename = %s", (table.name,)
    ).fetchone() or ("",)
    generated = {
        name
        for (name,) in pair.here.execute(
            "select attname::text from pg_attribute where attrelid = %s::regclass and attgenerated <> '' and not attisdropped",
            (table.name,),
        )
    }
    listed = [name for name in names.split(",") if name and name not in generated]
    if not listed:
        return []
    scope = "only " if table.kind == "r" else ""
    found = pair.here.execute(
        f"select {', '.join(f'{name}::text' for name in listed)} from {scope}{table.name}".encode()
    ).fetchall()
    return sorted(found)
