"""Every case in one capture over one database, with the event trigger and without it; each case in a schema of its own."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.source import watch
from tests.conftest import Database, PostgresServers, _database
from tests.integration.capture.running import Capture
from tests.integration.capture.test_capture import lsn
from tests.integration.schema.cases import CASES, Case
from tests.integration.schema.folding import Row, fold

DEADLINE_S = 120.0
ROLES = Path(__file__).parents[3] / "deploy/roles.sql"
NAMES = {case.name: f"c{number}" for number, case in enumerate(CASES)}


@dataclass
class Played:
    capture: Capture
    database: Database
    trigger: bool

    def topics(self, case: Case) -> list[str]:
        return [topic % NAMES[case.name] for topic in case.records]

    def log(self, topic: str) -> tuple[list[Row], list[str]]:
        rows, changes = fold(self.capture.batches(topic)) if topic in self.capture.topics() else ([], [])
        return rows, [f"{change.kind}{'!' * change.empties}" for _, change in changes]

    def source(self, topic: str) -> list[Row]:
        """What the table has now, nothing when it is gone."""
        connection = self.database.connect()
        for name, value in PINNED_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        try:
            captured = "select 1 from pg_class where oid = to_regclass(%s) and not relispartition"
            if connection.execute(captured, (topic,)).fetchone() is None:
                return []
            with connection.cursor() as cursor, cursor.copy(f"copy (select * from {topic}) to stdout") as copy:
                return sorted(copy.rows(), key=repr)
        finally:
            connection.close()

    def equal(self, case: Case) -> bool:
        return all(self.log(topic)[0] == self.source(topic) for topic in self.topics(case))

    def expected(self, case: Case, topic: str) -> list[str]:
        records = case.records if self.trigger or case.polled is None else case.polled
        return list(records[topic])


@pytest.fixture(scope="module", params=["trigger", "poll"])
def played(
    request: pytest.FixtureRequest, postgres_servers: PostgresServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    server = postgres_servers.of(18)
    trigger = request.param == "trigger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "INTERVAL_S", 1.0 if trigger else 0.3)
        between_steps = threading.Lock()
        looks = counted_looks(patch, between_steps)
        for database in _database(server):
            sql = database.connect()
            if trigger:
                psql = [str(server.binary("psql")), "-Xqd", database.dsn, "-v", f"role={server_user(sql)}", "-v", "schema=public"]
                subprocess.run([*psql, "-f", str(ROLES)], check=True, timeout=DEADLINE_S)
                sql.execute("drop publication if exists cdc")
            for case in CASES:
                sql.execute(f"create schema {NAMES[case.name]}")
                run(sql, case, case.setup)
            sql.execute("create publication cdc for all tables with (publish_via_partition_root = true)")
            capture = Capture(database.dsn, tmp_path_factory.mktemp("schema"), tables=("c*.*",), slot=f"s_{database.name}")
            with capture.running():
                capture.until_snapshot_done()
                for case in CASES:
                    for step in case.steps:
                        with between_steps:
                            run(sql, case, step)
                result = Played(capture, database, trigger)
                deadline = time.monotonic() + DEADLINE_S
                left = list(CASES)
                while left and time.monotonic() < deadline:
                    left = [case for case in left if not result.equal(case)]
                    time.sleep(0.2)
                # Whatever is told twice has come by then: the last look found nothing to tell that the ones before had not told.
                looks.clear()
                capture.until(lambda: len(looks) >= 3, "for looks at the catalog")
                capture.until_lsn(lsn(sql))
                capture.until_snapshot_done()
                yield result


def counted_looks(patch: pytest.MonkeyPatch, allowed: threading.Lock) -> list[None]:
    """Gets longer with each look at the catalog that has ended; none begins while somebody else holds ``allowed``."""
    ended: list[None] = []
    look = watch.CatalogWatch._look

    def counted(self: watch.CatalogWatch, connection: psycopg.Connection) -> None:
        with allowed:
            look(self, connection)
        ended.append(None)

    patch.setattr(watch.CatalogWatch, "_look", counted)
    return ended


def run(sql: psycopg.Connection[Any], case: Case, statements: str) -> None:
    sql.execute(f"set search_path = {NAMES[case.name]}")
    for statement in statements.split("; "):
        if statement:
            sql.execute(statement)


def server_user(sql: psycopg.Connection[Any]) -> str:
    return str(sql.info.user)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_schema_change_becomes_records_and_the_rows_stay_equal(played: Played, case: Case) -> None:
    for topic, name in zip(played.topics(case), case.records, strict=True):
        rows, records = played.log(topic)
        assert rows == played.source(topic)
        expected = played.expected(case, name)
        if not played.trigger:
            records = [kind for kind, _ in groupby(records)]
        if expected[:1] == ["…"]:
            expected = expected[1:]
            records = records[-len(expected) :]
        assert records == expected
