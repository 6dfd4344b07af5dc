"""Slots that the server gives up, and changes that it cannot decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from cdc.capture.assembly import Grouping
from cdc.capture.authenticity import WATERMARK_PREFIX
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.endings import StreamEnded
from cdc.embedded.postgres import Postgres
from cdc.errors import ProtocolError, SourceError, StopState
from cdc.model.position import Lsn
from cdc.source import connect
from cdc.source.slot import SlotFacts, lost_message, read_slot
from cdc.state import reloads, status
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.source.servers import Clusters
from tests.integration.source.test_stop_states import agrees, rebuilt, stopped


@pytest.fixture
def clusters(server_folder: Path) -> Iterator[Clusters]:
    found = Clusters(server_folder)
    yield found
    found.stop()


def write_wal(server: Postgres, megabytes: int) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as sql:
        for _ in range(megabytes):
            sql.execute("select pg_logical_emit_message(false, 'noise', repeat('x', 1000000))")
            sql.execute("select pg_switch_wal()")
        sql.execute("checkpoint")


@pytest.mark.parametrize("version", [15, 18])
def test_a_slot_that_held_too_much_wal(clusters: Clusters, tmp_path: Path, version: int) -> None:
    server = clusters.empty(version, max_slot_wal_keep_size="32MB", min_wal_size="32MB", max_wal_size="64MB")
    with psycopg.connect(server.dsn(), autocommit=True) as sql:
        sql.execute("create table t (id int primary key, v text); insert into t select n, 'row' from generate_series(1, 9) n")
        capture = Capture(server.dsn(), tmp_path)
        with capture.running():
            agrees(capture, sql)
        write_wal(server, 8)
        sql.execute("delete from t where id = 1")
        assert "max_slot_wal_keep_size" in str(stopped(capture, StopState.SLOT_LOST))
        rebuilt(capture, StopState.SLOT_LOST, sql)


def test_a_slot_that_was_idle_for_too_long(clusters: Clusters, tmp_path: Path) -> None:
    server = clusters.empty(18)
    with psycopg.connect(server.dsn(), autocommit=True) as sql:
        sql.execute("create table t (id int primary key, v text); insert into t select n, 'row' from generate_series(1, 9) n")
        capture = Capture(server.dsn(), tmp_path)
        with capture.running():
            agrees(capture, sql)
        sql.execute("alter system set idle_replication_slot_timeout = '1s'")
        sql.execute("select pg_reload_conf()")
        deadline = time.monotonic() + 60
        while read_slot(sql, "cdc").invalidation != "idle_timeout":
            assert time.monotonic() < deadline, read_slot(sql, "cdc")
            sql.execute("checkpoint")
            time.sleep(0.2)
    error = capture.start().failure()
    capture.stop()
    assert str(error).startswith("SLOT_LOST: ")
    assert "nobody read it for longer than idle_replication_slot_timeout" in str(error)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (SlotFacts("s", True, Lsn(1), wal_status="lost", invalidation="idle_timeout"), "idle_replication_slot_timeout"),
        (SlotFacts("s", True, Lsn(1), wal_status="lost", invalidation="wal_removed"), "max_slot_wal_keep_size"),
        (SlotFacts("s", True, Lsn(1), wal_status="lost"), "max_slot_wal_keep_size"),
        (SlotFacts("s", True, Lsn(1), wal_status="lost", invalidation="rows_removed"), "catalog rows"),
        (SlotFacts("s", True, Lsn(1), wal_status="reserved", invalidation="wal_level_insufficient"), "wal_level"),
    ],
)
def test_why_a_slot_is_lost_is_told(facts: SlotFacts, why: str) -> None:
    assert facts.lost
    assert why in lost_message(facts)


def test_a_row_that_the_server_cannot_decode(postgres: Database, tmp_path: Path) -> None:
    """A byte that WIN1252 leaves undefined, and such a database takes: it has no equivalent in UTF-8."""
    name = f"{postgres.name}_latin"
    with postgres.connect() as admin:
        admin.execute(f"create database {name} encoding 'WIN1252' template template0")
    database = Database(postgres.server, name)
    try:
        with psycopg.connect(database.dsn, autocommit=True, client_encoding="utf8") as sql:
            sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
            capture = Capture(database.dsn, tmp_path, slot=f"s_{name}"[:60])
            with capture.running():
                agrees(capture, sql)
            sql.execute("insert into t values (3, convert_from('\\x81'::bytea, 'WIN1252'))")
            error = stopped(capture, StopState.POISON_ROW)
            assert "at LSN " in str(error)
            assert "0x81" not in error.line()
            sql.execute("update t set v = 'mended' where id = 3")
            sql.execute("delete from t where id = 1")
            stopped(capture, StopState.POISON_ROW)
            rebuilt(capture, StopState.POISON_ROW, sql)
    finally:
        database.drop()


def test_bytes_that_our_decoder_cannot_take(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
        with capture.running():
            agrees(capture, sql)
        sql.execute("insert into t values (3, 'odd')")

        def refuse(*_: object) -> None:
            raise ProtocolError("a message that is not allowed")

        with monkeypatch.context() as patch:
            patch.setattr("cdc.ingest.loop.Ingest._consume", refuse)
            assert "behind LSN" in str(stopped(capture, StopState.POISON_ROW))
        with capture.running():  # a mended decoder goes on: nothing was given up
            agrees(capture, sql)


def test_a_new_slot_that_was_made_during_a_rewrite_begins_anew(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmapped = StreamEnded('could not map filenumber "base/5/16403" to relation OID (SQLSTATE XX000)', "XX000", None)

    def refuse(*_: object) -> None:
        raise unmapped

    slot = f"s_{postgres.name}"
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
        capture = Capture(postgres.dsn, tmp_path, slot=slot)
        with monkeypatch.context() as patch:
            patch.setattr("cdc.ingest.loop.Ingest._consume", refuse)
            failure = capture.start().failure()
            assert "creates it again" in failure.line()
            assert failure.exit_code == 1, "the supervisor starts it again soon"
            capture.stop()
        capture.until_released(sql)
        before = read_slot(sql, slot).confirmed_lsn
        sql.execute("delete from t where id = 1")
        with capture.running():
            agrees(capture, sql)
        assert (read_slot(sql, slot).confirmed_lsn or 0) > (before or 0)
        assert reloads.requested(capture.settings.log.dir) is None
        with monkeypatch.context() as patch:
            patch.setattr("cdc.ingest.loop.Ingest._consume", refuse)
            sql.execute("insert into t values (3, 'behind what was captured')")
            patch.setattr("cdc.ingest.process.BACKOFF_S", (0.01,))
            assert "--skip" in capture.start().failure().line(), "something was captured: passing it is an operator's to decide"
            capture.stop()


def test_a_server_that_is_down_when_capture_starts(postgres_server: Postgres, tmp_path: Path) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
    capture = Capture(postgres_server.dsn(), tmp_path)
    postgres_server.stop()
    never = capture.start().failure()
    assert (never.exit_code, "Connection refused" in str(never)) == (2, True), "a source that never answered may be a mistyped one"
    capture.stop()
    postgres_server.start()
    with capture.running():
        capture.until_snapshot_done()
    postgres_server.stop()
    with capture.running():
        capture.until(lambda: told(capture) is not None and capture.status.state == "retrying", "for the retry")
        assert "Connection refused" in (capture.status.error or "")
        postgres_server.start()
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as sql:
            agrees(capture, sql)
        assert capture.status.error is None


def told(capture: Capture) -> status.CaptureStatus | None:
    return status.read_capture(capture.settings.run_dir)


@pytest.mark.parametrize("path", ["nobody@127.0.0.1:{port}/{name}", "postgres@127.0.0.1:{port}/nowhere"])
def test_a_refused_login_is_no_reason_to_wait(postgres: Database, tmp_path: Path, path: str) -> None:
    dsn = "postgresql://" + path.format(port=postgres.server.port, name=postgres.name)
    error = Capture(dsn, tmp_path).start().failure()
    assert isinstance(error, SourceError)
    assert error.exit_code == 2


def test_an_idle_timeout_is_told(postgres: Database) -> None:
    with connect(postgres.dsn) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"s_{postgres.name}",))
        assert read_slot(connection, f"s_{postgres.name}").idle_timeout_s is None
        connection.execute("alter system set idle_replication_slot_timeout = '90min'")
        connection.execute("select pg_reload_conf()")
        try:
            until_idle_timeout(connection, f"s_{postgres.name}", 5400)
        finally:
            connection.execute("alter system reset idle_replication_slot_timeout")
            connection.execute("select pg_reload_conf()")
            until_idle_timeout(connection, f"s_{postgres.name}", None)


def until_idle_timeout(connection: psycopg.Connection, slot: str, wanted_s: int | None) -> None:
    """A session reads the configuration again some time after the server was told to."""
    deadline = time.monotonic() + 60
    while read_slot(connection, slot).idle_timeout_s != wanted_s:
        assert time.monotonic() < deadline, read_slot(connection, slot)
        time.sleep(0.01)


def test_a_damaged_record_of_the_source(postgres: Database, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine')")
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
        with capture.running():
            agrees(capture, sql)
    path = capture.settings.log.dir / "source.json"
    path.write_text(path.read_text()[:-20])
    stopped(capture, StopState.LOG_CORRUPT)
    assert reloads.requested(capture.settings.log.dir) is None


def test_an_error_of_the_decoder_that_nobody_foresaw(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts, then a stop state, and never a loop of restarts that no operator can end."""
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
        with capture.running():
            agrees(capture, sql)
        sql.execute("insert into t values (3, 'odd')")

        def weigh(self: Grouping, until: int, plain: Callable[[Grouping, int], bool] = Grouping.full) -> bool:
            if b"odd" in self._block.tobytes():
                raise KeyError("canary-value")
            return plain(self, until)

        with monkeypatch.context() as patch:
            patch.setattr(Grouping, "full", weigh)
            error = str(stopped(capture, StopState.POISON_ROW))
        assert "KeyError at test_undecodable.py:" in error
        assert "canary" not in error
        with capture.running():
            agrees(capture, sql)


MESSAGES = (
    "repeat('[', 1200)",
    "repeat('{\"password\":', 100000)",
    "'{\"password\": ' || repeat('9', 100000)",
    "'\\x00ff5b5b'::bytea",
)


def test_messages_of_a_role_without_any_right(postgres: Database, tmp_path: Path) -> None:
    """EXECUTE on pg_logical_emit_message is everybody's."""
    lowly = f"lowly_{postgres.name}"
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
        sql.execute(f"create role {lowly} login")
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
        try:
            with psycopg.connect(postgres.unix_dsn, user=lowly, autocommit=True) as other, capture.running():
                agrees(capture, sql)
                for prefix in (DDL_PREFIX, WATERMARK_PREFIX):
                    for content in MESSAGES:
                        for transactional in (True, False):
                            other.execute(f"select pg_logical_emit_message({transactional}, '{prefix}', {content})")
                sql.execute("insert into t values (3, 'behind them')")
                agrees(capture, sql)
                reader = capture.reader
                assert reader.timeline is not None
                before = reader.timeline.groups
                for _ in range(200):
                    other.execute("select pg_logical_emit_message(true, %s, 'chunk:0123456789abcdef:1')", [WATERMARK_PREFIX])
                sql.execute("insert into t values (4, 'behind those')")
                agrees(capture, sql)
                assert reader.timeline.groups - before < 100, "each is a cut in the log"
        finally:
            sql.execute(f"drop role {lowly}")


def test_a_message_that_fills_the_memory(postgres: Database, tmp_path: Path) -> None:
    """It may have 1 GB, and is nobody's: nothing of that is kept on its way."""
    memory, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def peak_mb() -> int:
        [line] = [line for line in memory.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) >> 10

    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); insert into t values (1, 'fine'), (2, 'fine')")
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
        with capture.running():
            agrees(capture, sql)
            forget.write_text("5")
            before = peak_mb()
            for prefix in (DDL_PREFIX, WATERMARK_PREFIX, "x"):
                sql.execute("select pg_logical_emit_message(true, %s, repeat('[', 200 << 20))", [prefix])
            sql.execute("insert into t values (3, 'behind them')")
            agrees(capture, sql)
            assert peak_mb() - before < 150
