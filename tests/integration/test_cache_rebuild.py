"""A cache built again on a server that others use, too: nothing is lost unnoticed, nothing is left over, and no other store's rows are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cdc.errors import ConfigError, StoreError
from cdc.follow.rebuild import Rebuilding
from cdc.follow.rules import Rules
from cdc.model.batch import Op
from cdc.model.position import ZERO_CUT
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.cache import rebuild as rebuilds
from sinks.cache.sink import CacheSink, Options
from sinks.heldlog import HeldLog
from tests.contract.rows import NUMBERED, PAIRS, batch, order, upserts
from tests.integration.test_cache_neighbours import ROWS, Server
from tests.logs import cut

LEDGER = "cdc:{cache}:ledger"


@pytest.fixture
def server(valkey: Any) -> Iterator[Server]:
    with ExitStack() as sinks:
        yield Server(valkey.url, sinks)


def rebuild(server: Server, name: str, *tables: Table, **options: Any) -> CacheSink:
    """As the follower does that finds the request; the sink is not opened."""
    given = {"kind": "redis", "url": server.url, "tables": [table.qualified for table in tables], **options}
    sink = CacheSink(name, Options.model_validate(given))
    server._sinks.callback(sink.close)
    server._epoch += 1
    reader = HeldLog(server.log.reader(), name, sink._options)
    Rebuilding(Rules(name, sink._options), reader, threading.Event(), lambda: None).carry_out(sink, server._epoch)
    reader.forget()
    return sink


def meanwhile(monkeypatch: pytest.MonkeyPatch, at: str, act: Callable[[], object]) -> None:
    """Does it once, when the rebuild comes to this point."""
    done: list[str] = []

    def reached(point: str) -> None:
        if point == at and not done:
            done.append(point)
            act()

    monkeypatch.setattr(rebuilds, "crashpoint", reached)


@pytest.mark.parametrize("point", ["rebuilding.cache_begun", "rebuilding.cache_written", "rebuilding.cache_swept"])
def test_rows_that_another_store_takes_away_meanwhile_are_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    end = server.fill(server.opened("cache", NUMBERED))
    meanwhile(monkeypatch, point, lambda: server.client.hdel(LEDGER, "at:public.orders"))
    with pytest.raises(StoreError, match="not where this writer left it") as refused:
        rebuild(server, "cache", NUMBERED)
    assert refused.value.retryable
    rebuild(server, "cache", NUMBERED)
    assert server.opened("cache", NUMBERED).applied() == end


@pytest.mark.parametrize("point", ["rebuilding.cache_begun", "rebuilding.cache_written"])
def test_no_other_store_takes_a_table_meanwhile(server: Server, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    server.fill(server.opened("cache", NUMBERED))
    other = server.opened("again", NUMBERED)

    def take() -> None:
        with pytest.raises(StoreError, match=r"the keys of public\.orders are those of public\.orders in store cache"):
            other.prepare(TopicSchema.of(NUMBERED))

    meanwhile(monkeypatch, point, take)
    rebuild(server, "cache", NUMBERED)
    assert other.applied() == ZERO_CUT


@pytest.mark.parametrize("lost", ["at:public.orders", "shape:public.orders", "projection"])
def test_a_row_that_the_log_has_deleted_goes_whatever_the_ledger_has_lost(server: Server, lost: str) -> None:
    sink = server.opened("cache", NUMBERED, PAIRS)
    server.fill(sink)
    sink.close()
    server.log.put(batch(NUMBERED, [(Op.DELETE, ROWS + 1, order(2))]))
    server.log.reach(cut(ROWS + 1))
    if lost.startswith("at:"):
        server.client.hdel(LEDGER, lost)
        server.opened("cache", NUMBERED, PAIRS).close()
    else:
        server.client.hset(LEDGER, lost, "x")
    rebuild(server, "cache", NUMBERED, PAIRS)
    assert (server.client.exists("public.orders:2"), server.orders()) == (0, ROWS - 1)


def test_what_another_store_has_taken_over_stays(server: Server) -> None:
    server.log.put(upserts(PAIRS, ROWS + 1, [{"a": "1", "b": "b", "v": "1"}]))
    server.fill(server.opened("cache", NUMBERED, PAIRS))
    server.opened("cache", PAIRS)
    now = server.opened("orders", NUMBERED)
    end = server.fill(now)
    rebuild(server, "cache", PAIRS)
    assert (now.applied(), server.orders()) == (end, ROWS)


def test_rows_that_could_be_named_no_more_are_not_taken_away(server: Server) -> None:
    server.fill(server.opened("cache", NUMBERED, key="{schema}.{table}:{id}"))
    before = server.client.hgetall(LEDGER)
    with pytest.raises(ConfigError):
        rebuild(server, "cache", NUMBERED, key="{schema}.{table}:{absent}")
    assert (server.client.hgetall(LEDGER), server.orders()) == (before, ROWS)


@pytest.mark.parametrize("stands", [True, False])
def test_only_what_stood_below_the_prefix_before_is_looked_for_behind_the_rows(
    server: Server, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    server.fill(server.opened("cache", NUMBERED))
    server.client.flushdb()
    if stands:
        server.client.set("public.orders:another's", "x")
    reached: list[str] = []
    monkeypatch.setattr(rebuilds, "crashpoint", reached.append)
    rebuild(server, "cache", NUMBERED)
    assert ("rebuilding.cache_swept" in reached, server.orders()) == (stands, ROWS + stands)
