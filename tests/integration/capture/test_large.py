"""Transactions that the server sends before their end, and prepared ones, on real servers (64 kB make it send early)."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.capture import spool
from cdc.capture import stream as streaming
from cdc.capture.groups import Groups
from cdc.capture.stream import Connection
from tests.integration.capture.running import Capture
from tests.integration.capture.test_capture import agree, lsn

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"


class Heard:
    """What the decoder was told about transactions in progress, by the name of the message's class."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def count(self, name: str) -> int:
        return self.names.count(name)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    from cdc.capture import decoder

    found = Heard()
    parse = decoder.parse_control

    def remember(letter: str, body: bytes) -> Any:
        control = parse(letter, body)
        found.names.append(type(control).__name__)
        return control

    monkeypatch.setattr(decoder, "parse_control", remember)
    return found


@contextmanager
def table(database: Any) -> Iterator[psycopg.Connection]:
    with database.connect() as connection:
        name = connection.info.dbname
        connection.execute(f"alter database \"{name}\" set logical_decoding_work_mem = '64kB'")
        connection.execute("create table a (id int primary key, v text)")
        yield connection


def one_cut(capture: Capture, after: int) -> bool:
    """Whether everything behind the position is one cut: a reader sees all of it or nothing."""
    return bool(capture.reader.cut_within(after, 1, 1).position == capture.reader.head().position)


@pytest.mark.parametrize("mode", ["on", "parallel"])
def test_savepoints_and_aborts_while_it_streams(
    pg_versions: Any, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    if mode == "parallel":
        if pg_versions.server.version < 16:
            pytest.skip("from 16 on")
        start = Connection.start
        monkeypatch.setattr(Connection, "start", lambda *args, **kw: start(*args, **{**kw, "streaming": "parallel"}))
    with table(pg_versions) as connection:
        capture = Capture(pg_versions.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            with connection.transaction():
                connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 2000) g")
                with connection.transaction(force_rollback=True):
                    connection.execute("insert into a select g, repeat('y', 100) from generate_series(10001, 12000) g")
                    connection.execute("delete from a where id % 2 = 0")
                with connection.transaction():
                    connection.execute("update a set v = repeat('z', 100) where id <= 500")
                    with connection.transaction(force_rollback=True):
                        connection.execute("alter table a add column w int default 7")
                        connection.execute("update a set w = id where id <= 1000")
                    connection.execute("insert into a select g, repeat('u', 100) from generate_series(20001, 21000) g")
                connection.execute("delete from a where id between 100 and 200")
            agree(capture, connection, "public.a", ("id",))
            assert one_cut(capture, 0)
            assert capture.rows("public.a").keys().isdisjoint({("10001",), ("12000",)})
            assert {column for row in capture.rows("public.a").values() for column in row} == {"id", "v"}
        assert heard.count("StreamCommit") == 1
        assert heard.count("StreamStart") > 5
        assert heard.count("StreamAbort") >= 2


def test_what_the_event_trigger_says_of_a_rolled_back_savepoint(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends it under the top-level transaction's xid, so that it looks like what stays."""
    said = threading.Event()
    add = spool.Spool.add

    def listening(self: spool.Spool, frames: Any, ordinal: int) -> None:
        add(self, frames, ordinal)
        if b"headwater.ddl" in frames.tobytes():
            said.set()

    monkeypatch.setattr(spool.Spool, "add", listening)
    with table(postgres) as connection:
        psql = [
            str(postgres.server.binary("psql")),
            "-Xqd",
            postgres.dsn,
            "-v",
            f"role={connection.info.user}",
            "-v",
            "schema=public",
        ]
        subprocess.run([*psql, "-f", str(ROLES)], check=True, timeout=60)
        connection.execute("alter table a add column n int default 7; insert into a values (1, 'before', 1)")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            with connection.transaction():
                connection.execute("insert into a select g, repeat('x', 100), g from generate_series(2, 1000) g")
                with connection.transaction(force_rollback=True):
                    connection.execute("alter table a drop column n")
                    connection.execute("insert into a select g, repeat('y', 100) from generate_series(2001, 4000) g")
                    capture.until(said.is_set, "for the event trigger's message")
                connection.execute("update a set n = -n where id < 10")
            agree(capture, connection, "public.a", ("id",))
            assert {op for _, op, _ in capture.changes("public.a")} == {"r", "c", "u"}


def test_a_rolled_back_transaction_leaves_nothing(postgres: Any, tmp_path: Path, heard: Heard) -> None:
    with table(postgres) as connection:
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            with connection.transaction(force_rollback=True):
                connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 5000) g")
                capture.until(lambda: heard.count("StreamStart") > 2, "for the stream")
            connection.execute("insert into a values (1, 'after')")
            agree(capture, connection, "public.a", ("id",))
            assert len(capture.changes("public.a")) == 1
            capture.until(lambda: "StreamAbort" in heard.names, "for the abort")


def test_sessions_interleave(postgres: Any, tmp_path: Path, heard: Heard, seed: int) -> None:
    def session(who: int) -> None:
        rng = random.Random(seed + who)
        with postgres.connect() as other:
            for number in range(6):
                with other.transaction():
                    for _ in range(4):
                        with other.transaction(force_rollback=rng.random() < 0.4):
                            first = who * 1_000_000 + number * 10_000 + rng.randrange(4) * 1000
                            other.execute(
                                "insert into a select g, repeat(%s, 60) from generate_series(%s::int, %s) g on conflict (id) do update "
                                "set v = a.v || 'again'",
                                (str(who), first, first + rng.randrange(1, 700)),
                            )
                    other.execute("delete from a where id %% 7 = 3 and id / 1000000 = %s", (who,))

    with table(postgres) as connection:
        connection.execute("insert into a select g, repeat('0', 50) from generate_series(1, 20000) g")
        capture = Capture(postgres.unix_dsn, tmp_path, snapshot_chunk_rows=2000)
        with capture.running():
            active = "select 1 from pg_replication_slots where database = current_database() and active"
            capture.until(lambda: connection.execute(active).fetchone() is not None, "for the stream")
            sessions = [threading.Thread(target=session, args=(who,)) for who in (1, 2, 3)]
            for thread in sessions:
                thread.start()
            for thread in sessions:
                thread.join()
            capture.until_snapshot_done()
            agree(capture, connection, "public.a", ("id",))
        assert heard.count("StreamCommit") >= 3


def test_five_thousand_savepoints(postgres: Any, tmp_path: Path, heard: Heard) -> None:
    with table(postgres) as connection:
        connection.execute(
            "create procedure many() language plpgsql as $$ begin for n in 1..5000 loop begin "
            "insert into a values (n, repeat('x', 30)); if n % 3 = 0 then raise division_by_zero; end if; "
            "exception when division_by_zero then null; end; end loop; end $$"
        )
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            began = time.process_time()
            connection.execute("call many()")
            agree(capture, connection, "public.a", ("id",))
            assert time.process_time() - began < 30
            assert len(capture.changes("public.a")) == 3334
        assert heard.count("StreamStart") > 1


def test_toast_and_truncate_and_messages_inside(
    postgres: Any, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "PIECE_BYTES", 1 << 14)
    with table(postgres) as connection:
        connection.execute("alter table a alter v set storage external")
        connection.execute("insert into a select g, repeat(md5(g::text), 200) from generate_series(1, 20) g")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("alter table a add column n int")
            with connection.transaction():
                connection.execute("update a set n = id")
                connection.execute("select pg_logical_emit_message(true, 'headwater', 'no chunk of ours')")
                connection.execute("update a set n = n + 1, v = case when id % 2 = 0 then v else repeat(md5(v), 300) end")
                connection.execute("update a set n = n + 1")
            agree(capture, connection, "public.a", ("id",))
            with connection.transaction():
                connection.execute("insert into a select g, repeat('x', 100), 1 from generate_series(100, 2000) g")
                connection.execute("truncate a")
                connection.execute("insert into a select g, repeat('y', 100), 1 from generate_series(1, 2000) g")
            agree(capture, connection, "public.a", ("id",))
        assert heard.count("StreamCommit") == 2


@pytest.mark.parametrize("how", ["terminate", "crash", "restart us"])
def test_broken_in_the_middle(postgres_server: Any, tmp_path: Path, heard: Heard, how: str) -> None:
    server = postgres_server
    capture = Capture(server.dsn(), tmp_path, tables=("public.a",))
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("alter system set logical_decoding_work_mem = '64kB'")
        connection.execute("select pg_reload_conf()")
        connection.execute("create table a (id int primary key, v text)")
    capture.start()
    try:
        capture.until_snapshot_done()
        doomed = psycopg.connect(server.dsn(), autocommit=True)
        doomed.execute("begin")
        doomed.execute("insert into a select g, repeat('x', 100) from generate_series(1, 5000) g")
        capture.until(lambda: heard.count("StreamStart") > 10, "for the stream")
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("insert into a values (0, 'between')")
            capture.until(lambda: len(capture.changes("public.a")) == 1, "for the small one")
            began = heard.count("StreamStart")
            if how == "terminate":
                connection.execute("select pg_terminate_backend(active_pid) from pg_replication_slots")
            elif how == "restart us":
                capture.stop()
                assert capture.error is None
                capture.start()
        if how == "crash":
            server.crash()
            server.start()
        else:
            doomed.execute("update a set v = 'more' where id % 5 = 0")
            capture.until(lambda: heard.count("StreamStart") > began, "for the stream to come again, from the beginning")
            doomed.execute("commit")
        doomed.close()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("insert into a values (-1, 'after')")
            agree(capture, connection, "public.a", ("id",))
        assert len(capture.rows("public.a")) == (2 if how == "crash" else 5002)
        positions = [position for position, _, _ in capture.changes("public.a")]
        assert len(set(positions)) == len(positions)
    finally:
        capture.stop()
    assert capture.error is None
    # Nothing of a spool outlives its connection.
    assert not [path for path in capture.settings.log.dir.iterdir() if path.name.startswith("tmp")]


def test_an_open_transaction_does_not_hold_the_confirmed_lsn_back(postgres: Any, tmp_path: Path, heard: Heard) -> None:
    """… nor is anything of it confirmed away: its WAL stays, and it comes whole after a reconnect."""
    with table(postgres) as connection, postgres.connect() as other:
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            other.execute("begin")
            other.execute("insert into a select g, repeat('x', 100) from generate_series(1, 3000) g")
            capture.until(lambda: heard.count("StreamStart") > 3, "for the stream")
            connection.execute("insert into a values (0, 'small')")
            here = lsn(connection)

            def confirmed() -> bool:
                row = connection.execute(
                    "select confirmed_flush_lsn >= pg_lsn '0/0' + %s from pg_replication_slots where database = current_database()",
                    (here,),
                ).fetchone()
                return row is not None and bool(row[0])

            connection.execute("insert into a values (-1, 'small')")
            capture.until(confirmed, "for the confirmed LSN")
        with capture.running():
            other.execute("commit")
            agree(capture, connection, "public.a", ("id",))
            assert len(capture.rows("public.a")) == 3002


def test_streaming_can_be_switched_off(postgres: Any, tmp_path: Path, heard: Heard) -> None:
    with table(postgres) as connection:
        capture = Capture(postgres.dsn, tmp_path, streaming=False)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 3000) g")
            agree(capture, connection, "public.a", ("id",))
        assert heard.names == []


def test_a_large_transaction_through_libpq(postgres: Any, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_Socket", streaming._Libpq)
    with table(postgres) as connection:
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 20000) g")
            agree(capture, connection, "public.a", ("id",))
            assert one_cut(capture, 0)
        assert heard.count("StreamCommit") == 1


def test_capture_stops_in_the_middle_of_a_large_commit(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for it; the next start brings it whole."""
    monkeypatch.setattr(spool, "PIECE_BYTES", 1 << 12)
    reached = threading.Event()
    take = Groups.take

    def slow(self: Groups, *args: Any, **kw: Any) -> Any:
        if not kw["complete"]:
            reached.set()
            time.sleep(0.2)
        return take(self, *args, **kw)

    with table(postgres) as connection:
        capture = Capture(postgres.dsn, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Groups, "take", slow)
            with capture.running():
                capture.until_snapshot_done()
                connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 20000) g")
                assert reached.wait(60)
                began = time.monotonic()
            assert time.monotonic() - began < 60
            assert capture.changes("public.a") == []
        with capture.running():
            agree(capture, connection, "public.a", ("id",))


# Prepared transactions


def prepare(database: Any, gid: str, *statements: str) -> None:
    with database.connect() as connection:
        connection.execute("begin")
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"prepare transaction '{gid}'")


ROWS = "insert into a select g, repeat('x', 100) from generate_series({}, {}) g"


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("rows", [3, 3000])
def test_prepared_transactions(
    pg_versions: Any, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch, two_phase: bool, rows: int
) -> None:
    # The kept files go at the first cut behind the end, and nobody writes after it.
    monkeypatch.setattr("cdc.ingest.idle.IDLE_RECORD_S", 0.2)
    with table(pg_versions) as connection:
        capture = Capture(pg_versions.dsn, tmp_path, two_phase=two_phase)
        kept = capture.settings.log.dir / "prepared"
        with capture.running():
            capture.until_snapshot_done()
            name = connection.info.dbname
            prepare(pg_versions, f"{name} one", ROWS.format(1, rows), "savepoint s", ROWS.format(50001, 51000), "rollback to s")
            prepare(pg_versions, f"{name} two", ROWS.format(10001, 10000 + rows))
            connection.execute("insert into a values (0, 'between')")
            agree(capture, connection, "public.a", ("id",))
            assert len(capture.changes("public.a")) == 1
            if two_phase:
                capture.until(lambda: len(list(kept.glob("*"))) == 2, "for both to be kept")
        # A restart between PREPARE and the end: what was confirmed is not sent again.
        with capture.running():
            connection.execute(f"rollback prepared '{name} two'")
            connection.execute(f"commit prepared '{name} one'")
            agree(capture, connection, "public.a", ("id",))
            assert len(capture.changes("public.a")) == 1 + rows
            assert one_cut(capture, 1)
            capture.until(lambda: not kept.exists() or not list(kept.iterdir()), "for the kept files to go")
        assert (heard.count("CommitPrepared") > 0) == two_phase
        assert (heard.count("Prepare") >= 2) == two_phase


def test_a_prepared_transaction_neither_hangs_a_shutdown_nor_is_lost(server_folder: Path, tmp_path: Path, heard: Heard) -> None:
    from cdc.embedded.postgres import VOLATILE, Postgres

    server = Postgres(server_folder / "two-phase", options={**VOLATILE, "max_prepared_transactions": "10"})
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("create table a (id int primary key, v text)")
        capture = Capture(server.dsn(), tmp_path, two_phase=True)
        with capture.running():
            capture.until_snapshot_done()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("begin")
                connection.execute(ROWS.format(1, 10))
                connection.execute("prepare transaction 'long'")
            capture.until(lambda: heard.count("Prepare") > 0, "for PREPARE")
            began = time.monotonic()
            server.stop("fast", timeout_s=120)
            assert time.monotonic() - began < 60
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("insert into a values (0, 'after')")
                connection.execute("commit prepared 'long'")
                agree(capture, connection, "public.a", ("id",))
    finally:
        server.stop("immediate")
