"""Stop states of the source, each brought about on a real server, held over restarts, and ended in the documented way."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.errors import Stopped, StopState
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.evolution import schema_change_of
from cdc.source import identity
from cdc.state import reloads, status
from tests.conftest import Database
from tests.integration.capture.running import Capture, unobserved
from tests.waiting import until

Connection = psycopg.Connection[Any]


def stopped(capture: Capture, state: StopState) -> Stopped:
    """Capture, when started, ends in this state; and again."""
    for _ in range(2):
        error = capture.start().failure()
        capture.stop()
        assert isinstance(error, Stopped), error
        assert error.state is state, error
    return error


def rebuilt(capture: Capture, state: StopState, sql: Connection) -> None:
    """What ``cdc resume STATE --rebuild`` asks for; afterwards the log's fold is the table, and goes on being."""
    before = EmbeddedLogReader(capture.settings.log.dir).head().position
    capture.until_released(sql)
    reloads.request(capture.settings.log.dir, state)
    with capture.running():
        agrees(capture, sql)
        sql.execute("insert into t values (9001, 'after')")
        sql.execute("update t set v = 'touched' where id = 2")
        agrees(capture, sql)
        assert capture.reader.head().position > before
    assert reloads.requested(capture.settings.log.dir) is None
    if state in reloads.WHOLE:
        known = identity.recorded(capture.settings.log.dir)
        assert known is not None
        assert known.since_position == before
    with capture.running():
        sql.execute("delete from t where id = 9001")
        agrees(capture, sql)


def rebuilt_once_dropped(capture: Capture, sql: Connection) -> None:
    """SLOT_REPLACED: whose slot it is cannot be seen, so it is for the operator to drop it."""
    hint = stopped(capture, StopState.SLOT_REPLACED).hint or ""
    assert "cdc resume SLOT_REPLACED --rebuild" in hint
    drop = f"select pg_drop_replication_slot('{capture.settings.source.slot}')"
    assert drop in hint
    capture.until_released(sql)
    sql.execute(drop.encode())
    rebuilt(capture, StopState.SLOT_REPLACED, sql)


def agrees(capture: Capture, sql: Connection, table: str = "t") -> None:
    capture.until_snapshot_done()
    wanted = {(str(key),): {"id": str(key), "v": value} for key, value in sql.execute(f"select id, v from {table}").fetchall()}
    topic = f"public.{table.partition(' ')[0]}"
    capture.until(lambda: fold(capture, topic) == wanted, f"for {table} to agree")


def fold(capture: Capture, topic: str) -> dict[tuple[str | None, ...], dict[str, str | None]]:
    """As ``Capture.rows``, and what empties the topic empties it."""
    table: dict[tuple[str | None, ...], dict[str, str | None]] = {}
    after = 0
    for batch in capture.batches(topic):
        change = schema_change_of(batch)
        if change is not None and change.empties:
            after = int(batch.column(0)[0].as_py())
            table.clear()
    for _, op, values in capture.changes(topic, after):
        key = (values["id"],)
        if op in "cur":
            table[key] = values
        elif op == "d":
            table.pop(key, None)
    return table


@pytest.fixture
def sql(postgres: Database) -> Connection:
    connection = postgres.connect()
    connection.execute(
        "create table t (id int primary key, v text); insert into t select n, 'row ' || n from generate_series(1, 20) n"
    )
    return connection


@pytest.fixture
def capture(postgres: Database, sql: Connection, tmp_path: Path) -> Capture:
    """Has run once, and is stopped; then rows 1 to 3 went, unseen by it."""
    found = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")
    with found.running():
        agrees(found, sql)
    found.until_released(sql)
    return found


def unseen(sql: Connection) -> None:
    """What happens while nobody looks."""
    sql.execute("delete from t where id in (1, 3); update t set v = 'unseen' where id = 4; insert into t values (21, 'unseen')")


def test_a_dropped_slot(capture: Capture, sql: Connection) -> None:
    sql.execute("select pg_drop_replication_slot(%s)", (capture.settings.source.slot,))
    unseen(sql)
    assert "--rebuild" in (stopped(capture, StopState.SLOT_MISSING).hint or "")
    rebuilt(capture, StopState.SLOT_MISSING, sql)


def test_a_slot_that_was_made_again(capture: Capture, sql: Connection) -> None:
    slot = capture.settings.source.slot
    sql.execute("select pg_drop_replication_slot(%s)", (slot,))
    unseen(sql)
    sql.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    rebuilt_once_dropped(capture, sql)


def test_a_slot_that_was_advanced(capture: Capture, sql: Connection) -> None:
    unseen(sql)
    sql.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (capture.settings.source.slot,))
    rebuilt_once_dropped(capture, sql)


def test_a_slot_that_somebody_else_read(capture: Capture, sql: Connection) -> None:
    unseen(sql)
    sql.execute(
        "select count(*) from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1', 'publication_names', 'cdc')",
        (capture.settings.source.slot,),
    )
    rebuilt_once_dropped(capture, sql)


def test_a_slot_that_another_program_reads_now(capture: Capture, sql: Connection, postgres: Database) -> None:
    """The way out must not be to take the slot from a program that works."""
    slot = capture.settings.source.slot
    unseen(sql)
    wanted = sql.execute("select pg_current_wal_lsn()").fetchone()
    arguments = ["-d", postgres.dsn, "--slot", slot, "--start", "-f", "/dev/null", "-s", "1", "-F", "0"]
    options = ["-o", "proto_version=1", "-o", "publication_names=cdc"]
    reader = subprocess.Popen([postgres.server.binary("pg_recvlogical"), *arguments, *options])
    try:
        read = "select active and confirmed_flush_lsn >= %s from pg_replication_slots where slot_name = %s"
        until(lambda: sql.execute(read, (wanted[0] if wanted else None, slot)).fetchone() == (True,), "for the other program")
        hint = stopped(capture, StopState.SLOT_REPLACED).hint or ""
    finally:
        reader.terminate()
        reader.wait()
    assert "--rebuild" not in hint
    assert "another source.slot" in hint


def test_a_dropped_publication(capture: Capture, sql: Connection) -> None:
    sql.execute("drop publication cdc")
    unseen(sql)
    stopped(capture, StopState.PUBLICATION_LOST)
    rebuilt(capture, StopState.PUBLICATION_LOST, sql)


def test_a_publication_that_was_dropped_and_made_again(capture: Capture, sql: Connection) -> None:
    sql.execute("drop publication cdc")
    unseen(sql)
    sql.execute("create publication cdc for table t")
    stopped(capture, StopState.PUBLICATION_LOST)
    rebuilt(capture, StopState.PUBLICATION_LOST, sql)


@pytest.mark.parametrize("put_back", [False, True])
def test_a_table_that_left_the_publication(capture: Capture, sql: Connection, put_back: bool) -> None:
    sql.execute("create table other (id int primary key, v text); insert into other values (1, 'one')")
    with capture.running():
        agrees(capture, sql, "other")
    read = len(capture.changes("public.other"))
    sql.execute("alter publication cdc drop table t")
    unseen(sql)
    if put_back:
        sql.execute("alter publication cdc add table t")
    stopped(capture, StopState.TABLE_UNPUBLISHED)
    rebuilt(capture, StopState.TABLE_UNPUBLISHED, sql)
    assert len(capture.changes("public.other")) == read, "the other table was not read again"


def test_a_table_that_leaves_the_publication_while_capture_runs(capture: Capture, sql: Connection) -> None:
    capture.start()
    capture.until_snapshot_done()
    sql.execute("alter publication cdc drop table t")
    unseen(sql)
    error = capture.failure()
    capture.stop()
    assert isinstance(error, Stopped)
    assert error.state is StopState.TABLE_UNPUBLISHED
    rebuilt(capture, StopState.TABLE_UNPUBLISHED, sql)


def test_a_column_that_gets_one_of_our_names_and_loses_it_before_rows_come(
    capture: Capture, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.source.watch.INTERVAL_S", 0.1)
    capture.start()
    capture.until_snapshot_done()
    sql.execute("alter table t rename column v to _cdc_op")
    error = capture.failure()
    capture.stop()
    assert isinstance(error, Stopped)
    assert error.state is StopState.COLUMN_RESERVED
    sql.execute("alter table t rename column _cdc_op to v")
    unseen(sql)
    with capture.running():
        agrees(capture, sql)


def test_a_column_that_has_one_of_our_names_while_rows_come(capture: Capture, sql: Connection) -> None:
    capture.start()
    capture.until_snapshot_done()
    with sql.transaction():
        sql.execute("alter table t rename column v to _cdc_op")
        sql.execute("update t set _cdc_op = 'under that name' where id = 5")
        sql.execute("alter table t rename column _cdc_op to v")
    error = capture.failure()
    capture.stop()
    assert isinstance(error, Stopped)
    assert error.state is StopState.COLUMN_RESERVED
    unseen(sql)
    assert "--rebuild" in (stopped(capture, StopState.COLUMN_RESERVED).hint or "")
    rebuilt(capture, StopState.COLUMN_RESERVED, sql)


@pytest.mark.parametrize(
    "change",
    [
        "drop table t; alter publication cdc add table t",
        "set table t (id, v) where (id > 2)",
        "set (publish = 'insert'); alter publication cdc set (publish = 'insert, update, delete, truncate')",
    ],
    ids=["taken out and put back", "another column list and filter", "without updates and deletes for a while"],
)
def test_a_publication_that_changes_while_capture_runs(
    capture: Capture, sql: Connection, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too quickly to be seen in between; what was not sent meanwhile is read again, and later starts know that it was."""
    out, _, back = change.partition(";")
    nobody_looks = unobserved(monkeypatch)
    with capture.running():
        capture.until_snapshot_done()
        with nobody_looks:
            sql.execute(f"alter publication cdc {out}".encode())
            unseen(sql)
            sql.execute(back.encode())
        agrees(capture, sql, "t where id > 2" if "where" in change else "t")
    with capture.running():
        sql.execute("insert into t values (23, 'goes on')")
        capture.until(lambda: ("23",) in fold(capture, "public.t"), "for the row after the restart")


def test_a_publication_that_does_not_publish_deletes_any_more(capture: Capture, sql: Connection) -> None:
    capture.start()
    capture.until_snapshot_done()
    sql.execute("alter publication cdc set (publish = 'insert, update')")
    unseen(sql)
    error = capture.failure()
    capture.stop()
    assert isinstance(error, Stopped)
    assert error.state is StopState.PUBLICATION_LOST
    assert "does not publish delete" in error.line()
    refused = capture.start().failure()
    capture.stop()
    assert "does not publish delete" in str(refused)
    sql.execute("alter publication cdc set (publish = 'insert, update, delete, truncate')")
    rebuilt(capture, StopState.PUBLICATION_LOST, sql)


def test_a_table_that_is_no_longer_wanted_may_leave(capture: Capture, sql: Connection, postgres: Database, tmp_path: Path) -> None:
    sql.execute("create table other (id int primary key, v text); insert into other values (1, 'one')")
    with capture.running():
        agrees(capture, sql, "other")
    sql.execute("alter publication cdc drop table other")
    narrower = Capture(postgres.dsn, tmp_path, slot=capture.settings.source.slot, tables=("public.t",))
    with narrower.running():
        sql.execute("insert into t values (22, 'goes on')")
        agrees(narrower, sql)


def test_the_log_s_end_is_recognised_when_it_comes_again(
    capture: Capture, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of the server: it has forgotten what was confirmed."""
    with monkeypatch.context() as patch:
        patch.setattr("cdc.capture.feedback.Feedback.confirm", lambda *_: None)
        with capture.running():
            sql.execute("insert into t values (30, 'confirmed never')")
            sql.execute("insert into t select n, repeat('wide', 500) from generate_series(100, 6000) n")
            agrees(capture, sql)
    held = capture.reader.head()
    with capture.running():
        sql.execute("update t set v = 'new' where id = 30")
        agrees(capture, sql)
        assert capture.reader.head().position == held.position + 1
        slot = capture.settings.source.slot
        confirmed = "select confirmed_flush_lsn > (%s::bigint)::text::numeric + '0/0'::pg_lsn from pg_replication_slots where slot_name = %s"
        capture.until(lambda: sql.execute(confirmed, (held.commit_lsn, slot)).fetchone() == (True,), "for the confirmation")


def test_a_log_that_is_older_than_the_slot(capture: Capture, sql: Connection, tmp_path: Path) -> None:
    """A restored backup of the log's folder: what came since is confirmed, and so lost to it."""
    import shutil

    folder = capture.settings.log.dir
    shutil.copytree(folder, tmp_path / "backup")
    with capture.running():
        unseen(sql)
        agrees(capture, sql)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    rebuilt_once_dropped(capture, sql)


def told(capture: Capture) -> status.CaptureStatus | None:
    return status.read_capture(capture.settings.run_dir)
