"""Definitions change at a real source while stores follow: afterwards every store equals the source, rows that nobody wrote again included."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg

from cdc.audit.stores import audit
from cdc.errors import StopState
from cdc.settings.models import Settings
from cdc.state import stops
from sinks.memory import STORES
from tests.conftest import Cache, Database
from tests.integration.pipeline import service, settings_of
from tests.waiting import until

SEED = """
create table items (id bigint primary key, name text, price numeric(12,2), note varchar(10));
insert into items select g, 'n' || g, g + 0.10, case when g % 2 = 0 then 'x' end from generate_series(1, 300) g;
"""
STEPS = [
    "alter table items drop column note",
    "alter table items rename column name to title",
    "alter table items add column rank int",
    "alter table items add column made date default '2013-01-31'",
    "begin; alter table items rename title to t; alter table items rename price to title; alter table items rename t to price; commit",
    "alter table items alter price type varchar(40)",
    "alter table items alter title type text using '<' || title || '>'",
    "alter table items add column note int",
    "alter table items rename id to item_id",
    "alter table items drop constraint items_pkey; alter table items add primary key (item_id, made)",
    "alter table items rename to things",
]


def equal(settings: Settings, seconds: float = 120.0) -> None:
    """Every store becomes equal to the source: what the stream cannot tell is found by polling the catalog, and read again."""
    deadline = time.monotonic() + seconds
    while True:
        found = audit(settings, None, None, timeout_s=240.0)
        different = [audited.to_json() for audited in found if not audited.equal]
        if not different:
            return
        assert time.monotonic() < deadline, different
        time.sleep(0.2)


def test_stores_follow_every_change(postgres: Database, tmp_path: Path, valkey: Cache) -> None:
    stores = {
        f"twin-{postgres.name}".replace("_", "-"): {"kind": "memory"},
        "cache": {"kind": "redis", "url": valkey.url},
        "hashes": {"kind": "redis", "url": valkey.url, "value": "hash", "key": "h:{schema}.{table}:{key}"},
    }
    settings = settings_of(postgres, tmp_path, stores)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(SEED)
        with service(settings):
            equal(settings)
            for number, step in enumerate(STEPS):
                for statement in step.split(";"):
                    connection.execute(statement)
                name = "things" if "things" in step else "items"
                key = "item_id" if number >= STEPS.index("alter table items rename id to item_id") else "id"
                connection.execute(f"update {name} set {key} = {key} where {key} = 1")
                equal(settings)


def test_a_store_that_waits_holds_up_nobody(postgres: Database, tmp_path: Path) -> None:
    waits, follows = (f"{kind}-{postgres.name}".replace("_", "-") for kind in ("waits", "follows"))
    settings = settings_of(postgres, tmp_path, {waits: {"kind": "memory", "schema": "pause"}, follows: {"kind": "memory"}})
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(SEED)
        with service(settings):
            equal(settings)
            connection.execute("alter table items drop column note")
            connection.execute("insert into items values (301, 'late', 1.10)")
            until(lambda: len(STORES[follows].rows["public.items"]) == 301)
            until(lambda: bool(stops.held(settings.run_dir)))
        [stop] = stops.held(settings.run_dir)
        assert (stop.state, stop.part) == (StopState.SCHEMA_PAUSED, f"follow-{waits}")
        assert len(STORES[waits].rows["public.items"]) == 300
        stops.clear(settings.run_dir, stop.name)
        with service(settings):
            until(lambda: len(STORES[waits].rows["public.items"]) == 301)
            equal(settings)


def test_the_audit_says_that_a_store_which_ignores_a_change_cannot_be_compared(postgres: Database, tmp_path: Path) -> None:
    ignores = f"ignores-{postgres.name}".replace("_", "-")
    settings = settings_of(postgres, tmp_path, {ignores: {"kind": "memory", "schema": "ignore"}})
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(SEED)
        with service(settings):
            equal(settings)
            connection.execute("alter table items add column more text")
            connection.execute("insert into items values (301, 'late', 1.10, null, 'more')")
            until(lambda: len(STORES[ignores].rows["public.items"]) == 301)
            [store] = audit(settings, None, None, timeout_s=240.0)
            [table] = store.tables
    assert not store.equal
    assert "former definition" in (table.error or "")
