"""Rows of the outbox table as events of topics: from the stream, the snapshot and what is read again."""

from __future__ import annotations

import random
from pathlib import Path

import psycopg

from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE, OutboxCapture, write


def wal_end(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(str(row[0]))


def test_each_aggregate_has_its_topic_in_commit_order(postgres: Database, tmp_path: Path) -> None:
    one, other = postgres.connect(), postgres.connect(autocommit=False)
    one.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        late = write(other, "order", "1", {"n": 0})  # written first, committed last
        first = write(one, "order", "1", {"n": 1.25, "none": None, "list": []}, type="placed")
        second = write(one, "Customer", "7")
        other.commit()
        capture.until_lsn(wal_end(one))
        assert capture.event_topics() == ["outbox.order", "outbox.Customer"]
        assert capture.ids("outbox.order") == [first, late]
        [(_, op, values)] = capture.events("outbox.Customer")
        assert (op, values["id"], values["key"], values["type"]) == ("c", second, "7", "happened")
        assert values["time"] is not None
        placed = capture.events("outbox.order")[0][2]
        assert placed["type"] == "placed"
        assert placed["payload"] == '{"n": 1.25, "list": [], "none": null}'
        assert capture.positions() == list(range(1, capture.reader.head().position + 1))


def test_only_the_first_version_of_a_row_is_an_event(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        kept = write(connection, "order", "1")
        with connection.transaction():  # as Debezium's users do: the table is empty at every moment
            gone = write(connection, "order", "1")
            connection.execute("delete from outbox where id = %s", [gone])
        connection.execute("update outbox set type = 'another' where id = %s", [kept])
        connection.execute("delete from outbox where id = %s", [kept])
        connection.execute("truncate outbox")
        last = write(connection, "order", "1")
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [kept, gone, last]
        assert {values["type"] for _, _, values in capture.events("outbox.order")} == {"happened"}
        assert [op for _, op, _ in capture.events("outbox.order")] == ["c"] * 3


def test_a_filled_table_and_what_is_read_again_are_events_once(postgres: Database, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    connection = postgres.connect()
    connection.execute(CREATE)
    there = [write(connection, chance.choice("ab"), "1") for _ in range(200)]
    capture = OutboxCapture(postgres.dsn, tmp_path, snapshot_chunk_rows=50)
    with capture.running():
        for number in range(50):  # while the table is read
            there.append(write(connection, chance.choice("ab"), "1"))
            if number % 5 == 0:
                connection.execute("update outbox set type = type || '!' where id = %s", [chance.choice(there)])
        capture.until_snapshot_done()
        capture.until_lsn(wal_end(connection))
        assert sorted(str(id) for id in capture.ids("outbox.a") + capture.ids("outbox.b")) == sorted(there)
    assert_read_again(capture, connection, there)


def assert_read_again(capture: OutboxCapture, connection: psycopg.Connection[tuple[object, ...]], there: list[str]) -> None:
    from snapshots.progress import SnapshotProgress

    row = connection.execute("select 'outbox'::regclass::oid::int").fetchone()
    assert row is not None
    oid = int(str(row[0]))
    progress = SnapshotProgress(capture.settings.log.dir)
    progress.restart(oid, empties=True)
    capture.until_released(connection)
    with capture.running():
        capture.until_snapshot_done()
        there.append(write(connection, "a", "1"))
        capture.until_lsn(wal_end(connection))
        assert sum(op == "r" for _, op, _ in capture.changes("public.outbox")) >= 2 * len(there) - 60, "it was read again"
        assert sorted(str(id) for id in capture.ids("outbox.a") + capture.ids("outbox.b")) == sorted(there)
        assert capture.positions() == list(range(1, capture.reader.head().position + 1))


def test_rows_that_cannot_be_events_are_said_and_others_flow(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        with connection.transaction():
            write(connection, None, "1")
            write(connection, "", "1")
            write(connection, "x" * 64, "1")
            write(connection, "order", None)
            good = write(connection, "order", "1")
        capture.until_lsn(wal_end(connection))
        assert capture.event_topics() == ["outbox.order"]
        assert capture.ids("outbox.order") == [good]
        capture.until(lambda: len(capture.status.left_out) == 2, "for the status")
        assert [line.partition(" →")[0] for line in capture.status.left_out] == [
            "1 rows of public.outbox are no events: it has no key",
            "3 rows of public.outbox are no events: no topic can have the name that its route makes",
        ]


def test_a_payload_of_another_type_goes_on_under_its_own_definition(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        first = write(connection, "order", "1", {"a": 1})
        connection.execute("alter table outbox alter payload type json")
        second = write(connection, "order", "1", {"a": 2})
        capture.until_lsn(wal_end(connection))
        capture.until_snapshot_done()
        assert capture.ids("outbox.order") == [first, second]
        assert [op for _, op, _ in capture.events("outbox.order")] == ["c", "s", "c"]


def test_a_large_transaction_is_taken_in_pieces(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        connection.execute(
            "insert into outbox select gen_random_uuid(), 'order', (n % 7)::text, n::text, jsonb_build_object('n', repeat('x', 200)) from"
            " generate_series(1, 100000) n"
        )
        capture.until_lsn(wal_end(connection))
        types = [values["type"] for _, op, values in capture.events("outbox.order") if op == "c"]
        assert types == [str(number) for number in range(1, 100_001)]
        assert capture.positions() == list(range(1, 200_001))
