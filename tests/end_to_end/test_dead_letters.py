"""The life of a dead letter, from the row that a store refuses to its end: `cdc run` as a process over a real index and a real cache."""

from __future__ import annotations

import io
import json
import re
import time
import urllib.request
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdc.__main__ import main
from cdc.embedded.opensearch import OpenSearch
from cdc.state import status, stops
from cdc.state.status import TableLetters
from tests.conftest import Cache, Database
from tests.end_to_end.daemon import DEADLINE_S, Daemon

CANARY: Final = 3_000_000_001
"""Beyond what the index's field holds."""
TABLE: Final = "public.items"
CONFIGURATION: Final = """
run_dir = "run"
[source]
dsn = "{dsn}"
tables = ["public.items"]
slot = "{slot}"
[log]
dir = "log"
[stores.search]
kind = "opensearch"
url = "{search}"
[stores.search.tables."public.items".mapping]
rank = {{ type = "integer", ignore_malformed = false }}
[stores.cache]
kind = "redis"
url = "{cache}"
[stores.cache.tables."public.items"]
key = "i:{{id}}"
computed = {{ each = "rank / per" }}
[http]
listen = "127.0.0.1:0"
"""


class Service:
    """The daemon, and both stores as their readers see them."""

    def __init__(self, folder: Path, database: Database, search: OpenSearch, cache: Cache) -> None:
        self.daemon = Daemon(folder, lambda: None)
        self._search, self._cache = search, cache
        self.config = folder / "cdc.toml"
        self.config.touch(0o600)
        self.config.write_text(CONFIGURATION.format(dsn=database.dsn, slot=database.name, search=search.url, cache=cache.url))

    def cdc(self, *arguments: str, code: int = 0) -> str:
        """What the command line says, which is no value of a row."""
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            found = main(["--config", str(self.config), *arguments])
        assert found == code, f"{arguments}: {out.getvalue()}\n{self.daemon.said()}"
        assert "--values" in arguments or str(CANARY) not in out.getvalue()
        return out.getvalue()

    def dlq(self, verb: str, *arguments: str, code: int = 0, timeout_s: float = DEADLINE_S) -> str:
        return self.cdc("dlq", verb, *arguments, "--timeout", str(timeout_s), code=code)

    def letter(self, store: str) -> dict[str, Any]:
        """The store's only one."""
        (found,) = json.loads(self.cdc("dlq", "ls", store, "--json"))["letters"]
        return found  # type: ignore[no-any-return]

    def correction(self, **values: object) -> str:
        path = self.daemon.folder / "row.json"
        path.write_text(json.dumps(values))
        return str(path)

    def until_aside(self, store: str, letters: int, *, edited: int = 0, accepted: int = 0) -> None:
        """Returns once the store's status says so."""

        def stands() -> bool:
            found = self.daemon.follower(store).aside or [TableLetters(TABLE, 0)]
            return [(one.letters, one.edited, one.accepted) for one in found] == [(letters, edited, accepted)]

        self.daemon.until(stands, f"{letters} letters of {store}, {edited} edited, {accepted} accepted")

    def until_shown(self) -> None:
        """Returns once both stores show what the database has committed."""
        for store in ("search", "cache"):
            self.cdc("wait", store, "--timeout", str(DEADLINE_S))

    def documents(self) -> dict[str, Any]:
        self._search.request("POST", "/public.items/_refresh")
        hits = self._search.request("GET", "/public.items/_search?size=100")["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    def cached(self) -> dict[str, Any]:
        with self._cache.client() as client:
            return {key.decode()[2:]: json.loads(client.get(key)) for key in client.scan_iter("i:*")}

    def served(self, path: str) -> str:
        told = status.read_supervisor(self.daemon.folder / "run")
        assert told is not None
        with urllib.request.urlopen(f"{told.listen}{path}", timeout=60) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]

    def audited(self) -> dict[str, int]:
        """How many keys of each store differ as its letters say; nothing else does."""
        told = json.loads(self.cdc("audit", "--json", "--timeout", str(2 * DEADLINE_S)))
        assert told["equal"], told
        return {
            store["store"]: sum(table[state] for table in store["tables"] for state in ("aside", "edited", "accepted"))
            for store in told["stores"]
        }


@pytest.mark.timeout(1800)
def test_from_a_refused_row_to_its_end(postgres: Database, opensearch: OpenSearch, valkey: Cache, tmp_path: Path) -> None:
    sql = postgres.connect(autocommit=True)
    sql.execute("create table items (id int primary key, rank bigint, per int, note text)")
    sql.execute("insert into items values (1, 10, 1), (2, %s, 1), (3, 30, 0), (4, 40, 2)", (CANARY,))
    service = Service(tmp_path, postgres, opensearch, valkey)
    service.daemon.start()
    try:
        it_is_set_aside_and_others_flow(service, sql)
        an_operator_decides(service, sql)
        a_later_change_ends_it(service, sql)
        nobody_follows_when_it_is_asked_for(service, sql)
        a_truncate_ends_all(service, sql)
        too_large_a_share_stops_the_store(service, sql)
        assert service.daemon.drain() == 0
    finally:
        service.daemon.kill()


def it_is_set_aside_and_others_flow(service: Service, sql: psycopg.Connection) -> None:
    for store in ("search", "cache"):
        service.until_aside(store, 1)
    sql.execute("insert into items values (5, 50, 5)")
    sql.execute("update items set note = 'seen' where id in (1, 2, 3)")
    service.until_shown()
    assert {key: one.get("note") for key, one in service.documents().items()} == {"1": "seen", "3": "seen", "4": None, "5": None}
    assert {key: one["each"] for key, one in service.cached().items()} == {"1": 10, "2": CANARY, "4": 20, "5": 10}
    said = service.cdc("status")
    assert "store search set 1 change aside → cdc dlq ls search names them" in said
    assert "store cache set 1 change aside → cdc dlq ls cache names them" in said
    metrics = service.served("/metrics")
    for store in ("search", "cache"):
        assert f'headwater_store_dead_letters{{state="aside",store="{store}",table="{TABLE}"}} 1.0' in metrics
    page = json.loads(service.served("/v1/status"))
    assert {one["store"]: [table["letters"] for table in one["aside"]] for one in page["followers"]} == {
        "search": [1],
        "cache": [1],
    }
    listed = service.cdc("dlq", "ls")
    assert re.search(r"^search public\.items@\d+: set aside since .*rank", listed, re.M), listed
    assert re.search(r"^cache public\.items@\d+: set aside since .*computed\.each: division by zero", listed, re.M), listed
    assert service.audited() == {"search": 1, "cache": 1}


def an_operator_decides(service: Service, sql: psycopg.Connection) -> None:
    search, cache = (service.letter(store)["letter"] for store in ("search", "cache"))
    assert "row." not in service.cdc("dlq", "show", "search", search)
    assert f"row.rank: {CANARY}\n" in service.cdc("dlq", "show", "search", search, "--values")
    assert search in service.dlq("replay", "search", search, code=1), "the field is as narrow as before"
    assert "division by zero" in service.dlq("replay", "cache", "--all", code=1)
    assert "has no dead letter" in service.dlq("replay", "search", f"{TABLE}@1", code=2)
    assert "is in the key" in service.dlq("edit", "search", search, service.correction(id=9), code=2)
    assert service.dlq("edit", "search", search, service.correction(rank=CANARY), code=1).startswith(f"{search}: ")
    assert service.letter("search")["state"] == "set aside"
    corrected = f"{search}: the store holds the corrected row, until the row changes in the database\n"
    assert service.dlq("edit", "search", search, service.correction(rank=7)) == corrected
    service.dlq("edit", "cache", cache, service.correction(each=5))
    assert (service.documents()["2"]["rank"], service.cached()["3"]["each"]) == (7, 5)
    assert service.cached()["2"]["rank"] == CANARY, "the other store keeps the row"
    for store in ("search", "cache"):
        service.until_aside(store, 1, edited=1)
    assert "change aside" not in service.cdc("status")
    assert "corrected.rank: 7\n" in service.cdc("dlq", "show", "search", search, "--values")
    assert service.audited() == {"search": 1, "cache": 1}
    accepted = f"{search}: accepted: the store does not hold the row, until it changes in the database\n"
    assert service.dlq("drop", "search", search) == accepted
    assert "2" not in service.documents()
    service.until_aside("search", 1, accepted=1)
    assert sql.execute("select rank from items where id = 2").fetchone() == (CANARY,)


def a_later_change_ends_it(service: Service, sql: psycopg.Connection) -> None:
    sql.execute("update items set rank = 8 where id = 2")
    sql.execute("update items set per = 6 where id = 3")
    service.until_shown()
    for store in ("search", "cache"):
        service.until_aside(store, 0)
    assert (service.documents()["2"]["rank"], service.cached()["3"]["each"]) == (8, 5)
    assert service.cdc("dlq", "ls") == "no dead letters\n"
    assert service.audited() == {"search": 0, "cache": 0}


def nobody_follows_when_it_is_asked_for(service: Service, sql: psycopg.Connection) -> None:
    sql.execute("update items set rank = %s where id = 2", (CANARY,))
    service.until_aside("search", 1)
    follower = service.daemon.follower("search").pid
    service.daemon.kill()
    while status.alive(follower):  # what is killed goes a moment later
        time.sleep(0.05)
    search = service.letter("search")["letter"]
    said = service.dlq("edit", "search", search, service.correction(rank=9), code=3, timeout_s=0.5)
    assert "nobody follows store search; the request waits until somebody does (cdc run)" in said
    service.daemon.start()
    service.until_aside("search", 1, edited=1)
    assert service.documents()["2"]["rank"] == 9


def a_truncate_ends_all(service: Service, sql: psycopg.Connection) -> None:
    sql.execute("update items set per = 0 where id = 1")
    service.until_aside("cache", 1)
    sql.execute("truncate items")
    service.until_shown()
    for store in ("search", "cache"):
        service.until_aside(store, 0)
    assert (service.documents(), service.cached()) == ({}, {})


def too_large_a_share_stops_the_store(service: Service, sql: psycopg.Connection) -> None:
    sql.execute("insert into items select g, %s, 1 from generate_series(1, 50) g", (CANARY,))
    run_dir = service.daemon.folder / "run"
    service.daemon.until(lambda: stops.held(run_dir), "the index to stop")
    [stop] = stops.held(run_dir)
    assert stop.name == "STORE_REFUSES:follow-search"
    assert "refuses 50 of 50 rows of public.items" in stop.message
    assert "cdc dlq ls search" in (stop.hint or "")
    service.cdc("wait", "cache", "--timeout", str(DEADLINE_S))
    assert len(service.cached()) == 50, "the other store goes on"
    assert service.cdc("dlq", "ls", "search").count("set aside") == 50
    said = service.dlq("drop", "search", "--all", code=4)
    assert "does what was asked once it is resumed" in said
    service.cdc("resume", stop.name)
    service.until_aside("search", 50, accepted=50)
    service.until_shown()
    assert (service.documents(), service.audited()) == ({}, {"search": 50, "cache": 0})
