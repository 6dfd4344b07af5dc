"""Cycles of traffic in which a real store is flushed, set back, replaced, killed, cut off or claimed by another service, whole or in part.

Afterwards, without anybody's help where no stop state is right, the store is the source again, by the audit and by what its own clients see; and at no
time did status say that all is well for longer than the follower's look takes. A few cycles in every run, a tenth of HEADWATER_FAULTS for each kind of
store by `make faults`. One seed decides what happens, and roughly when.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.valkey import Valkey
from cdc.errors import StopState
from sinks.sparksession import use_session
from tests import counters
from tests.conftest import Database
from tests.contract.lossy_proxy import LossyProxy
from tests.contract.units import OpenSearchUnits, RedisUnits, WarehouseUnits
from tests.faults.points import EVERYTHING
from tests.faults.shops import DDL, STORE, RawIceberg, RawOpenSearch, RawRedis, Shop, Watch
from tests.integration.pipeline import settings_of

COPIES: Final = 3
pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if EVERYTHING else 900)]


def cycles(few: int) -> int:
    return max(few, int(os.environ.get("HEADWATER_FAULTS", "0")) // 10)


class Cycles:
    """``server`` and ``proxy``: of a store that has them."""

    def __init__(self, shop: Shop, seed: int, server: Any = None, proxy: LossyProxy | None = None) -> None:
        self.shop = shop
        self.chance = random.Random(seed)
        self._server = server
        self._proxy = proxy
        self._copies: list[Any] = []
        self._strikes: list[tuple[str, Callable[[], None]]] = [
            ("lost", lambda: self.shop.units.lose(*self.shop.units.there())),
            ("part lost", lambda: self.shop.units.lose(*self._some())),
            ("set back", lambda: self._set_back(whole=True)),
            ("part set back", lambda: self._set_back(whole=False)),
            ("another service came", self.shop.intrude),
            ("taken over", self._taken_over),
        ]
        if proxy is not None:
            self._strikes.append(("answers lost", self._answers_lost))
        if server is not None:
            self._strikes.append(("killed", self._killed))

    def run(self, count: int) -> None:
        shop = self.shop
        shop.start()
        shop.converge()
        order = [*self._strikes]
        self.chance.shuffle(order)
        for number in range(count):
            name, strike = order[number] if number < len(order) else self.chance.choice(order)
            shop.write_quiet()
            if len(self._copies) < COPIES or self.chance.random() < 0.5:
                self._copies = [*self._copies[-COPIES + 1 :], shop.copy()]
            self._cycle(name, strike)

    def _cycle(self, name: str, strike: Callable[[], None]) -> None:
        shop = self.shop
        began = time.monotonic()
        shop.begin_traffic()
        with Watch(shop):
            asleep, again = self._struck(name, strike)
            shop.end_traffic()
            self._have_half_a_table_built_again()
            shop.converge()
        counters.add("store cycles", name)
        print(f"{time.monotonic() - began:6.1f} s  {name}{' twice' * again}{' while nobody followed' * asleep}")

    def _have_half_a_table_built_again(self) -> None:
        """A table's folder that goes in the middle of a commit comes back with what the commit writes after that, and lacks the rest: a stop is right."""
        shop = self.shop
        shop.until(lambda: shop.differs() is None or shop.held_stops(), "the store to equal the source")
        for stop in shop.held_stops():
            if isinstance(shop.units, WarehouseUnits) and "lacks a file that it needs" in stop.message:
                shop.resume(stop.state)
                counters.add("store cycles", "half a table was left")

    def _struck(self, name: str, strike: Callable[[], None]) -> tuple[bool, bool]:
        """Whether nobody followed meanwhile, and whether it happened twice."""
        shop, chance = self.shop, self.chance
        asleep = name not in ("taken over", "answers lost") and chance.random() < 0.25
        if asleep:
            shop.end()  # it happens while nobody follows
        time.sleep(chance.uniform(0.0, 0.5))
        strike()
        again = chance.random() < 0.3 and name not in ("taken over", "another service came")
        if again:
            time.sleep(chance.uniform(0.0, 1.5))
            strike()
        if asleep:
            shop.start()
        time.sleep(chance.uniform(0.0, 1.0))
        return asleep, again

    # --- strikes ----------------------------------------------------------------------------------------------------------------------

    def _some(self) -> list[str]:
        there = self.shop.units.there()
        return self.chance.sample(there, self.chance.randint(1, len(there))) if there else []

    def _set_back(self, *, whole: bool) -> None:
        self.shop.units.restore(self.chance.choice(self._copies), *(self.shop.units.there() if whole else self._some()))

    def _killed(self) -> None:
        self._server.crash()
        time.sleep(self.chance.uniform(0.0, 0.5))
        self._server.start()

    def _answers_lost(self) -> None:
        assert self._proxy is not None
        self._proxy.lose_answers = True
        time.sleep(self.chance.uniform(0.2, 1.5))
        self._proxy.lose_answers = False

    def _taken_over(self) -> None:
        """The one case in which an operator has to say whose it is."""
        self.shop.take_over()
        self.shop.end()
        self.shop.units.lose(*([] if self.chance.random() < 0.7 else self._some()))
        self.shop.resume(StopState.OTHER_LOG)
        self.shop.start()
        # The next is made of what has converged. One made now might still carry the other service's marks.
        self._copies.clear()


@contextmanager
def opened(shop: Shop) -> Iterator[Shop]:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute(DDL)  # type: ignore[arg-type]
    try:
        yield shop
    finally:
        if shop.traffic is not None:
            shop.traffic.stop()
        shop.end()
        shop.units.close()


def test_redis(postgres: Database, valkey_server: Valkey, tmp_path: Path, seed: int) -> None:
    import redis

    print(f"seed {seed}")
    client = redis.Redis.from_url(valkey_server.url, retry_on_error=[redis.ConnectionError])
    with closing(LossyProxy(valkey_server.port)) as proxy:
        store = {"kind": "redis", "url": f"redis://127.0.0.1:{proxy.port}/0", "batch_rows": 100}
        settings = settings_of(postgres, tmp_path, {STORE: store})
        with opened(Shop(settings, RedisUnits(client), RawRedis(client), seed)) as shop:
            Cycles(shop, seed, valkey_server, proxy).run(cycles(3))


def test_opensearch(postgres: Database, opensearch: OpenSearch, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    with closing(LossyProxy(opensearch.port)) as proxy:
        store = {"kind": "opensearch", "url": f"http://127.0.0.1:{proxy.port}", "batch_rows": 400}
        settings = settings_of(postgres, tmp_path, {STORE: store})
        with opened(Shop(settings, OpenSearchUnits(opensearch, STORE), RawOpenSearch(opensearch), seed)) as shop:
            # Its start takes longer than everything else here.
            Cycles(shop, seed, opensearch if EVERYTHING else None, proxy).run(cycles(1))


def test_iceberg(postgres: Database, spark: Any, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    use_session(lambda: spark)
    folder = tmp_path / "warehouse"
    settings = settings_of(
        postgres, tmp_path, {STORE: {"kind": "iceberg", "path": folder, "batch_rows": 400, "commit_interval_ms": 1000}}
    )
    with opened(Shop(settings, WarehouseUnits(folder, STORE), RawIceberg(spark, folder), seed)) as shop:
        Cycles(shop, seed).run(cycles(1))


def test_a_part_without_traffic_is_missed_however_busy_the_others_are(
    postgres: Database, opensearch: OpenSearch, tmp_path: Path, seed: int
) -> None:
    """Commits come faster than looks, and none of them touches what is gone."""
    settings = settings_of(postgres, tmp_path, {STORE: {"kind": "opensearch", "url": opensearch.url, "batch_rows": 400}})
    with opened(Shop(settings, OpenSearchUnits(opensearch, STORE), RawOpenSearch(opensearch), seed)) as shop:
        shop.start()
        shop.write_quiet()
        shop.begin_traffic()
        with Watch(shop):
            shop.units.lose(shop.units.of("public.quiet"))
            shop.until(shop.holds_quiet, "the quiet row to come back")
            shop.end_traffic()
            shop.converge()
