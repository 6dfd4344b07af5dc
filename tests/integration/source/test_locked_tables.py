"""Whoever owns one captured table may lock it for as long as he likes: what concerns the others goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.settings.models import Source
from cdc.source import connect, sight
from cdc.source.catalog import find_tables
from cdc.source.checks import check_source
from cdc.source.facts import read_facts
from cdc.source.membership import read_membership
from cdc.source.publication import ensure_publication, read_publication, refuse_unreadable
from cdc.source.rows import SourceRows, snapshot
from snapshots.catalog import Locked, load_tables, looks, reload_tables
from snapshots.requests import Request, Requests
from tests.conftest import Database
from tests.integration.capture.running import Capture

SOON_S = 30.0
"""A look is taken every three seconds; the rest is for a machine with much else to do."""


@pytest.fixture
def locked(pg_versions: Database) -> Iterator[psycopg.Connection[Any]]:
    """The connection of who has locked ``mine`` and a partition, in a transaction that does not end."""
    with pg_versions.connect() as sql:
        sql.execute("create table mine (id int primary key, v text); create table other (id int primary key, v text)")
        sql.execute("create table parted (id int, at int, primary key (id, at)) partition by range (at)")
        sql.execute("create table parted_1 partition of parted for values from (0) to (9)")
        sql.execute(
            "create index on mine (v); insert into mine values (1, 'a'), (7, 'b'); insert into other values (1, 'a'), (7, 'b')"
        )
    with pg_versions.connect(autocommit=False) as owner:
        yield owner
        owner.rollback()


def lock(owner: psycopg.Connection[Any]) -> None:
    owner.execute("lock table mine, parted_1 in access exclusive mode")


@pytest.mark.parametrize(
    "covered",
    ["for all tables", "for tables in schema public", "for table mine where (id > 5), other where (id > 5), parted"],
    ids=["all", "schema", "filtered"],
)
def test_no_question_about_the_catalog_waits(pg_versions: Database, locked: psycopg.Connection[Any], covered: str) -> None:
    with pg_versions.connect() as sql:
        sql.execute(f"create publication cdc {covered} with (publish_via_partition_root = true)".encode())
    untold = {"public.mine"} if "where" in covered else set()
    lock(locked)
    with connect(pg_versions.dsn) as asking:
        asking.execute("set statement_timeout = '5s'")
        tables = {facts.name: facts for facts in read_facts(asking, "cdc", published=True)}
        assert tables.keys() == {"mine", "other", "parted"}
        publication = read_publication(asking, "cdc")
        assert publication is not None
        assert len(publication.tables) == len(tables)
        assert len(read_membership(asking, "cdc").tables) == len(tables)
        found = find_tables(asking)
        refuse_unreadable(asking, "cdc", found)
        assert len(
            ensure_publication(asking, Source(dsn=SecretStr(pg_versions.dsn), tables=("public.*",)), found, begun=True)
        ) == len(tables)
        assert [source.name for source in load_tables(asking, ("*",), "cdc")] == ["public.mine", "public.other", "public.parted"]
        oids = [facts.oid for facts in tables.values()]
        read = reload_tables(asking, oids, ["*"], "cdc")
        assert read.keys() == looks(asking, oids).keys() == set(oids)
        # Without its row filter nothing of a table may be read.
        assert {source.name for source, problem in read.values() if isinstance(problem, Locked)} == untold
        assert {source.name for source, _ in read.values() if source.untold} == untold
        source = Source(dsn=SecretStr(pg_versions.dsn), tables=("public.*",))
        assert not [finding for finding in check_source(asking, source, log_has_begun=False) if finding.level == "fail"]
        with snapshot(asking):
            rows = SourceRows(asking, tables["other"].table(), "cdc")
            assert sum(len(batch) for batch in rows.scan()) == (1 if "where" in covered else 2)
        locked.rollback()
        assert not any(source.untold or problem for source, problem in reload_tables(asking, oids, ["*"], "cdc").values())


def test_capture_goes_on_with_the_other_tables(pg_versions: Database, locked: psycopg.Connection[Any], tmp_path: Path) -> None:
    """A new table, a changed one, one that is read again, and capture when it starts again."""
    capture = Capture(pg_versions.dsn, tmp_path, slot=f"s_{pg_versions.name}", tables=("public.*",))
    with pg_versions.connect() as sql:
        with capture.running():
            capture.until_snapshot_done()
            lock(locked)
            sql.execute("create table fresh (id int primary key, v text); alter table other add column w int default 5")
            capture.until(lambda: published(sql, "fresh"), "for the new table", deadline_s=SOON_S)
            sql.execute("insert into fresh values (1, 'x')")
            capture.until(lambda: "public.fresh" in capture.topics(), "for its row", deadline_s=SOON_S)
            capture.until(lambda: widened(capture), "for the new column", deadline_s=SOON_S)
            requests = Requests(capture.settings.log.dir)
            name = requests.queue(Request("public.other"))
            capture.until(lambda: requests.outcome(name).state == "done", "for the snapshot", deadline_s=SOON_S)
        capture.until_released(sql)
        with capture.running():
            sql.execute("insert into other values (9, 'again', 9); create table late (id int primary key)")
            capture.until(lambda: ("9",) in capture.rows("public.other"), "after the restart", deadline_s=SOON_S)
            capture.until(lambda: published(sql, "late"), "for a table after the restart", deadline_s=SOON_S)
            assert capture.status.left_out == []
            locked.rollback()
            capture.until_snapshot_done()


def published(sql: psycopg.Connection[Any], table: str) -> bool:
    row = sql.execute(
        "select from pg_publication_rel r join pg_class c on c.oid = r.prrelid where c.relname = %s", (table,)
    ).fetchone()
    return row is not None


def widened(capture: Capture) -> bool:
    return all(row.get("w") == "5" for row in capture.rows("public.other").values())


def test_looks_that_keep_failing_are_a_problem_with_who_is_in_the_way(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody but a superuser can lock: the catalog itself, as VACUUM FULL does."""
    monkeypatch.setattr(sight, "BLIND_S", 1.0)
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", tables=("public.*",))
    with postgres.connect() as sql, postgres.connect() as other:
        sql.execute("create table t (id int primary key)")
        other.execute("create table headwater_stranger (id int primary key)")
        with capture.running():
            capture.until_snapshot_done()
            assert capture.status.left_out == []
            other.execute("begin; lock table headwater_stranger, pg_inherits in access exclusive mode")
            pid = other.info.backend_pid
            capture.until(lambda: capture.status.left_out != [], "for the problem", deadline_s=SOON_S)
            (line,) = capture.status.left_out
            assert line.startswith(
                "capture cannot look at the catalog (canceling statement due to lock timeout): new tables are not captured"
            )
            assert f"pid {pid} has locked pg_inherits" in line
            assert line.endswith(f"wait, or select pg_terminate_backend({pid})")
            other.execute("rollback")
            capture.until(lambda: capture.status.left_out == [], "for sight", deadline_s=SOON_S)
