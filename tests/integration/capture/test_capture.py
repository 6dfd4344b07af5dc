"""Capture on real servers: SQL in, what the log must hold out."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.capture import decoder
from cdc.capture import stream as streaming
from cdc.errors import ConfigError, SourceError, Stopped, StopState
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import parse_lsn
from cdc.source.connection import parse
from tests.integration.capture.running import DEADLINE_S, Capture

TYPES: list[tuple[str, list[str]]] = [
    ("int2", ["-32768", "32767"]),
    ("int4", ["-2147483648", "0"]),
    ("int8", ["-9223372036854775808", "9223372036854775807"]),
    ("numeric(12,2)", ["1.10", "-0.00", "NaN"]),
    ("numeric(38,10)", ["1234567890123456789012345678.0123456789"]),
    ("numeric", ["1.10", "NaN", "Infinity", "-Infinity", "123456789012345678901234567890123456789012345678901234567890.5"]),
    ("numeric(5,1)", ["1.25", "NaN"]),
    ("float4", ["1e-45", "0.1", "-0", "NaN", "3.4028235e38"]),
    ("float8", ["5e-324", "0.30000000000000004", "-0", "Infinity", "1e15", "123456789012345680"]),
    ("bool", ["t", "f"]),
    ("date", ["2024-02-29", "infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-01-01"]),
    ("time", ["24:00:00", "00:00:00.000001"]),
    ("timetz", ["12:00:00+15:59", "24:00:00-15:59:59"]),
    ("timestamp", ["2024-02-29 12:00:00.1", "infinity", "294276-12-31 23:59:59.999999", "0044-03-15 00:00:00 BC"]),
    ("timestamptz", ["2024-02-29 12:00:00.123456+05:30", "-infinity", "0001-01-01 00:00:00+00 BC"]),
    ("interval", ["1 year 2 mons -3 days +04:05:06.789", "-178000000 years"]),
    ("bytea", ["\\x00ff", ""]),
    ("text", ["", "NULL", "é🎉\u0301\ufffd", "a\tb\nc\\d\re\x01", "x" * 3000]),
    ("char(5)", ["ab"]),
    ("varchar(10)", ["a "]),
    ('"char"', ["a"]),
    ("name", ["n"]),
    ("json", ['{"a":1,"a":2,  "b":[1e400]}', '"\\ud83d"', "null"]),
    ("jsonb", ['{"b":1.10,"a":1e2}', "null"]),
    ("xml", ["<a>b</a>"]),
    ("uuid", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]),
    ("int4[]", ["{{1,2,NULL},{3,4,5}}", "{}", "[2:4][-1:0]={{1,2},{3,4},{5,6}}"]),
    ("text[]", ['{"NULL",NULL,"a,b","q\\"q","b\\\\s","{}"}']),
    ("int4range", ["(1,5]", "empty"]),
    ("tstzrange", ['["2024-01-01 00:00:00+00",)']),
    ("int4multirange", ["{[1,3),[7,9)}", "{}"]),
    ("inet", ["::ffff:1.2.3.4", "10.0.0.0/8"]),
    ("macaddr", ["08:00:2b:01:02:03"]),
    ("bit(4)", ["0101"]),
    ("varbit", ["", "1"]),
    ("money", ["-1234.50"]),
    ("tsvector", ["'cat':2 'it''s':1A"]),
    ("point", ["(1,2.5)"]),
    ("oid", ["4294967295"]),
    ("pg_lsn", ["16/B374D848"]),
    ("jsonpath", ["$.a[*]"]),
    ("mood", ['it\'s, "fine"']),
    ("pair", ['(1,"a,""b",)']),
    ("short", ["abc"]),
]


def lsn(connection: psycopg.Connection) -> int:
    row = connection.execute("select pg_logical_emit_message(true, 'test', '')::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def source_rows(connection: psycopg.Connection, table: str) -> list[dict[str, str | None]]:
    """What Postgres's output functions give under the pinned settings (a cast to text is another thing: char(n), bool, inet)."""
    with connection.transaction():
        for name, value in PINNED_SETTINGS.items():
            connection.execute("select set_config(%s, %s, true)", (name, value))
        return list(copied(connection, table))


def copied(connection: psycopg.Connection, table: str) -> Iterator[dict[str, str | None]]:
    names = [
        name
        for (name,) in connection.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
            (table,),
        )
    ]
    with connection.cursor() as cursor, cursor.copy(f"copy {table} to stdout") as copy:
        copy.set_types(["text"] * len(names))
        for row in copy.rows():
            yield dict(zip(names, row, strict=True))


def built_with_xml(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def agree(capture: Capture, connection: psycopg.Connection, table: str, key: tuple[str, ...]) -> None:
    """Rows that are read back, or read again, come behind what they belong to."""
    capture.until_lsn(lsn(connection))
    expected = {tuple(row[name] for name in key): row for row in source_rows(connection, table)}
    deadline = time.monotonic() + DEADLINE_S
    while capture.rows(table) != expected and capture.error is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert capture.rows(table) == expected


def test_every_type_snapshot_and_stream_alike(pg_versions: Any, tmp_path: Path) -> None:
    database = pg_versions
    with database.connect() as connection:
        connection.execute("create type mood as enum ('sad', 'it''s, \"fine\"')")
        connection.execute("create type pair as (a int, b text, c text)")
        connection.execute("create domain short as varchar(3)")
        types = [(kind, values) for kind, values in TYPES if kind != "xml" or built_with_xml(connection)]
        columns = ", ".join(f'"c{index}" {kind}' for index, (kind, _) in enumerate(types))
        connection.execute(f"create table wide (id int primary key, {columns})")
        depth = max(len(values) for _, values in types)

        def insert(base: int) -> None:
            for number in range(depth + 1):
                values = [values[number] if number < len(values) else None for _, values in types]
                marks = ", ".join(f"%s::{kind}" for kind, _ in types)
                connection.execute(f"insert into wide values (%s, {marks})", (base + number, *values))

        insert(0)
        capture = Capture(database.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            snapshot_until = capture.reader.head().position
            insert(100)
            agree(capture, connection, "public.wide", ("id",))
            rows = capture.rows("public.wide")
            for number in range(depth + 1):
                stored, streamed = dict(rows[(str(number),)]), dict(rows[(str(100 + number),)])
                del stored["id"], streamed["id"]
                assert stored == streamed
            assert {op for _, op, _ in capture.changes("public.wide")[: depth + 1]} == {"r"}
            assert {op for _, op, _ in capture.changes("public.wide", snapshot_until)} == {"c"}


def test_changes_in_order_and_whole(pg_versions: Any, tmp_path: Path) -> None:
    database = pg_versions
    with database.connect() as connection:
        connection.execute("create table a (id int primary key, v text)")
        connection.execute("create table b (x text, y text, v int, primary key (y, x))")
        capture = Capture(database.unix_dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            with connection.transaction():
                connection.execute("insert into a values (1, 'one'), (2, null)")
                connection.execute("insert into b values ('a', 'b:c', 1), ('a:b', 'c', 2)")
                connection.execute("update a set id = 3 where id = 2")
                try:
                    with connection.transaction():
                        connection.execute("insert into a values (99, 'rolled back')")
                        raise RuntimeError
                except RuntimeError:
                    pass
                connection.execute("delete from b where v = 1")
            connection.execute("update a set v = v")
            connection.execute("truncate a, b restart identity cascade")
            connection.execute("insert into a values (1, 'again')")
            agree(capture, connection, "public.a", ("id",))
            agree(capture, connection, "public.b", ("x", "y"))
            found = sorted([*capture.changes("public.a"), *capture.changes("public.b")], key=lambda change: change[0])
            assert [position for position, _, _ in found] == list(range(1, 13))
            assert (
                "".join(op for _, op, _ in found) == "ccccdud" + "uu" + "tt" + "c"
                or "".join(op for _, op, _ in found[:7]) == "ccccdud"
            )
            assert found[4][2] == {"id": "2", "v": None}
            assert found[6][2] == {"x": "a", "y": "b:c", "v": None}


@pytest.mark.parametrize("identity", ["default", "full", "using index a_code_idx"])
def test_unchanged_toast_is_never_a_placeholder(postgres: Any, tmp_path: Path, identity: str) -> None:
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, code text not null, body text, n int)")
        connection.execute("create unique index a_code_idx on a (code)")
        connection.execute("alter table a alter body set storage external")
        connection.execute(f"alter table a replica identity {identity}")
        connection.execute("insert into a select g, 'c' || g, repeat(md5(g::text), 200), 0 from generate_series(1, 20) g")
        key = ("code",) if "index" in identity else ("id",)
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("update a set n = 1 where id < 10")
            connection.execute("update a set id = id + 100, code = 'moved' || id, n = 2 where id in (5, 6)")
            connection.execute("delete from a where id = 7")
            connection.execute("insert into a values (7, 'c7', repeat('y', 9000), 3)")
            connection.execute("update a set n = n + 1")
            agree(capture, connection, "public.a", key)
        # What it remembered survives the restart.
        with Capture(postgres.dsn, tmp_path).running() as again:
            connection.execute("update a set n = n + 1")
            agree(again, connection, "public.a", key)


def test_one_update_of_many_wide_rows_is_taken_in_bit_by_bit(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says next to nothing of each row, and all that they hold is filled in: 8 MB here, gigabytes where nothing is lowered."""
    monkeypatch.setattr("cdc.capture.assembly.FILL_BYTES", 2**20)
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, body text, n int); create table b (id int primary key)")
        connection.execute("alter table a alter body set storage external")
        connection.execute("insert into a select g, repeat(md5(g::text), 625), 0 from generate_series(1, 100) g")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("insert into a select g, repeat(md5(g::text), 625), 0 from generate_series(101, 400) g")
            agree(capture, connection, "public.a", ("id",))
            before = capture.reader.head().position
            monkeypatch.setattr("cdc.pgvalues.columns.MAX_COLUMN_BYTES", 4 * 2**20)
            with connection.transaction():
                connection.execute("insert into b values (1)")
                connection.execute("update a set n = n + 1")
                connection.execute("insert into b values (2)")
            agree(capture, connection, "public.a", ("id",))
            assert len(capture.changes("public.a", before)) == 400
            assert [values["id"] for _, _, values in capture.changes("public.b", before)] == ["1", "2"]
            assert capture.reader.cut_within(before, 1, 1).position >= before + 402, "one transaction is one cut"


def test_columns_added_and_dropped_between_rows(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, v text)")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            with connection.transaction():
                connection.execute("insert into a values (1, 'x')")
                connection.execute("alter table a add column w numeric(4,1)")
                connection.execute("insert into a values (2, 'y', 1.5)")
                connection.execute("alter table a drop column v")
                connection.execute("insert into a values (3, 2.5)")
            capture.until_lsn(lsn(connection))
            # What comes behind them is the table read again: nobody could look up the definition that no transaction left behind.
            assert [(op, values) for _, op, values in capture.changes("public.a")][:5] == [
                ("c", {"id": "1", "v": "x"}),
                ("s", {"id": None, "v": None, "w": None}),
                ("c", {"id": "2", "v": "y", "w": "1.5"}),
                ("s", {"id": None, "w": None}),
                ("c", {"id": "3", "w": "2.5"}),
            ]
            capture.until(lambda: sum(op == "r" for _, op, _ in capture.changes("public.a")) == 3, "for the table read again")
            assert [op for _, op, _ in capture.changes("public.a")] == list("cscscrrr")
            agree(capture, connection, "public.a", ("id",))


def test_a_renamed_column_keeps_its_unchanged_toast(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, body text, n int)")
        connection.execute("alter table a alter body set storage external")
        connection.execute("insert into a select g, repeat(md5(g::text), 200), 0 from generate_series(1, 5) g")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("update a set n = 1 where id = 1")
            connection.execute("alter table a rename body to content")
            connection.execute("update a set n = 2 where id <= 3")
            whole = {row["id"]: row for row in source_rows(connection, "public.a")}

            def latest() -> dict[str | None, dict[str, str | None]]:
                return {values["id"]: values for _, op, values in capture.changes("public.a") if op != "s"}

            # Read back, perhaps more than once: what counts is the last word on each key.
            capture.until(lambda: all(latest()[key] == whole[key] for key in "123"), "for the updates")
            assert all(values.get("body") or values.get("content") for _, op, values in capture.changes("public.a") if op != "s")


def test_another_identity_keeps_unchanged_toast(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, code text not null unique, body text, n int)")
        connection.execute("alter table a alter body set storage external")
        connection.execute("insert into a select g, 'c' || g, repeat(md5(g::text), 200), 0 from generate_series(1, 5) g")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("alter table a replica identity using index a_code_key")
            connection.execute("update a set n = 2 where id = 1")
            whole = {(row["code"],): row for row in source_rows(connection, "public.a")}
            # Another key: every row comes again under it.
            capture.until(lambda: capture.rows("public.a") == whole, "for the rows under their new key")
            assert whole["c1",]["n"] == "2"


def test_a_transaction_larger_than_memory_wants(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "OPEN_BYTES", 1 << 16)
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, v text)")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 30000) g")
            agree(capture, connection, "public.a", ("id",))
            # One cut for all of it: a reader sees everything or nothing.
            assert capture.reader.cut_within(capture.reader.topics()[0].first - 1, 1, 1).position == capture.reader.head().position


@pytest.mark.parametrize("wire", ["tcp", "unix", "libpq"])
def test_traffic_from_several_sessions_over_each_transport(
    postgres: Any, tmp_path: Path, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wire == "libpq":
        monkeypatch.setattr(streaming, "_Socket", streaming._Libpq)
    with postgres.connect() as connection:
        connection.execute("create table a (id bigint primary key, who int, v text)")
        connection.execute("insert into a select g, 0, md5(g::text) from generate_series(1, 20000) g")
        capture = Capture(postgres.unix_dsn if wire == "unix" else postgres.dsn, tmp_path, snapshot_chunk_rows=2000)

        def traffic(who: int) -> None:
            with postgres.connect() as session:
                number = 0
                while number < 60:
                    try:
                        with session.transaction():
                            session.execute("update a set who = %s, v = v || 'x' where id %% 60 = %s", (who, number))
                            session.execute("delete from a where id = %s", (who * 1000 + number,))
                            session.execute("insert into a values (%s, %s, 'new')", (100_000 + who * 1000 + number, who))
                    except psycopg.errors.DeadlockDetected:
                        continue  # rolled back whole: one more transaction that must leave nothing behind
                    number += 1

        with capture.running():
            sessions = [threading.Thread(target=traffic, args=(who,)) for who in (1, 2)]
            for session in sessions:
                session.start()
            for session in sessions:
                session.join()
            capture.until_snapshot_done()
            agree(capture, connection, "public.a", ("id",))


def test_postgres_crashes_in_the_middle_of_traffic(postgres_server: Any, tmp_path: Path) -> None:
    server = postgres_server
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("create table a (id int primary key, v int)")
        connection.execute("create table done (id int primary key)")
    capture = Capture(server.dsn(), tmp_path, tables=("public.a", "public.done"))
    with capture.running():
        capture.until_snapshot_done()
        number = 0
        for round_ in range(3):
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                for _ in range(40):
                    number += 1
                    with connection.transaction():
                        connection.execute("insert into a select %s * 1000 + g, %s from generate_series(1, 50) g", (number, number))
                        connection.execute("update a set v = v + 1 where id %% 7 = %s", (number % 7,))
                if round_ == 1:
                    connection.execute(
                        "select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid is not null"
                    )
                    continue
            server.crash()
            server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            agree(capture, connection, "public.a", ("id",))
        positions = [position for position, _, _ in capture.changes("public.a")]
        assert len(set(positions)) == len(positions)


def test_a_fast_shutdown_does_not_hang_and_capture_goes_on(postgres_server: Any, tmp_path: Path) -> None:
    server = postgres_server
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("create table a (id int primary key)")
    capture = Capture(server.dsn(), tmp_path)
    with capture.running():
        capture.until_snapshot_done()
        began = time.monotonic()
        server.stop("fast", timeout_s=120)
        assert time.monotonic() - began < 60
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("insert into a values (1)")
            agree(capture, connection, "public.a", ("id",))


def test_an_idle_database_frees_its_wal(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.ingest.idle.IDLE_RECORD_S", 0.2)
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key)")
        connection.execute("create table other (v text)")
        capture = Capture(postgres.dsn, tmp_path, tables=("public.a",))
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("insert into other select repeat('x', 1000) from generate_series(1, 3000)")
            row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None

            def confirmed() -> bool:
                found = connection.execute(
                    "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = 'cdc'", (row[0],)
                ).fetchone()
                return bool(found and found[0])

            capture.until(confirmed, "for the confirmed LSN")
            assert capture.changes("public.a") == []
        # What was confirmed without a change of ours is known to the log: no false alarm at the next start.
        with Capture(postgres.dsn, tmp_path, tables=("public.a",)).running() as again:
            connection.execute("insert into a values (1)")
            agree(again, connection, "public.a", ("id",))


def test_only_what_is_durable_is_confirmed(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdc.log.embedded.writer import EmbeddedLogWriter

    gate, waits = threading.Event(), threading.Event()
    gate.set()
    commit = EmbeddedLogWriter.commit

    def slow(self: EmbeddedLogWriter, *arguments: Any) -> Any:
        if not gate.is_set():
            waits.set()
        assert gate.wait(240)
        return commit(self, *arguments)

    monkeypatch.setattr(EmbeddedLogWriter, "commit", slow)
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key)")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            gate.clear()
            connection.execute("insert into a values (1)")
            capture.until(waits.is_set, "for a commit that cannot become durable")
            durable = (capture.reader.head().commit_lsn,)
            confirmed = "select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots where slot_name = 'cdc'"
            capture.until(lambda: connection.execute(confirmed).fetchone() == durable, "for what is durable to be confirmed")
            reply = "select reply_time from pg_stat_replication join pg_replication_slots on pid = active_pid where database = current_database()"
            replied = connection.execute(reply).fetchone()
            # The server is answered all the same: once with what may have been under way, and once again.
            for _ in range(2):
                assert replied is not None
                capture.until(lambda last=replied: connection.execute(reply).fetchone() > last, "for another status")  # type: ignore[misc]
                replied = connection.execute(reply).fetchone()
            assert connection.execute(confirmed).fetchone() == durable
            gate.set()
            agree(capture, connection, "public.a", ("id",))


def test_a_dropped_slot_is_a_stop_state(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key)")
        with Capture(postgres.dsn, tmp_path).running() as capture:
            capture.until_snapshot_done()
        capture.until_released(connection)
        connection.execute("select pg_drop_replication_slot('cdc')")
        connection.execute("insert into a values (1)")
        error = Capture(postgres.dsn, tmp_path).start().failure()
        assert isinstance(error, Stopped)
        assert error.state is StopState.SLOT_MISSING
        connection.execute("select pg_create_logical_replication_slot('cdc', 'pgoutput')")
        error = Capture(postgres.dsn, tmp_path).start().failure()
        assert isinstance(error, Stopped)
        assert error.state is StopState.SLOT_REPLACED


def test_another_database_under_the_same_log_is_refused(postgres: Any, postgres_server: Any, tmp_path: Path) -> None:
    for dsn in (postgres.dsn, postgres_server.dsn()):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table a (id int primary key)")
    with Capture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
    error = Capture(postgres_server.dsn(), tmp_path).start().failure()
    assert isinstance(error, Stopped)
    assert error.state in (StopState.SYSTEM_CHANGED, StopState.SLOT_MISSING)
    error = Capture(postgres.dsn, tmp_path, slot="another").start().failure()
    assert isinstance(error, Stopped | ConfigError)


@pytest.mark.parametrize("wire", ["socket", "libpq"])
def test_a_dropped_publication_is_a_stop_state(
    pg_versions: Any, tmp_path: Path, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 17 the server ends the stream with an error; 18 warns once, and from then on says nothing and sends nothing."""
    if wire == "libpq":
        monkeypatch.setattr(streaming, "_Socket", streaming._Libpq)
    with pg_versions.connect() as connection:
        connection.execute("create table a (id int primary key)")
        capture = Capture(pg_versions.dsn, tmp_path).start()
        try:
            capture.until_snapshot_done()
            connection.execute("drop publication cdc")
            connection.execute("insert into a values (1)")
            error = capture.failure()
        finally:
            capture.stop()
        assert isinstance(error, Stopped)
        assert error.state is StopState.PUBLICATION_LOST


def test_a_table_without_identity_is_refused_with_the_sql_that_helps(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table a (id int)")
    error = Capture(postgres.dsn, tmp_path).start().failure()
    assert isinstance(error, SourceError)
    assert "public.a" in str(error)
    assert "REPLICA IDENTITY" in str(error.hint).upper()


def test_a_row_of_many_megabytes_costs_in_proportion(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    groups = decoder.Decoder.groups

    def counted(self: decoder.Decoder, block: Any, *arguments: Any) -> Any:
        decoded.append(len(block))
        return groups(self, block, *arguments)

    monkeypatch.setattr(decoder.Decoder, "groups", counted)
    with postgres.connect() as connection:
        connection.execute("create table a (id int primary key, v text)")
        with Capture(postgres.dsn, tmp_path).running() as capture:
            capture.until_snapshot_done()
            connection.execute("insert into a values (1, repeat('0123456789abcdef', 4 * 1024 * 1024))")
            agree(capture, connection, "public.a", ("id",))
    # Once all of it is there, not again with every block that brings a piece of it.
    assert sum(decoded) < 3 * (64 << 20)


def test_a_server_that_has_vanished_is_noticed(postgres: Any) -> None:
    """The kernel gives a connection up whose data nobody acknowledges; we send some every second."""
    dsn = postgres.dsn
    connection = streaming.Connection(parse(dsn), PINNED_SETTINGS, name="test")
    with socket.socket(fileno=os.dup(connection._pg.socket)) as wire:
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    connection.close()
