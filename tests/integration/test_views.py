"""Views from cdc.toml to a store: real Postgres, real capture, a view's own thread or process, and a Redis that follows it. At every wait the store shows what
Postgres answers to the view's SQL.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from cdc.client.wait import wait as wait_for
from cdc.derive.declarations import declared_views
from cdc.embedded.postgres import Postgres
from cdc.log.home import open_reader
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.state import status, stops
from sinks import options_model
from tests.conftest import Cache
from tests.integration.pipeline import kept_up, service
from tests.waiting import until

DEADLINE_S = 240.0
JOINED = """select o.id, c.name, o.amount, o.note from public.orders o join public.customers c on c.id = o.customer_id"""
TOTALS = (
    """select customer_id as id, count(*) as orders, sum(amount)::numeric(20,2) as amount from public.orders group by customer_id"""
)
ARRAYS = """select customer_id as id, array_agg(note order by id desc) as notes, array_agg(amount order by id) as amounts from public.orders group by customer_id"""
CARRIED = """select c.id, c.name, a.notes, a.amounts from public.customers c join views.arrays a on a.id = c.id"""
LARGE = """select name, count(*) as orders from views.joined group by name"""

NESTED = """
[views.nested]
root = "public.customers"
key = ["id"]
columns = ["name"]
[views.nested.many.orders]
table = "public.orders"
on = { id = "customer_id" }
order = ["amount desc", "id"]
limit = 2
columns = ["id", "amount", "note"]
totals = { order_count = "count(*)" }
"""


class Shop:
    """A folder with a configuration, its source, and what its Redis shows."""

    def __init__(self, folder: Path, server: Postgres, cache: Cache) -> None:
        self.folder = folder
        self.cache = cache
        self.dsn = server.dsn()
        config = folder / "cdc.toml"
        config.touch(0o600)
        config.write_text(
            f'run_dir = "run"\n[source]\ndsn = "{self.dsn}"\n[log]\ndir = "log"\n'
            f'[views.joined]\nsql = """{JOINED}"""\nkey = ["id"]\n'
            f'[views.totals]\nsql = """{TOTALS}"""\nkey = ["id"]\n'
            f'[views.arrays]\nsql = """{ARRAYS}"""\nkey = ["id"]\n'
            f'[views.carried]\nsql = """{CARRIED}"""\nkey = ["id"]\n'
            f'[views.large]\nsql = """{LARGE}"""\nkey = ["name"]\n'
            f"{NESTED}"
            f'[stores.cache]\nkind = "redis"\nurl = "{cache.url}"\nviews = ["joined", "totals", "large", "nested", "arrays", "carried"]\n'
        )
        self.config = config
        self.settings = load(config, options_model)
        with self.source() as source:
            source.execute(
                "create table customers (id bigint primary key, name text);"
                "create table orders (id bigint primary key, customer_id bigint, amount numeric(12,2), note text);"
                "insert into customers select g, 'customer ' || g from generate_series(1, 20) g;"
                "insert into orders select g, g % 25, g * 1.5, repeat('x', g) from generate_series(1, 50) g"
            )

    def source(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True)

    def expected(self, view: str, sql: str) -> dict[str, Any]:
        key = self.settings.views[view].key[0]
        with self.source() as source:
            rows = source.execute(
                f"select to_jsonb(v) from ({sql.replace('views.joined', f'({JOINED}) j').replace('views.arrays', f'({ARRAYS})')}) v"
            ).fetchall()
        return {f"views.{view}:{row[key]}": row for (row,) in rows}

    def shown(self, view: str) -> dict[str, Any]:
        with self.cache.client() as client:
            keys = [key.decode() for key in client.scan_iter(f"views.{view}:*", 1000)]
            held = {key: client.get(key) for key in keys}
            return {key: json.loads(row) for key, row in held.items() if row is not None}  # type: ignore[arg-type]

    def captured(self) -> bool:
        found = status.read_capture(self.settings.run_dir)
        return found is not None and found.complete_position is not None

    def wait(self, timeout_s: float = DEADLINE_S) -> None:
        with closing(open_reader(self.settings.log.dir)) as log:
            wait_for(self.settings, log, "cache", timeout_s=timeout_s)

    def equal(self) -> None:
        for view, sql in (("joined", JOINED), ("totals", TOTALS), ("large", LARGE), ("arrays", ARRAYS), ("carried", CARRIED)):
            assert self.shown(view) == self.expected(view, sql), view
        assert self.shown("nested") == self.expected("nested", declared_views(self.settings)["nested"].query.sql)


@pytest.fixture
def shop(postgres_server: Postgres, valkey: Cache, tmp_path: Path) -> Shop:
    return Shop(tmp_path, postgres_server, valkey)


def transaction(source: psycopg.Connection, dice: Random) -> None:
    with source.transaction():
        if dice.random() < 0.05:
            source.execute("truncate orders")
        for _ in range(dice.randrange(1, 6)):
            number, customer = dice.randrange(60), dice.randrange(25)
            source.execute(
                dice.choice(
                    (
                        "insert into orders values (%(o)s, %(c)s, %(a)s, 'new') on conflict (id) do update set customer_id = %(c)s, amount = %(a)s",
                        "delete from orders where id = %(o)s",
                        "update orders set customer_id = %(c)s where id = %(o)s",
                        "insert into customers values (%(c)s, %(n)s) on conflict (id) do update set name = %(n)s",
                        "delete from customers where id = %(c)s",
                        "update customers set name = %(n)s where id %% 5 = %(c)s %% 5",
                    )
                ),
                {"o": number, "c": customer, "a": dice.randrange(1000) / 100, "n": f"name {dice.randrange(6)}"},
            )


def test_a_store_of_views_shows_what_postgres_answers_at_every_wait(shop: Shop, seed: int) -> None:
    dice = Random(seed)
    with service(shop.settings), kept_up(shop.settings), shop.source() as source:
        shop.wait()
        shop.equal()
        for _ in range(6):
            for _ in range(dice.randrange(1, 20)):
                transaction(source, dice)
            shop.wait()
            shop.equal()


@pytest.mark.parametrize("added", [False, True])
def test_a_table_that_never_had_a_row_holds_no_view_up(shop: Shop, added: bool) -> None:
    """``added``: the views come when the table has been read."""
    with shop.source() as source:
        source.execute("truncate orders")
        if added:
            with service(shop.settings.model_copy(update={"views": {}, "stores": {}})):
                until(shop.captured, "the tables to be read")
        with service(shop.settings), kept_up(shop.settings):
            shop.wait(60)
            shop.equal()
            source.execute("insert into orders values (1, 1, 1, 'the first')")
            shop.wait(60)
            shop.equal()


EVEN = f"""{JOINED} where o.id % 2 = 0"""


def test_another_definition_takes_the_topic_over_in_one_step_and_the_way_back_is_short(shop: Shop, seed: int) -> None:
    dice = Random(seed)

    def defined(sql: str) -> Settings:
        joined = shop.settings.views["joined"].model_copy(update={"sql": sql})
        return shop.settings.model_copy(update={"views": {**shop.settings.views, "joined": joined}})

    retyped = JOINED.replace("o.note", "length(o.note) as note")
    states: list[str] = []
    with service(shop.settings), shop.source() as source:
        for settings, sql in ((shop.settings, JOINED), (defined(EVEN), EVEN), (shop.settings, JOINED), (defined(retyped), retyped)):
            with kept_up(settings):
                transaction(source, dice)
                until(lambda sql=sql: shop.shown("joined") == shop.expected("joined", sql), "the view to be as it is defined now")
                transaction(source, dice)
                shop.wait()
                assert shop.shown("joined") == shop.expected("joined", sql)
                saved = status.read_view(settings.run_dir, "joined")
                assert saved is not None
                states.append(" ".join(f"{one.number} {one.state}" for one in saved.generations) + f" {saved.built}".rstrip())
    why = "its definition is another than that of its rows in the log"
    assert states[1:3] == [f"2 live 1 kept {why}", "1 live 2 kept"], "nothing was computed from the beginning on the way back"
    assert states[3] == f"3 live 1 kept {why}", "with a column of another type"


DIVIDED = JOINED.replace("o.amount", "(o.amount / (o.id - 3))::numeric(12,2) as amount")
"""Order 3 has no value in it."""


def test_a_refused_definition_leaves_the_topic_fresh_under_the_former_one_until_it_is_resumed(shop: Shop, seed: int) -> None:
    dice, run_dir = Random(seed), shop.settings.run_dir
    cache = shop.settings.stores["cache"].model_copy(update={"tables": ("views.joined",), "views": ("joined",)})
    few = shop.settings.model_copy(update={"views": {"joined": shop.settings.views["joined"]}, "stores": {"cache": cache}})
    changed = few.model_copy(update={"views": {"joined": few.views["joined"].model_copy(update={"sql": DIVIDED})}})
    three = "insert into orders values (3, 3, 7, 'three') on conflict (id) do update set customer_id = 3; insert into customers values (3, 'c') on conflict do nothing"

    def wait() -> None:
        with closing(open_reader(few.log.dir)) as log:
            wait_for(few, log, "cache", timeout_s=DEADLINE_S)

    with service(few), shop.source() as source:
        with kept_up(few):
            wait()
        with kept_up(changed):
            source.execute(three)
            until(lambda: stops.held(run_dir), "the next generation to be refused")
            [stop] = stops.held(run_dir)
            assert stop.name == "VIEW_REFUSED:view-joined@next"
            for _ in range(3):
                transaction(source, dice)
                wait()
                assert shop.shown("joined") == shop.expected("joined", JOINED)
            saved = status.read_view(run_dir, "joined")
            assert saved is not None
            assert [(one.number, one.state) for one in saved.generations] == [(1, "live"), (2, "refused")]
        with kept_up(changed):
            source.execute("delete from orders where id = 3")
            wait()
            assert shop.shown("joined") == shop.expected("joined", JOINED), "it is not tried again by itself"
            stops.clear(run_dir, "VIEW_REFUSED")
            until(lambda: shop.shown("joined") == shop.expected("joined", DIVIDED), "the view to be as it is defined now")
    assert not stops.held(run_dir)
