"""`cdc audit --repair` beside `cdc run` as a process: rows of an index and of two caches are spoilt in every way while changes come."""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdc.__main__ import main
from cdc.embedded.opensearch import OpenSearch
from tests.conftest import Cache, Database
from tests.end_to_end.daemon import DEADLINE_S, Daemon
from tests.integration.test_audit import CacheKeys, Index
from tests.waiting import until

CANARY: Final = "canary-9f2c"
"""Stands in the rows that are repaired, and must not be said."""
STORES: Final = ("search", "cache", "hashes")
CONFIGURATION: Final = """
run_dir = "run"
[source]
dsn = "{dsn}"
tables = ["public.t"]
slot = "{slot}"
[log]
dir = "log"
[stores.search]
kind = "opensearch"
url = "{search}"
[stores.cache]
kind = "redis"
url = "{cache}"
key = "t:{{id}}"
[stores.hashes]
kind = "redis"
url = "{cache}"
key = "h:{{id}}"
value = "hash"
[http]
listen = "127.0.0.1:0"
"""


@contextmanager
def traffic(dsn: str, seed: int) -> Iterator[None]:
    """Changes of any row but those that are spoilt and rest (100 to 199); those of 200 to 219, which are spoilt too, change all the time."""
    dice, stop = random.Random(seed), threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(0.002):
                key = dice.choice([dice.randrange(1, 100), dice.randrange(200, 220), dice.randrange(200, 700)])
                connection.execute("delete from public.t where id = %s", (key,))
                connection.execute("insert into public.t (id, a) values (%s, %s)", (key, f"v{dice.random()}"))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def spoil(store: Index | CacheKeys, older: dict[str, Any]) -> None:
    store.write(112, {**store.read(112), "a": "other"})
    store.remove(120)
    store.write(10_001, {**store.read(113), "id": 10_001})
    store.write(130, older)
    for key in range(200, 220):
        store.remove(key)


@pytest.mark.timeout(1200)
@pytest.mark.opensearch
@pytest.mark.xdist_group("opensearch")
def test_a_running_daemon_repairs_every_kind_of_drift_under_traffic(
    postgres: Database, opensearch: OpenSearch, valkey: Cache, tmp_path: Path, seed: int
) -> None:
    sql = postgres.connect(autocommit=True)
    sql.execute("create table public.t (id int primary key, a text)")
    sql.execute("insert into public.t select g, %s || g from generate_series(1, 600) g", (CANARY,))
    config = tmp_path / "cdc.toml"
    config.touch(0o600)
    config.write_text(CONFIGURATION.format(dsn=postgres.dsn, slot=postgres.name, search=opensearch.url, cache=valkey.url))
    daemon = Daemon(tmp_path, lambda: None)
    stores: dict[str, Index | CacheKeys] = {
        "search": Index(opensearch),
        "cache": CacheKeys(valkey, hashes=False),
        "hashes": CacheKeys(valkey, hashes=True, prefix="h"),
    }

    def cdc(*arguments: str, code: int) -> str:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            found = main(["--config", str(config), *arguments, "--timeout", str(DEADLINE_S)])
        assert found == code, f"{arguments}: {out.getvalue()}\n{daemon.said()}"
        assert CANARY not in out.getvalue()
        return out.getvalue()

    daemon.start()
    try:
        until(lambda: daemon.position() > 0, timeout_s=DEADLINE_S)  # before that there is no log to compare with
        assert cdc("audit", code=0).count(": equal at ") == len(STORES)
        older = {name: store.read(130) for name, store in stores.items()}
        sql.execute("update public.t set a = a || ' newer' where id = 130")
        with traffic(postgres.dsn, seed):
            cdc("audit", code=0)
            for name, store in stores.items():
                spoil(store, older[name])
            assert "(id=120)" in cdc("audit", code=1), "nothing is repaired unless it is asked for"
            for name in STORES:
                # What the first of them has sent again reached the others, too.
                told = json.loads(cdc("audit", name, "--repair", "--json", code=0))
                (table,) = told["stores"][0]["tables"]
                assert told["whole"]
                if name == STORES[0]:
                    assert not told["equal"]
                    assert table["repair"]["extra"] == 1
                    assert table["repair"]["missing"] >= 1
                    assert table["repair"]["different"] == 2
                    assert table["repair"]["left"] == 0
            cdc("audit", code=0)
        cdc("audit", code=0)
        for store in stores.values():
            assert store.read(130)["a"] == f"{CANARY}130 newer"
            spoil(store, {**store.read(130), "a": "older"})
            break
        said = cdc("audit", "search", "--repair", code=0)
        assert "  sent again: 24 rows (21 missing, 1 extra, 2 different); all of them are equal now\nsearch: repaired at " in said
        assert daemon.drain() == 0
    finally:
        daemon.kill()
