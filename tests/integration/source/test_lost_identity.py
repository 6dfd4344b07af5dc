"""Whatever is done to a publication, statements that worked before work after it, and one table that cannot be captured concerns no other."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.errors import Stopped
from cdc.source import connect, watch
from cdc.source.checks import check_source
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.schema.folding import Row, fold

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"
RARELY_S = 5.0
"""Not never: the stream may ask for a look at a commit that nobody else sees yet."""
KEPT = "create table kept (id int primary key, v text)"


@dataclass
class Scene:
    """``sql`` is the application's; capture runs as the role of deploy/roles.sql, or as the tables' owner where there is no trigger."""

    sql: psycopg.Connection[Any]
    database: Database
    user: str
    folder: Path

    def capture(self, *tables: str) -> Capture:
        dsn = self.database.server.dsn(self.database.name, user=self.user)
        return Capture(dsn, self.folder, tables=tables or ("public.*",), slot=f"s_{self.database.name}")

    def works(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        for statement in statements:
            self.sql.execute(statement.encode())

    def published(self) -> list[str]:
        return [name for (name,) in self.sql.execute("select tablename::text from pg_publication_tables order by 1")]


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.2)


def roles(database: Database, role: str, *options: str) -> None:
    psql = [str(database.server.binary("psql")), "-Xqd", database.dsn, "-v", f"role={role}", "-v", "schema=public"]
    subprocess.run([*psql, *options, "-f", str(ROLES)], check=True, timeout=120)


@pytest.fixture
def polled(postgres: Database, tmp_path: Path) -> Scene:
    """Capture's role owns the publication; nothing but the catalog tells of definitions."""
    return Scene(postgres.connect(), postgres, "postgres", tmp_path)


@pytest.fixture
def polled_versions(pg_versions: Database, tmp_path: Path) -> Scene:
    return Scene(pg_versions.connect(), pg_versions, "postgres", tmp_path)


@pytest.fixture
def triggered(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from _triggered(postgres, tmp_path, monkeypatch)


@pytest.fixture
def triggered_versions(pg_versions: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from _triggered(pg_versions, tmp_path, monkeypatch)


def _triggered(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The event trigger, and a role that may read and replicate only. The catalog is hardly looked at unless the stream asks for it."""
    monkeypatch.setattr(watch, "INTERVAL_S", RARELY_S)
    role = f"reader_{database.name}"
    roles(database, role)
    sql = database.connect()
    yield Scene(sql, database, role, tmp_path)
    sql.execute(f"drop owned by {role}; drop role {role}")


def rows(capture: Capture, topic: str) -> list[Row]:
    return fold(capture.batches(topic))[0]


def named(capture: Capture, *words: str) -> Callable[[], bool]:
    """Whether a line of the status has all the words."""
    return lambda: any(all(word in line for word in words) for line in capture.status.left_out)


def goes_on(scene: Scene, capture: Capture, value: str) -> None:
    """The other table is still captured."""
    scene.works(f"insert into kept values ((select count(*) from kept), '{value}')")
    capture.until(lambda: value in [str(row[1]) for row in rows(capture, "public.kept")], f"for {value} in the other table")


# Children by INHERITS


def test_a_child_that_nobody_selected_is_not_published(polled: Scene) -> None:
    polled.works(KEPT, "create table parent (id int primary key, v text)", "create table secret () inherits (parent)")
    polled.works("insert into secret values (1, 'a')")
    capture = polled.capture("public.*", "!public.secret")
    with capture.running():
        capture.until_snapshot_done()
        polled.works("update secret set v = 'b'", "update parent set v = 'c'", "delete from parent where id = 1")
        assert polled.published() == ["kept", "parent"]
        goes_on(polled, capture, "after")


def test_a_parent_and_its_child_that_are_made_at_once_are_both_captured(polled_versions: Scene) -> None:
    polled_versions.works(KEPT)
    capture = polled_versions.capture()
    with capture.running():
        capture.until_snapshot_done()
        polled_versions.works(
            "create table parent (id int primary key); create table child (primary key (id)) inherits (parent); "
            "insert into parent values (1); insert into child values (2)"
        )
        for table, content in (("parent", [("1",)]), ("child", [("2",)])):
            topic = f"public.{table}"
            capture.until(lambda: topic in capture.topics() and rows(capture, topic) == content, f"for {table}")  # noqa: B023
        assert capture.status.left_out == []


def test_a_child_without_key_that_is_made_while_capture_runs(polled_versions: Scene) -> None:
    polled_versions.works(KEPT, "create table parent (id int primary key, v text)", "insert into parent values (1, 'a')")
    capture = polled_versions.capture()
    with capture.running():
        capture.until_snapshot_done()
        polled_versions.works("create table child () inherits (parent)", "insert into child values (2, 'b')")
        capture.until(named(capture, "public.child", "no primary key"), "for the child's line")
        polled_versions.works("update parent set v = 'c'", "delete from parent where id = 2")
        capture.until(lambda: rows(capture, "public.parent") == [("1", "c")], "for the parent")
        goes_on(polled_versions, capture, "after")


# Keys that cannot be published


@pytest.mark.parametrize("first", [True, False])
def test_a_key_with_a_generated_column(polled_versions: Scene, first: bool) -> None:
    table = "create table t (a int, b int generated always as (a % 2) stored, v text, primary key (a, b))"
    polled_versions.works(KEPT, *([table] if first else []))
    capture = polled_versions.capture()
    if first:
        error = capture.start().failure()
        capture.stop()
        assert "public.t has a primary key with a generated column that is not published (b)" in str(error)
        polled_versions.works("insert into t values (1, default, 'a')", "update t set v = 'b'", "drop table t")
    with capture.running():
        capture.until_snapshot_done()
        polled_versions.works(*([] if first else [table]))
        if not first:
            capture.until(named(capture, "public.t", "generated column"), "for the table's line")
        polled_versions.works(*([] if first else ["insert into t values (1, default, 'a')", "update t set v = 'b'"]))
        goes_on(polled_versions, capture, "after")
        assert capture.status.state == "streaming"


# A table loses its identity


LOSSES: Sequence[tuple[str, str, str, str, str]] = (
    (
        "the key is dropped",
        "primary key (id)",
        "alter table t drop constraint t_pkey",
        "alter table t add primary key (id)",
        "no primary key",
    ),
    ("nothing", "primary key (id)", "alter table t replica identity nothing", "alter table t replica identity default", "NOTHING"),
    (
        "the index is dropped",
        "unique (id)); alter table t replica identity using index t_id_key; alter table t add unique (v",
        "alter table t drop constraint t_id_key",
        "alter table t replica identity using index t_v_key",
        "lost the index",
    ),
    (
        "the column of the key is dropped",
        "code int not null default 7, primary key (id, code)",
        "alter table t drop column code",
        "alter table t add primary key (id)",
        "no primary key",
    ),
    (
        "another key is deferrable",
        "primary key (id)",
        "alter table t drop constraint t_pkey; alter table t add primary key (id) deferrable",
        "alter table t drop constraint t_pkey; alter table t add primary key (id)",
        "deferrable",
    ),
)
USE = ("update t set v = v || '!'", "delete from t where id = 3", "insert into t (id, v) values (4, 'd')")


def lose(scene: Scene, capture: Capture, loss: Sequence[str], *, at_once: bool) -> None:
    """And get it back, with a restart of capture at every step."""
    _, _, end, back, word = loss
    with capture.running():
        capture.until_snapshot_done()
        scene.works(end)
        if not at_once:
            capture.until(lambda: "t" not in scene.published(), "for the table to leave")
        scene.works(*USE)
        capture.until(named(capture, "public.t", word), "for its line")
        goes_on(scene, capture, "while it is out")
    with capture.running():
        capture.until_snapshot_done()
        capture.until(named(capture, "public.t", word), "for its line after a restart")
        goes_on(scene, capture, "after a restart")
    scene.works(back, "update t set v = 'back' where id = 1")
    with capture.running():
        capture.until(lambda: sorted(row[:2] for row in rows(capture, "public.t")) == CONTENT, "for its rows")
        capture.until(lambda: not capture.status.left_out, "for the line to go")
        scene.works("update t set v = 'again' where id = 1")
        capture.until(lambda: ("1", "again") in [row[:2] for row in rows(capture, "public.t")], "for the update")
        goes_on(scene, capture, "at the end")


CONTENT = [("1", "back"), ("2", "b!"), ("4", "d")]


def made(scene: Scene, key: str) -> None:
    scene.works(
        KEPT, f"create table t (id int not null, v text not null, {key})", "insert into t values (1, 'a'), (2, 'b'), (3, 'c')"
    )


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss[0])
def test_a_table_leaves_within_a_look_and_comes_back(polled: Scene, loss: Sequence[str]) -> None:
    made(polled, loss[1])
    lose(polled, polled.capture(), loss, at_once=False)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss[0])
def test_a_table_leaves_inside_the_ddl_and_comes_back(triggered_versions: Scene, loss: Sequence[str]) -> None:
    made(triggered_versions, loss[1])
    triggered_versions.works(
        "drop publication if exists cdc", "create publication cdc for table t, kept with (publish_via_partition_root = true)"
    )
    triggered_versions.works(f"grant select on all tables in schema public to {triggered_versions.user}")
    lose(triggered_versions, triggered_versions.capture(), loss, at_once=True)


def test_the_same_transaction_goes_on_with_the_table(triggered: Scene) -> None:
    made(triggered, "primary key (id)")
    triggered.works("create publication cdc for table t, kept", f"grant select on all tables in schema public to {triggered.user}")
    capture = triggered.capture()
    with capture.running():
        capture.until_snapshot_done()
        with triggered.sql.transaction():
            triggered.works("update t set v = 'before' where id = 1", "alter table t drop constraint t_pkey", *USE)
            triggered.works("alter table t add primary key (v)", "update t set id = 10 where v = 'd'")
        capture.until(
            lambda: (
                not capture.status.left_out and sorted(rows(capture, "public.t")) == [("1", "before!"), ("10", "d"), ("2", "b!")]
            )
        )
        with triggered.sql.transaction(force_rollback=True):
            triggered.works("alter table t drop constraint t_pkey", "update t set v = 'never'")
        goes_on(triggered, capture, "after")
        assert triggered.published() == ["kept", "t"]


PARTED = """
create table t (id int not null, v text) partition by range (id); alter table t replica identity full;
create table t_a partition of t for values from (0) to (10); alter table t_a replica identity full; insert into t values (1, 'a');
create publication cdc for table t, kept with (publish_via_partition_root = true)
"""


@pytest.mark.parametrize(
    "end",
    [
        "create table t_b partition of t for values from (10) to (20)",
        "create table t_b (id int not null, v text); insert into t_b values (12, 'x'); alter table t attach partition t_b for values from (10) to (20)",
        "create table t_b partition of t for values from (10) to (20) partition by range (id); create table t_c partition of t_b default",
        "alter table t_a replica identity default",
    ],
)
def test_a_partition_without_identity_takes_its_root_out(triggered: Scene, end: str) -> None:
    triggered.works(KEPT, PARTED, f"grant select on all tables in schema public to {triggered.user}")
    capture = triggered.capture()
    with capture.running():
        capture.until_snapshot_done()
        triggered.works(end, "insert into t values (2, 'b')", "update t set v = 'c'", "delete from t where id = 2")
        capture.until(named(capture, "public.t ", "partition"), "for its line")
        goes_on(triggered, capture, "while it is out")
        leaf = "t_c" if "t_c" in end else "t_b" if "t_b" in end else "t_a"
        triggered.works(f"alter table {leaf} replica identity full", "update t set v = 'd'")
        content = sorted(triggered.sql.execute("select id::text, v from t").fetchall())
        capture.until(lambda: sorted(rows(capture, "public.t")) == content and not capture.status.left_out, "for its rows")


def test_a_generated_column_under_full(triggered_versions: Scene) -> None:
    """Postgres 18 refuses updates with it, where the publication does not publish it."""
    triggered_versions.works(
        KEPT, "create table t (id int primary key, v text)", "alter table t replica identity full", "insert into t values (1, 'a')"
    )
    triggered_versions.works(
        "create publication cdc for table t, kept", f"grant select on all tables in schema public to {triggered_versions.user}"
    )
    capture = triggered_versions.capture()
    with capture.running():
        capture.until_snapshot_done()
        triggered_versions.works("alter table t add g int generated always as (id + 1) stored", "update t set v = 'b'")
        if triggered_versions.database.server.version >= 18:
            capture.until(named(capture, "public.t", "generated columns"), "for its line")
            triggered_versions.works("alter table t replica identity default")
        triggered_versions.works("update t set v = 'c'")
        capture.until(lambda: rows(capture, "public.t") == [("1", "c")] and not capture.status.left_out, "for its row")


def test_an_index_that_is_dropped_by_itself(triggered: Scene) -> None:
    triggered.works(
        KEPT,
        "create table t (id int not null, v text); create unique index i on t (id); alter table t replica identity using index i",
    )
    triggered.works("create publication cdc for table t, kept", f"grant select on all tables in schema public to {triggered.user}")
    capture = triggered.capture()
    with capture.running():
        capture.until_snapshot_done()
        triggered.works("insert into t values (1, 'a')", "drop index i", "update t set v = 'b'")
        capture.until(named(capture, "public.t", "lost the index"), "for its line")
        goes_on(triggered, capture, "after")


def test_a_column_list_does_not_come_back_without_being_asked_for(triggered: Scene) -> None:
    """What it kept from being published would be in the log otherwise."""
    triggered.works(KEPT, "create table t (id int primary key, v text, secret text)", "insert into t values (1, 'a', 'canary')")
    triggered.works(
        "create publication cdc for table t (id, v), kept", f"grant select on all tables in schema public to {triggered.user}"
    )
    capture = triggered.capture()
    with capture.running():
        capture.until_snapshot_done()
        triggered.works("alter table t drop constraint t_pkey", "update t set v = 'b'")
        capture.until(named(capture, "public.t", "no primary key"), "for its line")
        triggered.works("alter table t add primary key (id)", "update t set v = 'c'")
        capture.until(named(capture, "public.t", "had a column list", "ALTER PUBLICATION"), "for its next line")
        goes_on(triggered, capture, "after")
    with capture.running():
        capture.until(named(capture, "public.t", "had a column list"), "for its line after a restart")
        triggered.works("alter publication cdc add table t (id, v)", "update t set v = 'd'")
        capture.until(lambda: rows(capture, "public.t") == [("1", "d")] and not capture.status.left_out, "for its row")
        assert all("secret" not in values for _, _, values in capture.changes("public.t"))


def test_the_column_list_of_a_table_that_we_take_out_does_not_come_back(polled: Scene) -> None:
    polled.works(KEPT, "create table t (id int primary key, v text, secret text)", "insert into t values (1, 'a', 'canary')")
    polled.works("create publication cdc for table t (id, v), kept")
    capture = polled.capture()
    with capture.running():
        capture.until_snapshot_done()
        polled.works("alter table t drop constraint t_pkey")
        capture.until(lambda: "t" not in polled.published(), "for the table to leave")
        polled.works("alter table t add primary key (id)")
        capture.until(named(capture, "public.t", "had a column list"), "for its line")
    with capture.running():
        capture.until(named(capture, "public.t", "had a column list"), "for its line after a restart")
        assert polled.published() == ["kept"]


def test_a_table_that_somebody_takes_out_by_hand_after_it_came_back_is_a_stop_state(triggered: Scene) -> None:
    made(triggered, "primary key (id)")
    triggered.works("create publication cdc for table t, kept", f"grant select on all tables in schema public to {triggered.user}")
    capture = triggered.capture()
    with capture.running():
        capture.until_snapshot_done()
        triggered.works("alter table t drop constraint t_pkey", "alter table t add primary key (id)")
        capture.until(lambda: len(rows(capture, "public.t")) == 3 and not capture.status.left_out, "for its rows")
    triggered.works("alter publication cdc drop table t")
    error = capture.start().failure()
    capture.stop()
    assert isinstance(error, Stopped)
    assert "TABLE_UNPUBLISHED" in str(error)


@pytest.mark.parametrize("publication", ["for all tables", "for tables in schema public"])
def test_a_table_that_cannot_leave_by_itself(polled: Scene, publication: str) -> None:
    """The publication was made by hand: the application's updates fail with and without us, and nothing else is held up."""
    made(polled, "primary key (id)")
    polled.works(f"create publication cdc {publication}")
    capture = polled.capture()
    with capture.running():
        capture.until_snapshot_done()
        polled.works("alter table t drop constraint t_pkey", "insert into t values (4, 'd')")
        capture.until(named(capture, "public.t", "no primary key"), "for its line")
        goes_on(polled, capture, "while it is passed over")
    with capture.running():
        capture.until(named(capture, "public.t", "no primary key"), "for its line after a restart")
        goes_on(polled, capture, "after a restart")
        polled.works("insert into t values (5, 'e')", "alter table t add primary key (id)", "update t set v = 'back' where id = 5")
        capture.until(lambda: len(rows(capture, "public.t")) == 5 and not capture.status.left_out, "for its rows")


def test_a_role_that_may_not_change_the_publication(polled: Scene) -> None:
    role = f"reader_{polled.database.name}"
    made(polled, "primary key (id)")
    polled.works(f"create role {role} login replication; grant select on all tables in schema public to {role}")
    polled.works("create publication cdc for table t, kept")
    limited = Scene(polled.sql, polled.database, role, polled.folder)
    capture = limited.capture()
    with capture.running():
        capture.until_snapshot_done()
        polled.works("alter table t drop constraint t_pkey")
        capture.until(named(capture, "public.t", "no primary key"), "for its line")
        goes_on(polled, capture, "while it is passed over")
        polled.works("alter publication cdc drop table t", "update t set v = 'b'")
        goes_on(polled, capture, "after it was taken out by hand")
    polled.works(f"drop owned by {role}; drop role {role}")


def test_a_table_that_is_read_before_the_stream_knows_that_it_is_back(triggered: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows wait for the record that lets it begin again."""
    made(triggered, "primary key (id)")
    triggered.works("create publication cdc for table t, kept", f"grant select on all tables in schema public to {triggered.user}")
    capture = triggered.capture()
    with capture.running():
        capture.until_snapshot_done()
        triggered.works("alter table t drop constraint t_pkey")
        capture.until(named(capture, "public.t", "no primary key"), "for its line")
    triggered.works("alter table t add primary key (v)", "update t set id = 10 where id = 1")
    read, look = threading.Event(), watch.CatalogWatch._look

    def late(self: watch.CatalogWatch, connection: psycopg.Connection) -> None:
        assert read.wait(60)
        look(self, connection)

    monkeypatch.setattr(watch.CatalogWatch, "_look", late)
    with capture.running():
        capture.until_snapshot_done()
        read.set()
        capture.until(lambda: sorted(rows(capture, "public.t")) == [("10", "a"), ("2", "b"), ("3", "c")], "for its rows")


# The trigger's own failures


def test_the_ddl_never_fails_for_the_trigger(triggered_versions: Scene) -> None:
    """Another event trigger that refuses, and a publication that somebody else has just changed."""
    made(triggered_versions, "primary key (id)")
    triggered_versions.works("create publication cdc for table t, kept")
    triggered_versions.works(
        "create function no() returns event_trigger language plpgsql as $$begin raise 'nobody changes a publication'; end$$",
        "create event trigger no on ddl_command_end when tag in ('ALTER PUBLICATION') execute function no()",
        "alter table t drop constraint t_pkey",
        "drop event trigger no",
        "alter table t add primary key (id)",
    )
    with triggered_versions.database.connect(autocommit=False) as other:
        other.execute("alter publication cdc drop table kept")
        triggered_versions.works("alter table t replica identity nothing")
        other.rollback()
    assert triggered_versions.published() == ["kept", "t"]
    triggered_versions.works("alter table t replica identity default", "update t set v = 'b'")


def test_the_trigger_looks_after_the_publications_that_the_file_was_run_for(triggered: Scene) -> None:
    roles(triggered.database, triggered.user, "-v", "publication=Another one")
    made(triggered, "primary key (id)")
    triggered.works('create publication "Another one" for table t; create publication foreign_one for table kept')
    triggered.works("alter table t drop constraint t_pkey", "alter table kept drop constraint kept_pkey", "update t set v = 'b'")
    assert triggered.published() == ["kept"], "a publication that is none of ours is left alone"
    triggered.works("alter table t add primary key (id)")
    assert triggered.published() == ["kept", "t"]


# Tables that vanish


def test_a_table_that_is_dropped_while_the_catalog_is_asked_is_gone(
    polled_versions: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look waits for the dropping transaction (on 16 and 17), and then the table is not there."""
    looks, look = [0], watch.CatalogWatch._look

    def counted(self: watch.CatalogWatch, connection: psycopg.Connection) -> None:
        look(self, connection)
        looks[0] += 1

    monkeypatch.setattr(watch.CatalogWatch, "_look", counted)
    polled_versions.works(KEPT, "create table vanishing (id int primary key)")
    capture = polled_versions.capture()
    with capture.running():
        capture.until_snapshot_done()
        for turn in range(3):
            with polled_versions.database.connect(autocommit=False) as dropper:
                dropper.execute("drop table vanishing")
                enough = looks[0] + 3
                waits = "select count(*) > 0 from pg_stat_activity where application_name = 'headwater catalog' and wait_event_type = 'Lock'"
                capture.until(lambda: polled_versions.sql.execute(waits).fetchone() == (True,) or looks[0] >= enough, "for a look")  # noqa: B023
                dropper.commit()
            goes_on(polled_versions, capture, f"turn {turn}")
            polled_versions.works("create table vanishing (id int primary key)")
            capture.until(lambda: "vanishing" in polled_versions.published(), "for the table that was made again")


# What doctor says


def test_doctor_tells_of_the_window(polled: Scene) -> None:
    polled.works(KEPT)
    capture = polled.capture()

    def finding() -> tuple[str, str]:
        with connect(capture.settings.source.dsn.get_secret_value()) as connection:
            (found,) = [
                one
                for one in check_source(connection, capture.settings.source, log_has_begun=False)
                if one.check == "event trigger"
            ]
        return found.level, found.message

    assert finding()[0] == "warn"
    assert "for up to" in finding()[1]
    roles(polled.database, "postgres", "-v", "publication=another")
    assert "does not look after publication cdc" in finding()[1]
    roles(polled.database, "postgres")
    assert finding() == ("ok", "a table that loses its replica identity leaves cdc at once")
