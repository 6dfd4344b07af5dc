"""`cdc run` over views whose definitions change as operators change them: restarted, killed in the middle and taken back, taken out and added again, renamed, a view
and a view of it at once; and a second daemon with other definitions. Beside what Postgres computes, in a cache and in a SQL store.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cdc.client.wait import wait
from cdc.log.home import open_reader
from cdc.settings.file import load
from cdc.state import stops
from sinks import options_model
from tests.conftest import Cache, Database
from tests.end_to_end.daemon import Daemon

CONFIGURATION: Final = """
run_dir = "{run}"
[source]
dsn = "{dsn}"
tables = ["public.orders", "public.customers"]
[log]
dir = "log"
[http]
listen = "127.0.0.1:0"
[stores.cache]
kind = "redis"
url = "{cache}"
tables = ["views.*"]
[stores.rows]
kind = "sql"
url = "{dsn}"
namespace = "copy_{{schema}}"
tables = ["views.*"]
"""
ROWS: Final = 6000
SETTLES_S: Final = 120.0


class Definition(NamedTuple):
    sql: str
    key: tuple[str, ...]


PLAIN: Final = Definition("select id, customer_id, amount from orders", ("id",))
RETYPED: Final = Definition(
    "select o.id, o.customer_id, o.amount::text as amount, c.name from orders o join customers c on c.id = o.customer_id", ("id",)
)
REKEYED: Final = Definition(
    "select id, customer_id, amount::int as amount from orders where id % 2 = 0 and customer_id is not null", ("id", "customer_id")
)
GROUPED: Final = Definition(
    "select customer_id, count(*) as amount from orders where customer_id is not null group by customer_id", ("customer_id",)
)
OVER: Final = Definition(
    "select customer_id, count(*) as n from views.a where customer_id is not null group by customer_id", ("customer_id",)
)
OVER_NAMES: Final = Definition("select name, count(*) as n from views.a where name is not null group by name", ("name",))
OVER_AMOUNTS: Final = Definition("select amount, count(*) as n from views.a group by amount", ("amount",))


class Bench:
    def __init__(self, folder: Path, postgres: Database, cache: Cache, seed: int) -> None:
        self.folder, self._postgres, self._cache = folder, postgres, cache
        self._dice = random.Random(seed)
        self.daemon = Daemon(folder, lambda: None)
        self._views: Mapping[str, Definition] = {}
        self.source = postgres.connect()
        self.source.execute(
            "create table customers (id bigint primary key, name text);"
            "create table orders (id bigint primary key, customer_id bigint, amount numeric(12,2));"
            "insert into customers select g, 'customer ' || g from generate_series(0, 20) g;"
            f"insert into orders select g, g % 25, g * 1.5 from generate_series(1, {ROWS}) g"
        )

    def configured(self, name: str, run: str, **views: Definition) -> Path:
        path = self.folder / name
        path.touch(0o600)
        said = "".join(f"[views.{view}]\nsql = '''{one.sql}'''\nkey = {json.dumps(list(one.key))}\n" for view, one in views.items())
        path.write_text(CONFIGURATION.format(dsn=self._postgres.dsn, cache=self._cache.url, run=run) + said)
        return path

    def start(self, **views: Definition) -> None:
        self._views = views
        self._settings = load(self.configured("cdc.toml", "run", **views), options_model)
        self.daemon.start()

    def becomes(self, **views: Definition) -> None:
        """Restarted with these views, and looked at once the stores show them."""
        self.start(**views)
        self.equal()
        assert self.daemon.drain() == 0

    def begins(self, **views: Definition) -> None:
        """Killed once it has begun with them."""
        self.start(**views)
        self.daemon.until(lambda: self.daemon.reports and self.daemon.process("view-a").state == "running", "view a to begin")
        ends = time.monotonic() + self._dice.uniform(2.5, 6.0)
        while time.monotonic() < ends:
            self.change()
            time.sleep(0.02)
        self.daemon.kill()

    def change(self) -> None:
        key, customer = self._dice.randrange(1, ROWS), self._dice.choice((None, *range(23)))
        self.source.execute(
            "insert into orders values (%(k)s, %(c)s, 3) on conflict (id) do update set customer_id = %(c)s, amount = %(k)s",
            {"k": key, "c": customer},
        )
        self.source.execute("delete from orders where id = %s", (self._dice.randrange(1, ROWS),))

    def equal(self) -> None:
        ends = time.monotonic() + SETTLES_S
        while differing := self._differing():
            assert time.monotonic() < ends, f"{differing} is not what Postgres computes\n{self.daemon.said()}"
            time.sleep(0.2)
        assert not stops.held(self.folder / "run")

    def _differing(self) -> list[str]:
        self.change()
        with closing(open_reader(self._settings.log.dir)) as log:
            for store in ("cache", "rows"):
                wait(self._settings, log, store, timeout_s=SETTLES_S)
        return [view for view in self._views if not self._cached(view) == self._rows(view) == self._expected(view)]

    def _expected(self, view: str) -> list[str]:
        sql = self._views[view].sql
        if "views.a" in sql:
            sql = sql.replace("views.a", f"({self._views['a'].sql}) t")
        return self._selected(sql)

    def _rows(self, view: str) -> list[str]:
        there = self.source.execute("select to_regclass(%s)", (f"copy_views.{view}",)).fetchone()
        names = set().union(*map(json.loads, self._expected(view)))
        found = {
            name
            for (name,) in self.source.execute("select column_name from information_schema.columns where table_name = %s", (view,))
        }
        if there == (None,) or not names <= found:
            return []  # not yet
        return self._selected(f"select {', '.join(sorted(names))} from copy_views.{view}")

    def _selected(self, sql: str) -> list[str]:
        rows: list[Any] = self.source.execute(f"select to_jsonb(v) from ({sql}) v").fetchall()  # type: ignore[arg-type]
        return sorted(json.dumps(row, sort_keys=True) for (row,) in rows)

    def _cached(self, view: str) -> list[str]:
        with self._cache.client() as client:
            keys = list(client.scan_iter(f"views.{view}:*", 5000))
            values: list[Any] = client.mget(keys) if keys else []  # type: ignore[assignment]
        return sorted(json.dumps(json.loads(value), sort_keys=True) for value in values if value is not None)

    def other(self, config: Path, *arguments: str) -> str:
        """What a second process says that runs for a while beside the daemon, which is not disturbed by it."""
        command = [sys.executable, "-m", "cdc", "--config", str(config), "run", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as second:
            assert second.stdout is not None
            said = ""
            try:
                while "another process keeps view a up" not in said:
                    line = second.stdout.readline()
                    assert line, said
                    said += line
                self.equal()
            finally:
                second.terminate()
            return said + second.stdout.read()


@pytest.mark.slow
def test_whatever_operators_do_to_definitions_the_stores_show_what_postgres_computes(
    postgres: Database, valkey: Cache, tmp_path: Path, seed: int
) -> None:
    bench = Bench(tmp_path, postgres, valkey, seed)
    try:
        bench.becomes(a=PLAIN, b=OVER)
        bench.becomes(a=RETYPED, b=OVER_NAMES)
        bench.begins(a=GROUPED, b=OVER_AMOUNTS)
        bench.becomes(a=RETYPED, b=OVER_NAMES)
        bench.begins(a=REKEYED, b=OVER)
        bench.becomes(a=GROUPED, b=OVER_AMOUNTS)
        bench.becomes(c=PLAIN)
        bench.becomes(a=REKEYED, b=OVER)
        bench.becomes(a=PLAIN, renamed=REKEYED)
    finally:
        bench.daemon.kill()


@pytest.mark.sampled(3)
@pytest.mark.faults
def test_a_second_daemon_with_another_definition_changes_nothing(
    postgres: Database, valkey: Cache, tmp_path: Path, seed: int
) -> None:
    bench = Bench(tmp_path, postgres, valkey, seed)
    try:
        bench.start(a=PLAIN, b=OVER)
        bench.equal()
        refused = bench.daemon.cdc("run")
        assert (refused.returncode, "another cdc run" in refused.stderr) == (2, True)
        one, elsewhere = bench.configured("one.toml", "run", a=GROUPED), bench.configured("two.toml", "other", a=GROUPED, b=OVER)
        bench.other(one, "--only", "view:a")
        assert "already writes to the log" in bench.other(elsewhere)
        bench.equal()
        assert bench.daemon.drain() == 0
    finally:
        bench.daemon.kill()
