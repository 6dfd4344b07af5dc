"""``where`` and ``computed`` over a real Postgres and real stores: at the end a store is what a SELECT says, whatever happened on the way."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.audit.stores import audit
from cdc.errors import StopState
from cdc.plan.plan import plan_catalog, plan_ddl
from cdc.settings.models import Settings
from cdc.source.connection import connect
from cdc.state import stops
from sinks import make_sink
from sinks.deadletters import box_of
from tests.conftest import Cache, Database
from tests.integration.pipeline import service, settings_of
from tests.waiting import until

CATCH_UP_S = 600
"""For a store to get as far as the source, on a machine with much else to do."""
DDL = """
create table public.items (id bigint primary key, status text, qty int, per int, note text);
create publication cdc for table public.items;
insert into public.items select g, case g % 3 when 0 then 'x' when 1 then 'y' end, g % 7, g % 4, repeat('n', 50) from generate_series(1, 300) g
"""
SAID: Mapping[str, Any] = {
    "where": "status = 'x' AND qty > 2",
    "computed": {"each": "qty / per"},
    "exclude": ["note"],
    "rename": {"each": "per_one"},
}
HELD = "select id, status, qty, per, qty / nullif(per, 0) from public.items where status = 'x' and qty > 2 order by id"


@pytest.fixture
def source(postgres: Database) -> Iterator[psycopg.Connection]:
    with connect(postgres.dsn) as connection:
        for statement in DDL.split(";"):
            connection.execute(statement.encode())
        yield connection


def shop(postgres: Database, folder: Path, valkey: Cache, said: Mapping[str, Any] = SAID, **more: Mapping[str, object]) -> Settings:
    cache = {"kind": "redis", "url": valkey.url, "key": "i:{id}", "tables": {"public.items": said}}
    return settings_of(postgres, folder, {"cache": cache, **more})


def serve(settings: Settings) -> None:
    """A process of its own, to be killed."""
    with service(settings):
        time.sleep(3600)


def change(connection: psycopg.Connection, chance: random.Random, times: int) -> None:
    for _ in range(times):
        one, status = chance.randrange(1, 340), chance.choice(["x", "x", "y", None])
        statements: list[tuple[str, tuple[object, ...]]] = [
            ("update public.items set status = %s where id = %s", (status, one)),
            ("update public.items set qty = %s, per = %s where id % 17 = %s % 17", (chance.randrange(7), chance.randrange(4), one)),
            ("delete from public.items where id = %s", (one,)),
            (
                "insert into public.items values (%s, %s, %s, %s, 'new') on conflict (id) do update set status = excluded.status",
                (one, status, chance.randrange(7), chance.randrange(4)),
            ),
            (
                "update public.items set id = id + 1000 where id = %s and not exists (select from public.items where id = %s + 1000)",
                (one, one),
            ),
            ("update public.items set note = %s where id = %s", ("m" * chance.randrange(3000), one)),
        ]
        statement, values = chance.choice(statements)
        connection.execute(statement.replace("% 17", "%% 17").encode(), values)


def in_redis(valkey: Cache) -> list[tuple[object, ...]]:
    with valkey.client() as client:
        rows = [json.loads(client.get(key)) for key in client.scan_iter("i:*", 1000)]
    return sorted((one["id"], one["status"], one["qty"], one["per"], one["per_one"]) for one in rows)


def letters(settings: Settings, store: str) -> set[str]:
    sink = make_sink(store, settings.stores[store])
    box = box_of(sink)
    assert box is not None
    try:
        return {one.key for one in box.letters()}
    finally:
        sink.close()


def expect(source: psycopg.Connection, settings: Settings, valkey: Cache) -> None:
    """Each store is what the SELECT says, and its dead letters are the rows that it divides by zero."""
    rows = source.execute(HELD).fetchall()
    failing = {row[0] for row in rows if row[3] == 0}
    for result in audit(settings, timeout_s=CATCH_UP_S):
        assert result.equal, result.to_json()
        [table] = result.tables
        assert (table.scanned.source_rows, table.scanned.store_rows) == (len(rows), len(rows) - len(failing)), result.to_json()
        assert table.tally.aside == len(failing), result.to_json()
    assert in_redis(valkey) == [row for row in rows if row[0] not in failing]
    assert letters(settings, "cache") == {f"i:{one}" for one in failing}


def test_stores_are_what_the_select_says_after_random_changes_and_a_kill(
    source: psycopg.Connection, postgres: Database, valkey: Cache, opensearch: Any, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    search = {"kind": "opensearch", "url": opensearch.url, "tables": {"public.items": SAID}}
    settings = shop(postgres, tmp_path, valkey, search=search)
    first = multiprocessing.get_context("spawn").Process(target=serve, args=(settings,))
    first.start()
    try:
        until(lambda: in_redis(valkey))
        change(source, chance, 150)
        time.sleep(chance.random())
    finally:
        first.kill()
        first.join()
    change(source, chance, 50)
    with service(settings):
        change(source, chance, 100)
        expect(source, settings, valkey)
        source.execute(
            "update public.items set per = 0 where id = (select min(id) from public.items where status = 'x' and qty > 2)"
        )
        expect(source, settings, valkey)
        source.execute("update public.items set per = 2")
        expect(source, settings, valkey)
        assert letters(settings, "cache") == set()
        source.execute("alter table public.items drop column note")
        source.execute("alter table public.items rename column per to portion")
        source.execute("update public.items set portion = 0 where id % 2 = 0")
        rows = source.execute(HELD.replace("per", "portion").encode()).fetchall()
        for result in audit(settings, timeout_s=CATCH_UP_S):
            assert result.equal, result.to_json()
            assert result.tables[0].scanned.source_rows == len(rows), "the column is still the one that was meant"
        source.execute("truncate public.items")
        for result in audit(settings, timeout_s=CATCH_UP_S):
            assert (result.equal, result.tables[0].scanned.store_rows) == (True, 0), result.to_json()


def test_drift_is_found_among_the_rows_that_are_held(
    source: psycopg.Connection, postgres: Database, valkey: Cache, tmp_path: Path
) -> None:
    settings = shop(postgres, tmp_path, valkey)
    with service(settings):
        expect(source, settings, valkey)
        held, left_out = in_redis(valkey)[0][0], 1
        with valkey.client() as client:
            document = client.get(f"i:{held}")
            client.delete(f"i:{held}")
            client.set(f"i:{left_out}", document.replace(f'"id":{held}'.encode(), f'"id":{left_out}'.encode()))
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert {(one.kind, str(one.key["id"])) for one in result.tables[0].differences} == {
            ("missing", str(held)),
            ("extra", str(left_out)),
        }


def test_a_change_that_drops_a_used_column_stops_the_store_by_name(
    source: psycopg.Connection, postgres: Database, valkey: Cache, tmp_path: Path
) -> None:
    settings = shop(postgres, tmp_path, valkey)
    with service(settings):
        expect(source, settings, valkey)
        planned = plan_ddl(settings, "alter table public.items drop column qty", timeout_ms=60_000)
        [effect] = planned.changes[0].effects
        why = "where uses qty, which public.items no longer has"
        assert (effect.stops, why in effect.why) == (True, True), effect
        source.execute("alter table public.items drop column qty")
        until(lambda: stops.held(settings.run_dir))
    [stop] = stops.held(settings.run_dir)
    assert (stop.state, stop.part) == (StopState.STORE_REFUSES, "follow-cache")
    assert why in stop.message
    assert "cdc resume STORE_REFUSES:follow-cache --rebuild" in (stop.hint or "")


def test_another_condition_is_planned_and_refused_until_the_store_is_built_again(
    source: psycopg.Connection, postgres: Database, valkey: Cache, tmp_path: Path
) -> None:
    settings = shop(postgres, tmp_path, valkey)
    with service(settings):
        expect(source, settings, valkey)
    other = shop(postgres, tmp_path, valkey, {**SAID, "where": "status = 'y'"})
    said = [one for one in plan_catalog(other).remarks if one.stops]
    assert [(one.store, "where is another expression" in one.what) for one in said] == [("cache", True)], said
    same = shop(postgres, tmp_path, valkey, {**SAID, "where": "(status='x') and qty>2"})
    assert not [one for one in plan_catalog(same).remarks if one.stops]
