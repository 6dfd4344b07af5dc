"""Stores follow event topics like any table, and never the outbox table unless one names it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import redis

from cdc.outbox import emit
from cdc.settings.file import load
from sinks import options_model
from tests.conftest import Cache, Database
from tests.integration.outbox.capturing import CREATE
from tests.integration.pipeline import service

FILE = """
run_dir = "run"
[source]
dsn = "{dsn}"
[log]
dir = "log"
cleanup = "compact"
[outbox]
[stores.all]
kind = "redis"
url = "{url}/0"
tables = ["*"]
[stores.events]
kind = "redis"
url = "{url}/1"
tables = ["outbox.order"]
key = "order:{{id}}"
[stores.table]
kind = "redis"
url = "{url}/2"
tables = ["public.outbox"]
[stores.bus]
kind = "redis-stream"
url = "{url}/3"
stream = "all"
begin = "start"
[stores.bus.tables]
select = ["outbox.*", "public.plain"]
"public.plain" = {{ when = "op <> 'update' OR changed(n)" }}
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def test_stores_hold_events_and_not_the_table(postgres: Database, valkey: Cache, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    connection.execute("create table plain (id int primary key, n int, other int)")
    path = tmp_path / "cdc.toml"
    server = valkey.url.rpartition("/")[0]
    path.write_text(FILE.format(dsn=postgres.dsn, url=server))
    path.chmod(0o600)
    settings = load(path, options_model)
    every, events, table, bus = (redis.Redis.from_url(f"{server}/{number}", decode_responses=True) for number in range(4))
    with service(settings):
        connection.execute("insert into plain values (1, 1, 1)")
        with connection.transaction():
            ids = [str(emit(connection, "order.placed", 7, {"n": number}, {"who": "me"})) for number in range(3)]
            other = str(emit(connection, "bill.sent", 8, {}))
        until(lambda: len(events.keys("order:*")) == 3, "the events")
        found = json.loads(events.get(f"order:{ids[1]}"))  # type: ignore[arg-type]
        assert (found["id"], found["key"], found["type"], found["payload"], found["headers"]) == (
            ids[1], "7", "order.placed", {"n": 1}, {"who": "me"},
        )  # fmt: skip
        until(lambda: len(every.keys("outbox.*")) == 4, "the events")
        until(lambda: every.exists("public.plain:1") == 1, "the table's row")
        assert every.exists(f"outbox.bill:{other}") == 1
        assert every.keys("public.outbox*") == []
        # Rows are removed from the table, and from a store that holds the table; events stay.
        connection.execute("update plain set other = 2")
        connection.execute("update plain set n = 2")
        until(lambda: bus.xlen("all") == 6, "what goes on to others")
        handed = [fields for _, fields in bus.xrange("all")]
        assert [one["id"] for one in handed if one["topic"].startswith("outbox.")] == [*ids, other]
        changes = [json.loads(one["body"]) for one in handed if one["topic"] == "public.plain"]
        assert [(one["before"], one["after"]) for one in changes] == [
            (None, {"id": 1, "n": 1, "other": 1}),  # an insert, or read by the snapshot
            ({"id": 1, "n": 1, "other": 2}, {"id": 1, "n": 2, "other": 2}),
        ]
        until(lambda: connection.execute("select from outbox").rowcount == 0, "the rows to be removed")
        until(lambda: table.keys("public.outbox:*") == [], "the rows to be removed from the store")
        assert len(events.keys("order:*")) == 3
