"""A search store whose account has rights on the names of its own indices, and on nothing else of the cluster.

The embedded server has no accounts. A proxy before it answers as OpenSearch's security plugin does, from the path of a request and the indices that its body names.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.errors import StoreError
from cdc.model.topic import TopicSchema
from sinks import generations_of
from sinks.generations import GenerationState
from sinks.search.sink import Options, SearchSink
from tests.contract.rows import ORDERS, PAIRS, order, upserts
from tests.contract.test_marks import pair
from tests.integration.test_generations import Shop

pytestmark = [pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]

OWN: Final = ("shop-", ".headwater-search")
"""How the names begin that the account has rights on."""
COMPOSITE: Final = ("_bulk", "_mget", "_search", "_aliases")
"""What names indices in its body, or a scroll that was begun on one: rights of the cluster by their names, of the indices by what they do."""


class Guard:
    """``denied``: paths' last parts that are refused also on the account's own indices → the right that is missing."""

    def __init__(self, target: str) -> None:
        self.denied: dict[str, str] = {}
        self.refused: list[str] = []
        guard = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if (missing := guard.missing(self.command, self.path, body)) is not None:
                    guard.refused.append(f"{self.command} {self.path}")
                    reason = f"no permissions for [{missing}] and User [name=shop, backend_roles=[], requestedTenant=null]"
                    error = {"type": "security_exception", "reason": reason}
                    self.send(403, json.dumps({"error": {"root_cause": [error], **error}, "status": 403}).encode())
                    return
                given = {"content-type": self.headers.get("content-type") or "application/json"}
                request = urllib.request.Request(target + self.path, body or None, given, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=120) as found:
                        self.send(found.status, found.read())
                except urllib.error.HTTPError as error:
                    self.send(error.code, error.read())

            def send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def missing(self, method: str, path: str, body: bytes) -> str | None:
        parts = path.partition("?")[0].strip("/").split("/")
        for part, right in self.denied.items():
            if part in (parts[-1], f"{method} {parts[-1]}"):
                return right
        if parts[0] in COMPOSITE:
            return None if all(one.startswith(OWN) for one in named(parts[0], body)) else "indices:data/write/bulk"
        if all(name.startswith(OWN) for name in parts[0].split(",")):
            return None
        return "cluster:monitor/state" if parts[0].startswith("_") else "indices:admin/get"


def named(path: str, body: bytes) -> Iterator[str]:
    """The indices that a request names in its body."""
    if path == "_aliases":
        for action in json.loads(body)["actions"]:
            for said in action.values():
                yield said["index"]
                yield said.get("alias", said["index"])
    elif path == "_mget":
        yield from (doc["_index"] for doc in json.loads(body)["docs"])
    elif path == "_bulk":
        lines = (json.loads(line) for line in body.splitlines() if b'"_index"' in line)
        yield from (found["_index"] for line in lines for found in line.values() if isinstance(found, dict) and "_index" in found)


@contextmanager
def guarded(server: OpenSearch) -> Iterator[Guard]:
    guard = Guard(server.url.rstrip("/"))
    thread = threading.Thread(target=guard.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield guard
    finally:
        guard.server.shutdown()
        guard.server.server_close()
        thread.join()


@pytest.fixture
def guard(opensearch: OpenSearch) -> Iterator[Guard]:
    opensearch.request("PUT", "/foreign@1", {"aliases": {"foreign": {}}})
    with guarded(opensearch) as made:
        yield made
    assert opensearch.request("GET", "/foreign@1")["foreign@1"]["aliases"] == {"foreign": {}}


def shop_of(guard: Guard, opensearch: OpenSearch, folder: Path, **more: Any) -> Shop:
    made = Shop(opensearch, folder)
    made.options = Options.model_validate({"kind": "opensearch", "url": guard.url, "index": "shop-{schema}.{table}", **more})
    made.sink = SearchSink("search", made.options, made.clock)
    made.put(upserts(ORDERS, 1, [order(1), order(2), order(3)]), upserts(PAIRS, 4, [pair(1)]))
    return made


def state(opensearch: OpenSearch) -> Any:
    """Every index with its aliases, mapping and settings, and how often each was changed."""
    found = opensearch.request("GET", "/*?expand_wildcards=all")
    return {name: (one["aliases"], one["mappings"], one["settings"]["index"]["uuid"]) for name, one in found.items()}


def test_rights_on_its_own_names_are_enough(guard: Guard, opensearch: OpenSearch, tmp_path: Path) -> None:
    """To follow, to audit, to build again, to swap, to go back, and to remove it all."""
    shop = shop_of(guard, opensearch, tmp_path)
    shop.follow()
    schema = TopicSchema.of(ORDERS)
    assert sum(len(rows) for rows in shop.sink.scan(schema)) == 3
    assert shop.bootstrap().number == 2
    shop.put(upserts(ORDERS, 5, [order(4)]))
    shop.follow()
    shop.sink.make_visible()
    assert sum(len(rows) for rows in shop.sink.scan(schema)) == 4
    assert set(shop.found("shop-public.orders")) == {"1", "2", "3", "4"}
    assert shop.roll_back().number == 1
    assert set(shop.found("shop-public.orders")) == {"1", "2", "3", "4"}
    shop.follow()
    with closing(generations_of("search", shop.options)) as generations:
        generations.drop(2)
    assert shop.generations() == {1: GenerationState.LIVE}
    shop.sink.erase()
    shop.sink.close()
    assert [name for name in state(opensearch) if name.startswith(OWN)] == []
    assert {line.partition("?")[0] for line in guard.refused} == {"GET /*@*"}, "more than one question needs another right"


@pytest.mark.parametrize(
    ("denied", "right"),
    [
        ("_aliases", "indices:admin/aliases"),
        ("_mget", "indices:data/read/mget"),
        ("_bulk", "indices:data/write/bulk"),
        ("scroll", "indices:data/read/scroll"),
    ],
)
def test_a_right_that_is_missing_is_named_and_nothing_has_changed(
    guard: Guard, opensearch: OpenSearch, tmp_path: Path, denied: str, right: str
) -> None:
    """What readers see is as before."""
    shop = shop_of(guard, opensearch, tmp_path)
    shop.follow()
    seen = {name: one for name, one in state(opensearch).items() if name.startswith("shop-")}
    guard.denied[denied] = right

    def scan() -> None:
        for _ in shop.sink.scan(TopicSchema.of(ORDERS)):
            pass

    with pytest.raises(StoreError) as caught:
        (scan if denied == "scroll" else shop.bootstrap)()
    assert f"no permissions for [{right}]" in str(caught.value)
    assert "rights-in-opensearch" in (caught.value.hint or "")
    guard.denied.clear()
    found = {name: one for name, one in state(opensearch).items() if name in seen}
    assert found == seen
    shop.sink.close()


def test_names_that_the_account_has_no_rights_on_are_refused_before_anything_is_made(
    guard: Guard, opensearch: OpenSearch, tmp_path: Path
) -> None:
    shop = shop_of(guard, opensearch, tmp_path, index="{schema}.{table}")
    before = state(opensearch)
    with pytest.raises(StoreError, match=r"no permissions for \[indices:admin/get\]"):
        shop.follow()
    assert state(opensearch) == before
    shop.sink.close()
