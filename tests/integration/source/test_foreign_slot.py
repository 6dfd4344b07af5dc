"""A replication slot that somebody else made keeps what waits in it, whatever Headwater is asked to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.commands.invocation import Invocation
from cdc.commands.preflight import examine
from cdc.crashpoint import Fault, armed
from cdc.embedded.postgres import Postgres
from cdc.errors import HeadwaterError, SourceError, Stopped, StopState
from cdc.source import ensure_slot
from cdc.source.checks import Finding
from cdc.source.connection import connect
from cdc.state import reloads, status
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.source.test_stop_states import agrees, unseen

Connection = psycopg.Connection[Any]


@pytest.fixture
def sql(postgres: Database) -> Connection:
    connection = postgres.connect()
    connection.execute(
        "create table t (id int primary key, v text); insert into t select n, 'row ' || n from generate_series(1, 20) n;"
        "create publication theirs for table t"
    )
    return connection


@pytest.fixture
def capture(postgres: Database, tmp_path: Path) -> Capture:
    return Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}")


def theirs(sql: Connection, slot: str) -> None:
    """Another program makes the slot, and eight changes wait for it."""
    sql.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    for number in range(8):
        sql.execute("insert into t values (%s, 'for them')", (1000 + number,))


def waiting(sql: Connection, slot: str) -> int:
    """How many inserts the slot's owner would get."""
    row = sql.execute(
        "select count(*) from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1', 'publication_names', 'theirs')"
        " where get_byte(data, 0) = ascii('I')",
        (slot,),
    ).fetchone()
    assert row is not None
    return int(row[0])


def refused(capture: Capture) -> HeadwaterError:
    """Capture, when started, ends before it streams."""
    shutil.rmtree(capture.settings.run_dir, ignore_errors=True)  # what it said when it ran before
    capture.start()
    try:
        with pytest.raises(HeadwaterError) as ended:
            capture.until(lambda: told_streaming(capture), "for an end")
    finally:
        capture.stop()
    return ended.value


def told_streaming(capture: Capture) -> bool:
    found = status.read_capture(capture.settings.run_dir)
    return found is not None and found.state == "streaming"


def crash(capture: Capture, point: str) -> None:
    """Capture, when started, meets a fault at this point."""
    with armed(f"{point}=error"):
        capture.start()
        try:
            with pytest.raises(Fault):
                capture.until(lambda: False, "for the fault", deadline_s=60)
        finally:
            capture.stop()


def slot_findings(capture: Capture, tmp_path: Path, *, fix: bool = False) -> list[Finding]:
    source = capture.settings.source
    config = tmp_path / "cdc.toml"
    config.write_text(
        f'run_dir = "run"\n[source]\ndsn = "{source.dsn.get_secret_value()}"\nslot = "{source.slot}"\n[log]\ndir = "log"\n'
    )
    return [finding for finding in examine(Invocation(config), fix=fix) if finding.check in ("slot", "fix")]


def test_the_first_start_does_not_take_over_a_slot(capture: Capture, sql: Connection, tmp_path: Path) -> None:
    slot = capture.settings.source.slot
    theirs(sql, slot)
    for _ in range(2):
        error = refused(capture)
        assert isinstance(error, SourceError), error
        assert "another source.slot" in (error.hint or "")
        assert f"pg_drop_replication_slot('{slot}')" in (error.hint or "")
        assert waiting(sql, slot) == 8
    found = slot_findings(capture, tmp_path, fix=True)
    assert [finding.level for finding in found if "slot" in finding.message] == ["fail", "fail"]
    assert waiting(sql, slot) == 8
    sql.execute("select pg_drop_replication_slot(%s)", (slot,))
    with capture.running():
        agrees(capture, sql)


def test_a_slot_that_doctor_made_is_ours(capture: Capture, sql: Connection, tmp_path: Path) -> None:
    made = slot_findings(capture, tmp_path, fix=True)
    assert {finding.level for finding in made} == {"ok"}
    sql.execute("insert into t values (21, 'before the first start')")
    assert {finding.level for finding in slot_findings(capture, tmp_path)} == {"ok"}
    with capture.running():
        agrees(capture, sql)
    assert {finding.level for finding in slot_findings(capture, tmp_path)} == {"ok"}


def test_a_slot_that_was_made_again_after_doctor_made_it_is_not_ours(capture: Capture, sql: Connection, tmp_path: Path) -> None:
    slot = capture.settings.source.slot
    slot_findings(capture, tmp_path, fix=True)
    sql.execute("select pg_drop_replication_slot(%s)", (slot,))
    theirs(sql, slot)
    assert isinstance(refused(capture), SourceError)
    assert waiting(sql, slot) == 8


@pytest.mark.parametrize("point", ["slot.before_create", "slot.created", "capture.slot_ready", "capture.before_identity"])
def test_a_slot_is_ours_after_a_crash_at_any_moment(capture: Capture, sql: Connection, point: str) -> None:
    crash(capture, point)
    with capture.running():
        agrees(capture, sql)


def test_a_slot_that_could_not_be_made_is_not_claimed(postgres: Database, sql: Connection, capture: Capture) -> None:
    folder = capture.settings.log.dir
    with postgres.connect(autocommit=False) as held, connect(postgres.dsn) as connection:
        held.execute("select pg_current_xact_id()")
        with pytest.raises(SourceError, match="waits for open transactions"):
            ensure_slot(connection, capture.settings.source, create=True, timeout_s=0.3, record=folder)
    theirs(sql, capture.settings.source.slot)
    assert isinstance(refused(capture), SourceError)
    assert waiting(sql, capture.settings.source.slot) == 8


def test_a_rebuild_leaves_a_slot_alone_that_was_made_by_somebody_else(capture: Capture, sql: Connection) -> None:
    slot = capture.settings.source.slot
    with capture.running():
        agrees(capture, sql)
    capture.until_released(sql)
    sql.execute("select pg_drop_replication_slot(%s)", (slot,))
    unseen(sql)
    theirs(sql, slot)
    reloads.request(capture.settings.log.dir, StopState.SLOT_MISSING)
    for _ in range(2):
        error = refused(capture)
        assert isinstance(error, Stopped)
        assert error.state is StopState.SLOT_REPLACED
        assert f"pg_drop_replication_slot('{slot}')" in (error.hint or "")
        assert waiting(sql, slot) == 8
    sql.execute("select pg_drop_replication_slot(%s)", (slot,))
    with capture.running():
        agrees(capture, sql)


def test_a_rebuild_from_another_cluster_leaves_its_slots_alone(
    capture: Capture, sql: Connection, postgres_server: Postgres, tmp_path: Path
) -> None:
    slot = capture.settings.source.slot
    with capture.running():
        agrees(capture, sql)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as admin:
        database = sql.info.dbname
        admin.execute(f'create database "{database}"'.encode())
    with psycopg.connect(postgres_server.dsn(database), autocommit=True) as there:
        there.execute("create table t (id int primary key, v text); create publication theirs for table t")
        theirs(there, slot)
        moved = Capture(postgres_server.dsn(database), tmp_path, slot=slot)
        assert isinstance(refused(moved), Stopped)
        reloads.request(moved.settings.log.dir, StopState.SYSTEM_CHANGED)
        error = refused(moved)
        assert isinstance(error, Stopped)
        assert error.state is StopState.SLOT_REPLACED
        assert waiting(there, slot) == 8
        there.execute("select pg_drop_replication_slot(%s)", (slot,))
        with moved.running():
            agrees(moved, there)


@pytest.mark.parametrize(
    ("state", "point"),
    [
        (StopState.SLOT_MISSING, "slot.created"),  # elsewhere the slot is there, and moved
        *(
            (state, point)
            for state in (StopState.SLOT_MISSING, StopState.PUBLICATION_LOST)
            for point in ("capture.slot_ready", "capture.reload_marked", "capture.before_identity")
        ),
    ],
)
def test_a_rebuild_goes_on_after_a_crash_at_any_moment(capture: Capture, sql: Connection, state: StopState, point: str) -> None:
    with capture.running():
        agrees(capture, sql)
    capture.until_released(sql)
    unseen(sql)
    if state is StopState.SLOT_MISSING:
        sql.execute("select pg_drop_replication_slot(%s)", (capture.settings.source.slot,))
    reloads.request(capture.settings.log.dir, state)
    crash(capture, point)
    sql.execute("insert into t values (500, 'after the crash')")
    with capture.running():
        agrees(capture, sql)
