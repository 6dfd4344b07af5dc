"""What changes while capture is away, and what a reconnect says: nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.source import inspection, watch
from cdc.source.facts import FILE
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.schema.folding import Row, fold


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.2)


@pytest.fixture
def sql(postgres: Database) -> psycopg.Connection[Any]:
    """To a database that publishes three tables with rows: one to leave as it is, one to give another type, one in partitions."""
    connection = postgres.connect()
    connection.execute(
        """
        create table kept (id int primary key, v text); insert into kept values (1, 'a');
        create table retyped (id int primary key, v text); insert into retyped values (1, 'abc');
        create table parted (id int primary key) partition by range (id);
        create table p1 partition of parted for values from (0) to (10); create table p2 partition of parted for values from (10) to (20);
        insert into parted values (1), (11);
        create publication cdc for all tables with (publish_via_partition_root = true);
        """
    )
    return connection


def records(capture: Capture, topic: str) -> list[str]:
    return [f"{change.kind}{'!' * change.empties}" for _, change in fold(capture.batches(topic))[1]]


def rows(capture: Capture, topic: str) -> list[Row]:
    return fold(capture.batches(topic))[0]


def test_what_changes_while_capture_is_away(postgres: Database, sql: psycopg.Connection[Any], tmp_path: Path) -> None:
    sql.execute(
        """
        create table gone (id int primary key); insert into gone values (1);
        create table again (id int primary key); insert into again values (1);
        create table moved (id int primary key); insert into moved values (1);
        """
    )
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
    with capture.running():
        capture.until_snapshot_done()
        sql.execute("insert into kept values (2, 'b')")
        capture.until(lambda: len(rows(capture, "public.kept")) == 2)
    sql.execute(
        """
        drop table gone;
        drop table again; create table again (id bigint primary key);
        alter table moved rename to elsewhere;
        alter table retyped alter v type int using length(v);
        alter table parted detach partition p1; drop table p1;
        create table fresh (id int primary key); insert into fresh values (5);
        """
    )
    sql.execute("insert into kept values (3, 'c')")
    with capture.running():
        expected = {
            "public.kept": [],
            "public.gone": ["dropped!"],
            "public.moved": ["renamed!"],
            "public.elsewhere": [],
            "public.retyped": ["altered", "rewritten"],
            "public.parted": ["rewritten!"],
            "public.fresh": [],
        }
        content = {
            "public.kept": 3,
            "public.gone": 0,
            "public.moved": 0,
            "public.elsewhere": 1,
            "public.parted": 1,
            "public.fresh": 1,
        }
        capture.until(
            lambda: set(content) <= set(capture.topics()) and all(len(rows(capture, t)) == n for t, n in content.items()),
            "for rows",
        )
        capture.until(lambda: rows(capture, "public.retyped") == [("1", "3")], "for the retyped row")
        capture.until(
            lambda: rows(capture, "public.again") == [] and records(capture, "public.again")[-1:] == ["created!"],
            "for the new table",
        )
        assert {topic: records(capture, topic) for topic in expected} == expected
        capture.until_snapshot_done()
    head = capture.reader.head().position
    with capture.running():
        sql.execute("insert into kept values (4, 'd')")
        capture.until(lambda: len(rows(capture, "public.kept")) == 4)
        sql.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (f"s_{postgres.name}",)
        )
        sql.execute("insert into kept values (5, 'e')")
        capture.until(lambda: len(rows(capture, "public.kept")) == 5)
    said = {topic: changes for topic in capture.topics() if (changes := capture.changes(topic, head))}
    assert {topic: [op for _, op, _ in changes] for topic, changes in said.items()} == {"public.kept": ["c", "c"]}


def test_what_changed_is_found_without_what_capture_last_saw_of_the_tables(
    postgres: Database, sql: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """catalog.json is lost while it is away, and what happened to stored rows is in no event."""
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
    with capture.running():
        capture.until_snapshot_done()
    (capture.settings.log.dir / FILE).unlink()
    sql.execute("alter table retyped alter v type int using length(v); alter table parted detach partition p1")
    with capture.running():
        capture.until(
            lambda: rows(capture, "public.retyped") == [("1", "3")] and rows(capture, "public.parted") == [("11",)], "for the rows"
        )
        capture.until(lambda: len(rows(capture, "public.kept")) == 1 and records(capture, "public.kept") == ["rewritten!"])
        capture.until_snapshot_done()
    head = capture.reader.head().position
    with capture.running():
        sql.execute("insert into kept values (2, 'b')")
        capture.until(lambda: len(rows(capture, "public.kept")) == 2)
    assert {topic: len(changes) for topic in capture.topics() if (changes := capture.changes(topic, head))} == {"public.kept": 1}


def test_a_table_that_is_named_and_then_dropped_holds_no_other_up(postgres: Database, tmp_path: Path) -> None:
    """Neither the next start, nor a reconnect, nor the look that takes new tables in."""
    sql = postgres.connect()
    sql.execute("create table kept (id int primary key); create table gone (id int primary key); insert into gone values (1)")
    tables = ("public.kept", "public.gone", "later.*")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", tables=tables)
    with capture.running():
        capture.until(lambda: "public.gone" in capture.topics() and len(rows(capture, "public.gone")) == 1)
        sql.execute("drop table gone; create view gone as select 1 as id; insert into kept values (1)")
        capture.until(lambda: records(capture, "public.gone") == ["dropped!"] and len(rows(capture, "public.kept")) == 1)
        sql.execute("create schema later; create table later.one (id int primary key); insert into later.one values (1)")
        capture.until(lambda: "later.one" in capture.topics() and len(rows(capture, "later.one")) == 1, "for the new table")
    with capture.running():
        sql.execute("insert into kept values (2)")
        capture.until(lambda: len(rows(capture, "public.kept")) == 2)
        sql.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid is not null and database = current_database()"
        )
        sql.execute("insert into kept values (3)")
        capture.until(lambda: len(rows(capture, "public.kept")) == 3)


def test_a_table_that_leaves_the_publication_stops_capture(postgres: Database, tmp_path: Path) -> None:
    sql = postgres.connect()
    sql.execute("create table t (id int primary key); insert into t values (1); create table u (id int primary key)")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
    capture.start()
    try:
        capture.until_snapshot_done()
        sql.execute("insert into t values (2); alter publication cdc drop table t")
        assert "TABLE_UNPUBLISHED" in str(capture.failure())
        assert records(capture, "public.t") == ["unpublished"]
        assert rows(capture, "public.t") == [("1",), ("2",)]
    finally:
        capture.stop()


def test_a_new_table_joins_a_publication_of_single_tables(postgres: Database, tmp_path: Path) -> None:
    sql = postgres.connect()
    sql.execute("create table t (id int primary key)")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
    with capture.running():
        capture.until_snapshot_done()
        sql.execute("create table late (id int)")
        sql.execute("insert into late select generate_series(1, 3)")
        sql.execute("alter table late add primary key (id)")
        capture.until(lambda: "public.late" in capture.topics() and len(rows(capture, "public.late")) == 3, "for the late table")
        sql.execute("insert into late values (4)")
        capture.until(lambda: len(rows(capture, "public.late")) == 4)


def test_a_row_of_a_filled_table_comes_before_the_look_that_sees_it_join(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 1.0)
    sql = postgres.connect()
    sql.execute("create table t (id int primary key); create publication cdc for table t with (publish_via_partition_root = true)")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", tables=("public.*",))
    with capture.running():
        capture.until_snapshot_done()
        sql.execute(
            "create table late (id int primary key); insert into late values (1), (2); alter publication cdc add table late"
        )
        sql.execute("insert into late values (3)")
        capture.until(lambda: "public.late" in capture.topics() and len(rows(capture, "public.late")) == 3, "for the late table")


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many looks at the catalog have ended."""
    ended: list[None] = []
    look = watch.CatalogWatch._look

    def counted(self: watch.CatalogWatch, connection: psycopg.Connection) -> None:
        look(self, connection)
        ended.append(None)

    monkeypatch.setattr(watch.CatalogWatch, "_look", counted)
    return lambda: len(ended)


@pytest.mark.parametrize(
    ("end", "then", "topic", "left"),
    [
        ("alter table bare add primary key (id)", "update bare set v = 'c' where id = 1", "public.bare", [("1", "c"), ("2", "b")]),
        (
            "alter table parted attach partition bare for values from (0) to (10)",
            "update parted set v = 'c' where id = 1",
            "public.parted",
            [("1", "c"), ("2", "b")],
        ),
    ],
)
def test_a_table_that_gets_its_identity_one_transaction_later_ends_nothing(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, then: str, topic: str, left: list[Row]
) -> None:
    monkeypatch.setattr(inspection, "UNSETTLED_S", 3600.0)
    looks = counted_looks(monkeypatch)
    sql = postgres.connect()
    sql.execute("create publication cdc for all tables with (publish_via_partition_root = true)")
    sql.execute("create table parted (id int primary key, v text) partition by range (id)")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", tables=("public.*",))
    with capture.running():
        capture.until_snapshot_done()
        sql.execute("begin; create table bare (id int not null, v text); insert into bare values (1, 'a'); commit")
        seen = looks()
        capture.until(lambda: looks() >= seen + 3, "for looks at the table without identity")
        sql.execute("insert into bare values (2, 'b')")
        sql.execute(end)
        sql.execute(then)
        capture.until(lambda: rows(capture, topic) == left, "for the rows")


def test_a_table_that_stays_without_identity_is_named_and_ends_nothing(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "UNSETTLED_S", 0.5)
    sql = postgres.connect()
    sql.execute("create publication cdc for all tables; create table kept (id int primary key)")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", tables=("public.*",))
    with capture.running():
        capture.until_snapshot_done()
        sql.execute("create table bare (id int not null, v text); insert into bare values (1, 'a')")
        capture.until(lambda: any("public.bare" in line and "no primary key" in line for line in capture.status.left_out), "for it")
        sql.execute("insert into kept values (1); insert into bare values (2, 'b')")
        capture.until(lambda: rows(capture, "public.kept") == [("1",)], "for the other table")
        assert "public.bare" not in capture.topics()
        sql.execute("alter table bare add primary key (id)")
        capture.until(lambda: "public.bare" in capture.topics() and len(rows(capture, "public.bare")) == 2, "for its rows")
        capture.until(lambda: not capture.status.left_out, "for the line to go")


@pytest.mark.parametrize("end", ["drop table brief", "alter table parted attach partition brief for values from (0) to (10)"])
def test_a_table_that_is_gone_before_any_look_sees_it(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 2.0)
    sql = postgres.connect()
    sql.execute("create publication cdc for all tables with (publish_via_partition_root = true)")
    sql.execute("create table parted (id int primary key) partition by range (id)")
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", tables=("public.*",))
    with capture.running():
        capture.until_snapshot_done()
        sql.execute("begin; create table brief (id int primary key); insert into brief values (1), (2); commit")
        sql.execute(end)
        capture.until(lambda: "public.brief" in capture.topics(), "for the rows")
        capture.until(lambda: records(capture, "public.brief") == ["dropped!"], "for the end")
        assert rows(capture, "public.brief") == []
