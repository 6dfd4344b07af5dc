"""Rows whose places change, over a real Postgres and real stores: at the end each row is at one place, whatever happened on the way."""

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
from cdc.errors import ConfigError, StopState
from cdc.plan.plan import plan_catalog
from cdc.settings.models import Settings
from cdc.source.connection import connect
from cdc.state import rebuilds, stops
from snapshots.requests import Request, Requests
from tests.conftest import Cache, Database
from tests.integration.pipeline import service, settings_of
from tests.integration.test_where import CATCH_UP_S, serve
from tests.waiting import until

DDL = """
create table public.orders (id bigint primary key, region text, n int, note text);
create publication cdc for table public.orders;
insert into public.orders select g, (array['eu', 'us', null, ':'])[g % 4 + 1], g % 3, 'x' from generate_series(1, 200) g
"""
CACHE: Mapping[str, Any] = {"key": "o:{region}:{half}:{id}", "computed": {"half": "n / 2"}, "where": "n < 6"}
SEARCH: Mapping[str, Any] = {"id": "{region}/{id}", "routing": "{region}{n}", "where": "n < 6"}
ROUTED: Mapping[str, Any] = {"routing": "{region}"}
HELD = "select id, region, n, note from public.orders where n < 6 order by id"


@pytest.fixture
def source(postgres: Database) -> Iterator[psycopg.Connection]:
    with connect(postgres.dsn) as connection:
        for statement in DDL.split(";"):
            connection.execute(statement.encode())
        yield connection


def shop(
    postgres: Database, folder: Path, valkey: Cache, said: Mapping[str, Any] = CACHE, **more: Mapping[str, object]
) -> Settings:
    cache = {"kind": "redis", "url": valkey.url, "tables": {"public.orders": said}}
    return settings_of(postgres, folder, {"cache": cache, **more})


def change(connection: psycopg.Connection, chance: random.Random, times: int) -> None:
    for _ in range(times):
        one, region = chance.randrange(1, 230), chance.choice(["eu", "us", None, ":", "\\", ""])
        statements: list[tuple[str, tuple[object, ...]]] = [
            ("update public.orders set region = %s where id = %s", (region, one)),
            ("update public.orders set region = %s where id %% 11 = %s %% 11", (region, one)),
            ("update public.orders set n = %s where id = %s", (chance.randrange(8), one)),
            ("update public.orders set note = %s where id = %s", ("n" * chance.randrange(3000), one)),
            ("delete from public.orders where id = %s", (one,)),
            (
                "insert into public.orders values (%s, %s, %s, 'new') on conflict (id) do update set region = excluded.region",
                (one, region, chance.randrange(8)),
            ),
            (
                "update public.orders set id = id + 1000, region = %s "
                "where id = %s and not exists (select from public.orders where id = %s + 1000)",
                (region, one, one),
            ),
        ]
        statement, values = chance.choice(statements)
        connection.execute(statement.encode(), values)


def part(text: str | None) -> str:
    return "\\N" if text is None else text.replace("\\", "\\\\").replace(":", "\\:")


def in_redis(valkey: Cache) -> dict[str, tuple[object, ...]]:
    with valkey.client() as client:
        found = {key.decode(): json.loads(client.get(key)) for key in client.scan_iter("o:*", 1000)}
    return {key: (one["id"], one["region"], one["n"]) for key, one in found.items()}


def expect(source: psycopg.Connection, settings: Settings, valkey: Cache) -> None:
    rows = source.execute(HELD).fetchall()
    for result in audit(settings, timeout_s=CATCH_UP_S):
        assert result.equal, result.to_json()
    assert in_redis(valkey) == {f"o:{part(region)}:{n // 2}:{one}": (one, region, n) for one, region, n, _ in rows}


def in_search(opensearch: Any, index: str) -> list[tuple[str, str | None, object]]:
    opensearch.request("POST", f"/{index}/_refresh")
    hits = opensearch.request("POST", f"/{index}/_search", {"size": 1000, "query": {"match_all": {}}})["hits"]["hits"]
    return sorted((hit["_id"], hit.get("_routing"), hit["_source"]["id"]) for hit in hits)


@pytest.mark.opensearch
@pytest.mark.xdist_group("opensearch")
def test_each_row_has_one_place_after_random_changes_and_a_kill(
    source: psycopg.Connection, postgres: Database, valkey: Cache, opensearch: Any, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    search = {"kind": "opensearch", "url": opensearch.url, "shards": 3, "tables": {"public.orders": SEARCH}}
    routed = {"kind": "opensearch", "url": opensearch.url, "shards": 2, "index": "r-{table}", "tables": {"public.orders": ROUTED}}
    settings = shop(postgres, tmp_path, valkey, search=search, routed=routed)
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
    with service(settings) as followers:
        change(source, chance, 100)
        expect(source, settings, valkey)
        source.execute("alter table public.orders replica identity full")
        change(source, chance, 50)
        Requests(settings.log.dir).queue(Request("public.orders"))
        change(source, chance, 50)
        expect(source, settings, valkey)
        rows = source.execute(HELD).fetchall()
        names = ["\\N" if region is None else region for _, region, _, _ in rows]
        apart = ["\\N" if region is None else region.replace("\\", "\\\\") for _, region, _, _ in rows]
        ids = [f"{name}/{one}" for name, (one, *_) in zip(apart, rows, strict=True)]
        assert in_search(opensearch, "public.orders") == sorted(
            (name, f"{region}{n}", one) for name, region, (one, _, n, _) in zip(ids, names, rows, strict=True)
        )
        every = source.execute("select id, coalesce(region, '\\N') from public.orders").fetchall()
        assert in_search(opensearch, "r-orders") == sorted((str(one), region or None, one) for one, region in every)
        source.execute("alter table public.orders add column more text, drop column note")
        source.execute("update public.orders set region = 'moved' where id % 2 = 0")
        for result in audit(settings, timeout_s=CATCH_UP_S):
            assert result.equal, result.to_json()
        source.execute("truncate public.orders")
        source.execute("insert into public.orders values (1, 'eu', 1), (2, null, 7)")
        source.execute("update public.orders set region = 'us', n = 5")
        for result in audit(settings, timeout_s=CATCH_UP_S):
            assert result.equal, result.to_json()
        assert sorted(in_redis(valkey)) == ["o:us:2:1", "o:us:2:2"]
        assert in_search(opensearch, "public.orders") == [("us/1", "us5", 1), ("us/2", "us5", 2)]
        assert {one.status.stop for one in followers.values()} == {None}


def test_a_row_at_a_wrong_place_is_drift(source: psycopg.Connection, postgres: Database, valkey: Cache, tmp_path: Path) -> None:
    settings = shop(postgres, tmp_path, valkey, {"key": "o:{region}:{id}"})
    with service(settings):
        assert [one.equal for one in audit(settings, timeout_s=CATCH_UP_S)] == [True]
        with valkey.client() as client:
            there = client.get("o:us:1")
            client.rename("o:us:1", "o:eu:1")
            client.set("o:eu:1", there.replace(b'"us"', b'"eu"'))
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        found = {(one.kind, one.key["region"], one.key["id"]) for one in result.tables[0].differences}
        assert found == {("missing", "us", "1"), ("extra", "eu", "1")}
        source.execute("update public.orders set note = 'again' where id = 1")
        with valkey.client() as client:
            until(lambda: client.get("o:us:1"))
            client.delete("o:eu:1")  # nobody else knows of it
        assert [one.equal for one in audit(settings, timeout_s=CATCH_UP_S)] == [True]


def test_another_place_is_planned_and_refused_until_the_store_is_built_again(
    source: psycopg.Connection, postgres: Database, valkey: Cache, tmp_path: Path
) -> None:
    settings = shop(postgres, tmp_path, valkey, {"key": "o:{id}"})
    with service(settings):
        assert [one.equal for one in audit(settings, timeout_s=CATCH_UP_S)] == [True]
    other = shop(postgres, tmp_path, valkey, {"key": "o:{region}:{n}:{id}"})
    said = [one for one in plan_catalog(other).remarks if one.stops]
    assert [(one.store, "places are named by n, and were not" in one.what) for one in said] == [("cache", True)], said
    with service(other):
        until(lambda: stops.held(other.run_dir))
    [stop] = stops.held(other.run_dir)
    assert (stop.state, stop.part) == (StopState.STORE_REFUSES, "follow-cache")
    rebuilds.request(other.run_dir, "cache", stop.state)
    stops.clear(other.run_dir, stop.name)
    with service(other):
        change(source, random.Random(7), 30)
        assert [one.equal for one in audit(other, timeout_s=CATCH_UP_S)] == [True]
        rows = source.execute("select id, region, n from public.orders").fetchall()
        with valkey.client() as client:
            names = sorted(key.decode() for key in client.scan_iter("o:*", 1000))
        assert names == sorted(f"o:{part(region)}:{n}:{one}" for one, region, n in rows)


def test_keys_of_rows_that_change_are_deleted_and_nothing_is_compared(
    source: psycopg.Connection, postgres: Database, valkey: Cache, tmp_path: Path
) -> None:
    settings = shop(postgres, tmp_path, valkey, {"key": "o:{region}:{id}", "value": "invalidate"})
    with valkey.client() as client:
        client.mset({"o:us:1": "of the application", "o:gone:1": "of nobody's row"})
    with valkey.client() as client, service(settings):
        until(lambda: client.get("o:us:1") is None)
        assert not audit(settings, timeout_s=CATCH_UP_S)[0].tables
        client.mset({"o:us:1": "filled again", "o:eu:1": "of a reader who was ahead", "o:eu:9": "another's"})
        source.execute("update public.orders set region = 'eu' where id = 1")
        until(lambda: client.get("o:eu:1") is None)
        assert (client.get("o:us:1"), client.get("o:eu:9")) == (None, b"another's"), "both places in one transaction"
        assert client.get("o:gone:1") == b"of nobody's row"
        with pytest.raises(ConfigError, match=r"store 'cache' keeps no rows of 'public.orders'"):
            audit(settings, table="public.orders", timeout_s=CATCH_UP_S)


@pytest.mark.usefixtures("source")
def test_rows_of_which_others_name_the_places_are_repaired_too(postgres: Database, valkey: Cache, tmp_path: Path) -> None:
    settings = shop(postgres, tmp_path, valkey, {"key": "o:{region}:{id}"})
    with service(settings), valkey.client() as client:
        assert [one.equal for one in audit(settings, timeout_s=CATCH_UP_S)] == [True]
        client.delete("o:us:1")
        client.set("o:us:5", client.get("o:us:5").replace(b'"x"', b'"other"'))
        client.delete("o:\\N:2")
        client.set("o:eu:1001", client.get("o:eu:4").replace(b'"id":4', b'"id":1001'))
        [result] = audit(settings, timeout_s=CATCH_UP_S, repair=True)
        repair = result.tables[0].repair
        assert repair is not None
        assert (repair.missing, repair.different, repair.extra, repair.problem) == (2, 1, 1, None), result.to_json()
        assert repair.left == 1, "no change of the table takes away what stands where no row of it was"
        assert client.get("o:us:1") is not None
