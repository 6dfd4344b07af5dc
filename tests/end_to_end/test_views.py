"""`cdc run` with views: each in a process of its own, one over another, joined and grouped; killed while rows come, refused by a value, and defined otherwise while
it runs; and one whose rows a function computes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdc.client.wait import wait
from cdc.log.home import open_reader
from cdc.settings.file import load
from cdc.state import stops
from sinks import options_model
from tests.conftest import Cache, Database
from tests.end_to_end.daemon import Daemon, kill_process

TOTALS: Final = """
select o.customer_id as id, count(*) as orders, sum(o.amount)::numeric(20,2) as amount
from orders o join customers c on c.id = o.customer_id
group by o.customer_id
"""
BUSY: Final = "select id, orders from views.totals where orders > 1"
SHARES: Final = "select id,\n  100 / customer_id as share from orders"
CORRECTED: Final = SHARES.replace("/ customer_id", "/ nullif(customer_id, 0)")
LARGEST: Final = """
select distinct on (o.customer_id) o.customer_id as id, o.id as number, o.amount
from orders o where o.customer_id is not null order by o.customer_id, o.amount desc, o.id
"""
LATE: Final = "select id, name from customers where id < 5"
FUNCTION: Final = """
def largest(orders):
    found = orders.sort_by([("amount", "descending"), ("number", "ascending")]).slice(0, 1)
    return found.select(["number", "amount"])
"""
CONFIGURATION: Final = """
run_dir = "run"
[source]
dsn = "{dsn}"
[log]
dir = "log"
[http]
listen = "127.0.0.1:0"
[views.totals]
sql = '''{totals}'''
key = ["id"]
[views.busy]
sql = '''{busy}'''
key = ["id"]
[views.shares]
sql = '''{shares}'''
key = ["id"]
[views.largest]
python = "daemon_functions:largest"
sql = "select customer_id as id, id as number, amount from orders where customer_id is not null"
by = ["id"]
returns = {{ number = "bigint", amount = "numeric(12,2)" }}
key = ["id"]
[stores.cache]
kind = "redis"
url = "{cache}"
views = [{held}]
"""


class Shop:
    """A folder with a configuration, its source, and what its Redis shows."""

    def __init__(self, folder: Path, postgres: Database, cache: Cache) -> None:
        self.config = folder / "cdc.toml"
        self.config.touch(0o600)
        self.postgres, self.cache = postgres, cache
        self.configure(SHARES, "totals", "busy", "largest")
        self.source = postgres.connect()
        self.source.execute(
            "create table customers (id bigint primary key, name text);"
            "create table orders (id bigint primary key, customer_id bigint, amount numeric(12,2));"
            "insert into customers select g, 'customer ' || g from generate_series(0, 20) g;"
            "insert into orders select g, g % 25, g * 1.5 from generate_series(1, 50) g"
        )

    def configure(self, shares: str, *held: str, totals: str = TOTALS, more: str = "") -> None:
        """``more``: the SQL of one more view, ``late``."""
        every = (("totals", totals), ("busy", BUSY), ("shares", shares), ("largest", LARGEST), ("late", more))
        self.views, self._totals = {name: sql for name, sql in every if name in held}, totals
        text = CONFIGURATION.format(
            dsn=self.postgres.dsn, cache=self.cache.url, totals=totals, busy=BUSY, shares=shares, held=json.dumps(held)[1:-1]
        )
        if more:
            text += f"[views.late]\nsql = '{more}'\nkey = ['id']\n"
        aside = self.config.with_suffix(".new")
        aside.touch(0o600)
        aside.write_text(text)
        aside.replace(self.config)
        self.settings = load(self.config, options_model)

    def shown(self, view: str) -> dict[str, Any]:
        with self.cache.client() as client:
            keys = [key.decode() for key in client.scan_iter(f"views.{view}:*", 1000)]
            return {key: json.loads(client.get(key)) for key in keys}  # type: ignore[arg-type]

    def expected(self, view: str) -> dict[str, Any]:
        sql = self.views[view].replace("views.totals", f"({self._totals}) t")
        rows = self.source.execute(f"select to_jsonb(v) from ({sql}) v").fetchall()  # type: ignore[arg-type]
        return {f"views.{view}:{row['id']}": row for (row,) in rows}

    def equal(self) -> None:
        """Once the store shows all that the source has."""
        with closing(open_reader(self.settings.log.dir)) as log:
            wait(self.settings, log, "cache", timeout_s=300.0)
        for view in self.views:
            assert self.shown(view) == self.expected(view), view

    @contextmanager
    def traffic(self, seed: int) -> Iterator[None]:
        dice, stop = random.Random(seed), threading.Event()

        def write() -> None:
            with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
                while not stop.wait(0.002):
                    key, customer = dice.randrange(1, 200), dice.randrange(0, 25)
                    connection.execute(
                        "insert into orders values (%(o)s, %(c)s, 3) on conflict (id) do update set customer_id = %(c)s",
                        {"o": key, "c": customer},
                    )
                    if dice.random() < 0.2:
                        connection.execute("delete from orders where id = %s", (dice.randrange(1, 200),))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)


def watched(config: Path, lines: int) -> list[str]:
    """The first lines of `cdc views top`."""
    command = [sys.executable, "-m", "cdc", "--config", str(config), "views", "top", "totals"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        try:
            return [top.stdout.readline() for _ in range(lines)]
        finally:
            top.terminate()


@pytest.mark.timeout(600)
def test_views_run_beside_each_other(
    postgres: Database, valkey: Cache, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "daemon_functions.py").write_text(FUNCTION)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    shop, daemon = Shop(tmp_path, postgres, valkey), Daemon(tmp_path, lambda: None)
    try:
        daemon.start()
        daemon.until(lambda: daemon.reports and daemon.process("view-shares").state == "stopped", "the view of shares to stop")
        with shop.traffic(seed):
            daemon.until(lambda: shop.shown("totals"), "rows of the view")
            kill_process(daemon, "view-totals")
        shop.equal()
        told = json.loads(daemon.cdc("status", "--json").stdout)
        [totals, busy, shares, _] = told["views"]
        assert (totals["state"], totals["reads"], totals["stores"]) == (
            "following",
            ["public.orders", "public.customers"],
            ["cache"],
        )
        assert (busy["state"], busy["reads"], busy["lag"]["changes"]) == ("following", ["views.totals"], 0)
        assert totals["state_rows"] > len(shop.shown("totals"))
        assert (shares["stop"], shares["stores"]) == ("VIEW_REFUSED", [])
        [problem] = told["problems"]
        assert problem.startswith("view-shares stopped: VIEW_REFUSED: view shares: line 2, column 7: no value for ")
        assert "change [views.shares] in cdc.toml, or cdc resume VIEW_REFUSED:view-shares" in problem
        assert all(one.startswith("view totals: following at ") for one in watched(shop.config, 2))

        shop.configure(CORRECTED, "totals", "busy", "shares", "largest")
        daemon.until(lambda: not stops.held(tmp_path / "run"), "the view of shares to be tried again")
        shop.source.execute("update customers set name = 'other' where id < 3; delete from orders where customer_id = 4")
        shop.equal()

        largest = daemon.process("view-largest").pid
        shop.configure(
            CORRECTED, "totals", "busy", "late", "largest", totals=TOTALS.replace("group by", "where o.id > 20 group by"), more=LATE
        )
        for view in ("late", "totals", "busy"):
            daemon.until(lambda view=view: shop.shown(view) == shop.expected(view), f"view {view} as it is defined now")
        shop.source.execute("delete from orders where id % 3 = 0; update orders set amount = amount + 1")
        shop.equal()
        assert daemon.process("view-largest").pid == largest, "of another view's definition it is not disturbed"

        shop.configure(CORRECTED, "totals", "busy", "shares", "largest")
        daemon.until(lambda: "view-late" not in daemon.processes, "the view that was taken out to end")
        for view in shop.views:
            daemon.until(lambda view=view: shop.shown(view) == shop.expected(view), f"view {view} as it was defined before")
        assert daemon.drain() == 0
    finally:
        daemon.kill()
