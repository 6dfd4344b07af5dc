"""A topic of another producer's beside the source's tables: real Postgres, real capture, a real
Redis, and `cdc log append`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
import pyarrow as pa
from typer.testing import CliRunner

from cdc.commands.app import app
from cdc.embedded.postgres import Postgres
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.model.batch import OP
from cdc.settings.file import load
from cdc.state import status
from sinks import options_model
from tests.conftest import Cache
from tests.integration.pipeline import service
from tests.waiting import until

DEADLINE_S = 120.0


class Shop:
    """A folder with a configuration, and what its Redis shows."""

    def __init__(self, folder: Path, server: Postgres, cache: Cache) -> None:
        self.folder = folder
        self.cache = cache
        self.config = folder / "cdc.toml"
        self.config.touch(0o600)
        self.config.write_text(
            f'run_dir = "run"\n[source]\ndsn = "{server.dsn()}"\n[log]\ndir = "log"\n'
            f'[stores.cache]\nkind = "redis"\nurl = "{cache.url}"\ntables = ["public.*", "derived.*"]\n'
        )
        self.settings = load(self.config, options_model)

    def cdc(self, *arguments: object) -> str:
        return CliRunner().invoke(
            app, ["--config", str(self.config), *map(str, arguments)], standalone_mode=False, catch_exceptions=False
        ).stdout  # fmt: skip

    def append(self, *rows: dict[str, Any]) -> dict[str, Any]:
        file = self.folder / "rows.ndjson"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done: dict[str, Any] = json.loads(
            self.cdc("log", "append", "derived.delays", file, "--key", "flight", "--timeout", DEADLINE_S, "--json")
        )
        return done

    def shows(self, key: str, value: dict[str, Any] | None) -> None:
        """Waits until Redis holds this under the key."""
        with self.cache.client() as client:

            def found() -> Any:
                raw = client.get(key)
                return None if raw is None else json.loads(raw)  # type: ignore[arg-type]

            until(lambda: found() == value, lambda: f"{key} to be {value}; it is {found()}, beside {client.keys()}")


def state(shop: Shop) -> str:
    found = status.read_capture(shop.settings.run_dir)
    return "" if found is None else found.state


def handing_over_s(shop: Shop, groups: int) -> list[float]:
    """Seconds until each group is in the log, one handed over after the other."""
    found = []
    handover = Handover(shop.settings.log.dir, shop.settings.run_dir, "job", lambda: time.sleep(0.001))
    handover.open(HandoverDeadline.within(DEADLINE_S))
    for number in range(groups):
        began = time.monotonic()
        rows = pa.RecordBatch.from_pydict({OP: ["u"], "step": [number]})
        handover.deliver(str(number + 1), "derived.steps", ("step",), [rows], HandoverDeadline.within(DEADLINE_S))
        found.append(time.monotonic() - began)
    return found


def test_stores_follow_a_topic_of_another_producers_also_while_the_source_is_down(
    postgres_server: Postgres, valkey: Cache, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, postgres_server, valkey)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as source:
        source.execute("create table flights (id int primary key, origin text); insert into flights values (1, 'JFK')")
    with service(shop.settings):
        shop.shows("public.flights:1", {"id": 1, "origin": "JFK"})
        assert shop.append({"flight": "B6 501", "minutes": 12}, {"flight": "UA 1", "minutes": 3})["rows"] == 2
        shop.shows("derived.delays:B6 501", {"flight": "B6 501", "minutes": 12})
        # A stream that brings nothing is looked at every 0.2 s.
        assert median(handing_over_s(shop, 8)) < 0.1
        postgres_server.stop("immediate")
        until(lambda: state(shop) == "retrying", lambda: f"capture to miss its source; it is {state(shop)}")
        shop.append({"flight": "B6 501", "minutes": 40, "why": {"weather": ["fog"]}}, {"op": "d", "flight": "UA 1"})
        shop.shows("derived.delays:B6 501", {"flight": "B6 501", "minutes": 40, "why": {"weather": ["fog"]}})
        shop.shows("derived.delays:UA 1", None)
        assert state(shop) == "retrying"
        postgres_server.start()
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as source:
            source.execute("insert into flights values (2, 'EWR')")
        shop.shows("public.flights:2", {"id": 2, "origin": "EWR"})
    # Nobody writes to the log now: the command does it itself.
    shop.append({"flight": "AA 7", "minutes": 1})
    with service(shop.settings):
        shop.shows("derived.delays:AA 7", {"flight": "AA 7", "minutes": 1})
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as source:
            source.execute("update flights set origin = 'LGA' where id = 2")
        shop.shows("public.flights:2", {"id": 2, "origin": "LGA"})
        shop.cdc("wait", "cache", "--timeout", DEADLINE_S)
        told = json.loads(shop.cdc("audit", "cache", "--json", "--timeout", DEADLINE_S))
        assert told["equal"] is True, told


def test_two_producers_and_a_busy_source_all_come_through(postgres_server: Postgres, valkey: Cache, tmp_path: Path) -> None:
    shop = Shop(tmp_path, postgres_server, valkey)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as source:
        source.execute("create table flights (id int primary key, origin text)")
        with service(shop.settings):
            until(lambda: state(shop) == "streaming", lambda: f"capture to stream; it is {state(shop)}")
            for number in range(10):
                source.execute(
                    "insert into flights select g, 'JFK' from generate_series(%s::int, %s::int) g",
                    (100 * number, 100 * number + 99),
                )
                shop.append({"flight": f"A {number}", "minutes": number})
                file = tmp_path / "other.ndjson"
                file.write_text(json.dumps({"id": number}) + "\n")
                shop.cdc("log", "append", "derived.other", file, "--key", "id", "--producer", "another")
            shop.shows("public.flights:999", {"id": 999, "origin": "JFK"})
            for number in range(10):
                shop.shows(f"derived.delays:A {number}", {"flight": f"A {number}", "minutes": number})
                shop.shows(f"derived.other:{number}", {"id": number})
