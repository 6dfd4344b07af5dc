"""`cdc outbox`: the table, made by its owner, is all that a role without other rights needs; and what is shown of events."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from cdc.commands.app import app
from cdc.commands.invocation import Invocation
from cdc.commands.preflight import examine, refuse_unknown
from cdc.errors import ConfigError, Stopped, StopState
from cdc.ingest import eventremoval
from cdc.outbox import OutboxMessages, OutboxTable, emit
from cdc.settings.file import load
from sinks import options_model
from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE, OutboxCapture
from tests.integration.outbox.test_events import wal_end


@pytest.fixture
def role(postgres: Database) -> Iterator[str]:
    """One that may replicate, and nothing else."""
    name = f"reader_{uuid.uuid4().hex[:8]}"
    admin = postgres.connect()
    admin.execute(f"create role {name} login replication password 'once'")
    admin.execute(f"alter role {name} set default_transaction_read_only = on")
    yield name
    postgres.server.start()
    with psycopg.connect(postgres.dsn, autocommit=True) as again:
        again.execute(f"drop owned by {name}")
        again.execute(f"drop role {name}")


def configuration(folder: Path, postgres: Database, role: str, more: str = "") -> Path:
    path = folder / "cdc.toml"
    dsn = psycopg.conninfo.make_conninfo(postgres.dsn, user=role, **({"password": "once"} if role.startswith("reader") else {}))
    path.write_text(f'run_dir = "run"\n[source]\ndsn = "{dsn}"\n[log]\ndir = "log"\n[outbox]\n{more}')
    path.chmod(0o600)
    return path


def cdc(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--config", str(path), *arguments])


def test_init_makes_all_that_capture_needs(postgres: Database, role: str, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create publication cdc with (publish_via_partition_root = true)")
    connection.execute("revoke usage on schema public from public")
    path = configuration(tmp_path, postgres, role)
    done = cdc(path, "outbox", "init", "--source", postgres.dsn)
    assert done.exit_code == 0, done.output
    said = [line for line in done.stdout.splitlines() if line.endswith(";")]
    assert said[-3:] == [
        f'grant usage on schema "public" to "{role}";',
        f'grant select, delete on "public"."outbox" to "{role}";',
        'alter publication "cdc" add table only "public"."outbox";',
    ]
    assert done.stdout.startswith('create table "public"."outbox" (')
    again = cdc(path, "outbox", "init", "--source", postgres.dsn)
    assert again.stdout == "public.outbox is ready; nothing was to do\n"
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_snapshot_done()
        ids = []
        with connection.transaction():
            ids = [str(emit(connection, "order.placed", number, {"n": number})) for number in range(30)]
            ids += [str(emit(connection, "bill.sent", 1, {})) for _ in range(2)]
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") + capture.ids("outbox.bill") == ids
        capture.until(lambda: connection.execute("select from outbox").rowcount == 0, "for the rows to be removed")
        shown = cdc(path, "outbox", "ls", "--json")
        assert shown.exit_code == 0, shown.output
        found = json.loads(shown.stdout)
        assert (found["table"], found["rows"]) == ("public.outbox", 0)
        assert {one["topic"]: one["events"] for one in found["topics"]} == {"outbox.order": 30, "outbox.bill": 2}
        assert "outbox.order events=30" in cdc(path, "outbox", "ls").stdout
    rows = tmp_path / "rows"
    rows.write_text('{"id": 1}\n')
    refused = cdc(path, "log", "append", "outbox.never", str(rows), "--key", "id")
    assert "outbox.topic makes that name" in str(refused.exception)


def test_the_statements_alone_make_the_same(postgres: Database, role: str, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create publication cdc with (publish_via_partition_root = true)")
    path = configuration(tmp_path, postgres, role)
    shown = cdc(path, "outbox", "init", "--sql")
    assert shown.exit_code == 0, shown.output
    assert connection.execute("select to_regclass('public.outbox')").fetchone() == (None,)
    connection.execute(shown.stdout.encode())
    again = cdc(path, "outbox", "init", "--source", postgres.dsn)
    assert again.stdout == "public.outbox is ready; nothing was to do\n"
    with connection.transaction():
        emit(connection, "x", 1, {}, aggregate="o" * 63)
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("update outbox set aggregatetype = aggregatetype || 'o'")


def test_what_cannot_be_an_outbox_is_refused(postgres: Database, role: str, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create table outbox (id uuid primary key, aggregatetype text, aggregateid text, type text, payload xml)")
    path = configuration(tmp_path, postgres, role)
    refused = cdc(path, "outbox", "init", "--source", postgres.dsn)
    assert str(refused.exception) == "public.outbox cannot be an outbox: column payload is not jsonb, json, text or bytea"


def test_a_role_that_may_not_is_told_who_may(postgres: Database, role: str, tmp_path: Path) -> None:
    path = configuration(tmp_path, postgres, role)
    refused = cdc(path, "outbox", "init")
    assert "may not set up the outbox" in str(refused.exception)
    assert "--source with the tables' owner" in str(getattr(refused.exception, "hint", ""))


def test_without_the_right_to_delete_rows_stay_and_the_status_says_so(postgres: Database, role: str, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create publication cdc with (publish_via_partition_root = true)")
    path = configuration(tmp_path, postgres, role)
    assert cdc(path, "outbox", "init", "--source", postgres.dsn).exit_code == 0
    connection.execute(f"revoke delete on outbox from {role}")
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_snapshot_done()
        with connection.transaction():
            id = str(emit(connection, "order.placed", 1, {}))
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [id]
        capture.until(lambda: bool(capture.status.notes), "for the status")
        [note] = [line for line in capture.status.notes if "outbox" in line]
        assert note == (
            "rows of public.outbox stay there after their events were taken: cannot delete from public.outbox: permission denied for table outbox"
            ' → cdc outbox init grants the right; or set keep = "" in [outbox]'
        )
        connection.execute(f"grant delete on outbox to {role}")
        capture.until(lambda: connection.execute("select from outbox").rowcount == 0, "for the rows to be removed")
        capture.until(lambda: not capture.status.notes, "for the status")


def held(connection: psycopg.Connection[Any]) -> set[str]:
    return {str(row[0]) for row in connection.execute("select id from outbox").fetchall()}


def test_a_row_that_somebody_holds_is_removed_later(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventremoval, "LOOK_S", 10.0)
    connection, other = postgres.connect(), postgres.connect(autocommit=False)
    path = configuration(tmp_path, postgres, psycopg.conninfo.conninfo_to_dict(postgres.dsn)["user"])
    assert cdc(path, "outbox", "init").exit_code == 0
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_snapshot_done()
        with connection.transaction():
            ids = [str(emit(connection, "order.placed", number, {})) for number in range(2500)]
        other.execute("select from outbox where id = %s for update", [ids[1700]])
        monkeypatch.setattr(eventremoval, "LOOK_S", 0.1)
        capture.until(lambda: held(connection) == {ids[1700]}, "for the others")
        with connection.transaction():
            emit(connection, "order.placed", 1, {})
        capture.until(lambda: held(connection) == {ids[1700]}, "for the next")
        other.rollback()
        capture.until(lambda: not held(connection), "for the last")
        assert len(set(capture.ids("outbox.order"))) == 2501


def test_a_snapshot_brings_what_was_captured_before_there_was_an_outbox(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    path = configuration(tmp_path, postgres, psycopg.conninfo.conninfo_to_dict(postgres.dsn)["user"], 'keep = ""\n')
    with connection.transaction():
        before = [str(emit(connection, "order.placed", number, {})) for number in range(20)]
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model).model_copy(update={"outbox": None})
    with capture.running():
        capture.until_snapshot_done()
        assert capture.topics() == ["public.outbox"]
    capture.until_released(connection)
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_snapshot_done()
        with connection.transaction():
            after = str(emit(connection, "order.placed", 1, {}))
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [after]
        asked = cdc(path, "snapshot", "public.outbox")
        assert asked.exit_code == 0, asked.output
        capture.until(lambda: len(capture.ids("outbox.order")) >= 21, "for what was there before")
        capture.until_snapshot_done()
        assert sorted(map(str, capture.ids("outbox.order"))) == sorted([*before, after])


def test_doctor_and_run_say_what_is_missing(postgres: Database, role: str, tmp_path: Path) -> None:
    connection = postgres.connect()
    path = configuration(tmp_path, postgres, role)
    assert finding(path) == ("fail", "outbox.table: public.outbox does not exist", "cdc outbox init")
    with pytest.raises(ConfigError, match=r"^outbox\.table: public\.outbox does not exist$"):
        refuse_unknown(load(path, options_model))
    assert cdc(path, "outbox", "init", "--source", postgres.dsn).exit_code == 0
    assert finding(path) == ("ok", "public.outbox makes topics outbox.*", None)
    refuse_unknown(load(path, options_model))
    connection.execute(f"revoke delete on outbox from {role}")
    assert finding(path)[:2] == ("warn", f"role {role} may not delete from public.outbox, so its rows stay")
    connection.execute("alter table outbox rename payload to body")
    assert finding(path)[:2] == ("fail", "outbox.table: public.outbox cannot be an outbox: it has no column payload")
    connection.execute("create schema outbox")
    connection.execute('create table outbox."order" (id int primary key)')
    assert finding(path)[1] == "outbox.topic: the database has a table outbox.order, and the topics of events have such names"


def finding(path: Path) -> tuple[str, str, str | None]:
    [found] = [one for one in examine(Invocation(path), fix=False) if one.check == "outbox"]
    return found.level, found.message, found.hint


def test_messages_need_nothing_to_be_made(postgres: Database, role: str, tmp_path: Path) -> None:
    path = configuration(tmp_path, postgres, role, 'prefix = "outbox"\n')
    assert cdc(path, "outbox", "init").stdout == "nothing is to be made: events are messages under outbox (docs/outbox.md)\n"
    assert finding(path) == ("ok", "messages under outbox make topics outbox.*", None)
    postgres.connect().execute("create table outbox (id int primary key)")
    refuse_unknown(load(path, options_model))


@pytest.mark.parametrize("form", ["table", "messages"])
def test_events_are_given_again(postgres: Database, tmp_path: Path, form: str) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    user = psycopg.conninfo.conninfo_to_dict(postgres.dsn)["user"]
    path = configuration(tmp_path, postgres, user, "" if form == "table" else 'prefix = "outbox"\n')
    assert cdc(path, "outbox", "init").exit_code == 0
    if form == "table":
        connection.execute("alter table outbox alter payload type json")
    to = OutboxTable() if form == "table" else OutboxMessages()
    payload = '{"b": 1.00,\n "a": []}'
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_snapshot_done()
        with connection.transaction():
            first = str(emit(connection, "order.placed", 7, payload, {"tenant": "north"}, encode=str, outbox=to))
            emit(connection, "order.placed", 8, {}, outbox=to)
        with connection.transaction():
            last = str(emit(connection, "order.gone", 7, None, outbox=to))
        capture.until_lsn(wal_end(connection))
        shown = cdc(path, "outbox", "replay", "outbox.order", "--key", "7")
        assert shown.exit_code == 0, shown.output
        one, other = map(json.loads, shown.stdout.splitlines())
        assert (one["id"], one["key"], one["type"], one["headers"]) == (first, "7", "order.placed", {"tenant": "north"})
        assert '"payload":{"b": 1.00,  "a": []}' in shown.stdout
        assert (other["id"], "payload" in other, "headers" in other) == (last, False, False)
        assert len(cdc(path, "outbox", "replay", "outbox.order", "--from", str(other["position"])).stdout.splitlines()) == 1
        again = cdc(path, "outbox", "replay", "outbox.order", "--key", "7", "--to", str(other["position"]), "--again")
        assert again.stdout == "2 events of outbox.order written again\n", again.output
        capture.until_lsn(wal_end(connection))
        *_, third, fourth = (values for _, _, values in capture.events("outbox.order"))
        assert (third["key"], third["type"], third["payload"]) == ("7", "order.placed", payload)
        assert json.loads(str(third["headers"])) == {"tenant": "north", "replayed-of": first}
        assert json.loads(str(fourth["headers"])) == {"replayed-of": last}
        assert fourth["payload"] is None
        assert len({first, last, third["id"], fourth["id"]}) == 4
    refused = cdc(path, "outbox", "replay", "public.orders")
    assert str(refused.exception) == "public.orders is not a topic of events"


def test_rows_are_kept_for_as_long_as_was_said_and_columns_are_headers(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = postgres.connect()
    more = 'keep = "24h"\nheaders = { tenant = "tenant_id", eventType = "type" }\n'
    path = configuration(tmp_path, postgres, psycopg.conninfo.conninfo_to_dict(postgres.dsn)["user"], more)
    made = cdc(path, "outbox", "init")
    assert '"tenant_id" text' in made.stdout, made.output
    connection.execute("alter table outbox alter tenant_id set default 'north'")
    now_us = eventremoval._now_us
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_snapshot_done()
        with connection.transaction():
            emit(connection, "order.placed", 1, {}, {"traceparent": "00-ab-cd-01"})
        capture.until_lsn(wal_end(connection))
        [(_, _, values)] = capture.events("outbox.order")
        assert json.loads(str(values["headers"])) == {"traceparent": "00-ab-cd-01", "tenant": "north", "eventType": "order.placed"}
        looked = threading.Event()
        monkeypatch.setattr(eventremoval, "_now_us", lambda: (looked.set(), now_us())[1])
        assert looked.wait(60)
        assert len(held(connection)) == 1
        monkeypatch.setattr(eventremoval, "_now_us", lambda: now_us() + 25 * 3600 * 10**6)
        capture.until(lambda: not held(connection), "for the row to be removed")


def test_an_update_stops_capture_where_that_was_said(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    user = psycopg.conninfo.conninfo_to_dict(postgres.dsn)["user"]
    path = configuration(tmp_path, postgres, user, 'keep = ""\non_update = "stop"\n')
    assert cdc(path, "outbox", "init").exit_code == 0
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = load(path, options_model)
    capture.start()
    capture.until_snapshot_done()
    with connection.transaction():
        id = emit(connection, "order.placed", 1, {})
    capture.until_lsn(wal_end(connection))  # else both transactions may come at once, and neither is taken then
    with connection.transaction():
        connection.execute("update outbox set type = 'another'")
        emit(connection, "order.placed", 2, {})
    error = capture.failure()
    assert isinstance(error, Stopped)
    assert (error.state, str(error)) == (
        StopState.OUTBOX_UPDATED,
        "OUTBOX_UPDATED: a row of public.outbox was changed after its event was taken",
    )
    assert capture.ids("outbox.order") == [str(id)]
    capture.stop()
    capture.until_released(connection)
    path.write_text(path.read_text().replace('"stop"', '"ignore"'))
    capture.settings = load(path, options_model)
    with capture.running():
        capture.until_lsn(wal_end(connection))
        assert len(capture.ids("outbox.order")) == 2
