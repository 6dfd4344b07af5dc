"""Stores that share a server: none of them writes under a key that another one writes, and none is emptied by another without noticing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest
import redis

from cdc.errors import StoreError
from cdc.model.evolution import Kind
from cdc.model.pgtypes import TEXT
from cdc.model.position import ZERO_CUT, Cut
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.cache.barriers import CacheBarriers
from sinks.cache.sink import CacheSink, Options
from tests.contract.rows import NUMBERED, PAIRS, order, schema, upserts
from tests.logs import LooseLog, cut

ROWS = 6
BY_NAME = replace(
    NUMBERED, columns=tuple(replace(one, type_oid=TEXT, type_name="text") if one.key else one for one in NUMBERED.columns)
)
"""The orders, whose key is a text."""


class Server:
    """One server, one log, and stores over both."""

    def __init__(self, url: str, sinks: ExitStack) -> None:
        self.url = url
        self.log = LooseLog()
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self._sinks = sinks
        self._epoch = 0

    def opened(self, name: str, *tables: Table, log: LooseLog | None = None, **options: Any) -> CacheSink:
        given = {"kind": "redis", "url": self.url, "tables": [table.qualified for table in tables], **options}
        sink = CacheSink(name, Options.model_validate(given))
        self._sinks.callback(sink.close)
        self._epoch += 1
        sink.open((log or self.log).reader(), self._epoch)
        sink.finish()
        return sink

    def fill(self, *sinks: CacheSink, log: LooseLog | None = None, prepare: bool = True) -> Cut:
        """The orders, into each of them."""
        changes, end = upserts(NUMBERED, 1, [order(i) for i in range(ROWS)]), cut(ROWS)
        (log or self.log).put(changes)
        (log or self.log).reach(end)
        for sink in sinks:
            if prepare:
                sink.prepare(TopicSchema.of(NUMBERED))
            sink.apply(changes)
            sink.commit(end)
        return end

    def shared(self, store: str, other: str) -> None:
        """The other one holds the same rows under the same keys."""
        self.client.hset(f"cdc:{{{other}}}:ledger", mapping=self.client.hgetall(f"cdc:{{{store}}}:ledger"))
        self.client.hset("cdc:stores", other, "")

    def orders(self) -> int:
        return len(self.client.keys("public.orders:*"))


@pytest.fixture
def server(valkey: Any) -> Iterator[Server]:
    with ExitStack() as sinks:
        yield Server(valkey.url, sinks)


@pytest.mark.parametrize("prepare", [True, False])
def test_a_store_writes_under_no_key_that_is_another_stores(server: Server, prepare: bool) -> None:
    """Somebody copied a section of cdc.toml and forgot to change `key`: one table's rows would stand under the keys of the other's."""
    first = server.opened("cache", NUMBERED, key="x:{key}")
    second = server.opened("again", PAIRS, key="x:{key}")
    server.fill(first)
    before = {key: server.client.get(key) for key in server.client.keys("x:*")}
    pairs = upserts(PAIRS, 20, [{"a": "1", "b": "", "v": "1"}])
    server.log.put(pairs)
    with pytest.raises(
        StoreError, match=r"store again: the keys of public\.pairs are those of public\.orders in store cache"
    ) as refused:
        second.prepare(TopicSchema.of(PAIRS)) if prepare else second.apply(pairs)
    assert refused.value.retryable
    assert (
        refused.value.hint
        == "give one of the two stores another `key`; if nobody follows store cache on this server: DEL 'cdc:{cache}:ledger'"
    )
    assert {key: server.client.get(key) for key in server.client.keys("x:*")} == before
    # The way out that the hint names.
    server.opened("again", PAIRS, key="y:{key}").prepare(TopicSchema.of(PAIRS))


@pytest.mark.parametrize(("other", "same_log"), [({"value": "hash"}, True), ({}, False)])
def test_a_table_stands_there_in_one_form_and_from_one_log(server: Server, other: dict[str, str], same_log: bool) -> None:
    server.fill(server.opened("cache", NUMBERED))
    second = server.opened("again", NUMBERED, log=server.log if same_log else LooseLog(), **other)
    with pytest.raises(StoreError, match=r"the keys of public\.orders are those of public\.orders in store cache"):
        second.prepare(TopicSchema.of(NUMBERED))


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_store_writes_under_no_key_that_lies_below_another_stores(server: Server, outer_first: bool) -> None:
    """A row of the one with the key "eu:1:" would stand where the other one has its row ("1", "")."""
    outer = server.opened("cache", BY_NAME, key="o:{key}"), BY_NAME
    inner = server.opened("again", PAIRS, key="o:eu:{key}"), PAIRS
    (first, its), (second, theirs) = (outer, inner) if outer_first else (inner, outer)
    first.prepare(TopicSchema.of(its))
    with pytest.raises(StoreError) as refused:
        second.prepare(TopicSchema.of(theirs))
    said = (
        f"store {second.name}: keys of {theirs.qualified} could be those of {its.qualified} in store {first.name}: they begin with "
    )
    assert str(refused.value).startswith(said)
    assert refused.value.retryable
    assert str(refused.value.hint).startswith("give one of the two stores a `key` that begins differently")


def test_stores_whose_keys_only_look_alike_share_a_server(server: Server) -> None:
    """Another beginning; a number, which is not what the other's begin with."""
    for name, table, key in (
        ("cache", NUMBERED, "o:{key}"),
        ("again", PAIRS, "o:eu:{key}"),
        ("third", PAIRS, "p:{key}"),
    ):
        server.opened(name, table, key=key).prepare(TopicSchema.of(table))


def test_a_key_that_becomes_text_is_looked_at_again(server: Server) -> None:
    """As a number it could not be what the other store's keys begin with."""
    first = server.opened("cache", NUMBERED, key="o:{key}")
    server.fill(first)
    server.opened("again", PAIRS, key="o:eu:{key}").prepare(TopicSchema.of(PAIRS))
    retyped = schema(BY_NAME, ROWS + 1, Kind.REWRITTEN)
    server.log.put(retyped)
    with pytest.raises(StoreError, match=r"keys of public\.orders could be those of public\.pairs in store again"):
        first.apply(retyped)


def test_a_template_is_not_changed_to_another_stores(server: Server) -> None:
    first, second = server.opened("cache", NUMBERED, key="x:{key}"), server.opened("again", NUMBERED, key="y:{key}", value="hash")
    server.fill(first, second)
    with pytest.raises(StoreError, match=r"store again: the keys of public\.orders are those of public\.orders in store cache"):
        server.opened("again", NUMBERED, key="x:{key}", value="hash")
    assert len(server.client.keys("y:*")) == ROWS, "nothing was touched"


def test_a_store_that_was_renamed_goes_on_once_the_former_ledger_is_gone(server: Server) -> None:
    """The same rows from the same log, in the same form; but nobody can tell that the former store is not followed any more."""
    server.fill(server.opened("cache", NUMBERED))
    renamed = server.opened("kv", NUMBERED)
    assert renamed.applied() == ZERO_CUT
    with pytest.raises(StoreError, match=r"the keys of public\.orders are those of public\.orders in store cache") as refused:
        server.fill(renamed)
    assert str(refused.value.hint).endswith("DEL 'cdc:{cache}:ledger'")
    server.client.delete("cdc:{cache}:ledger")
    end = server.fill(renamed)
    assert (renamed.applied(), server.orders()) == (end, ROWS)


def test_a_store_that_is_behind_brings_no_older_values_under_the_keys_of_another(server: Server) -> None:
    """Both hold the same table in the same form: one that is paused, or still being filled, would take the other's rows back in time."""
    first = server.opened("cache", NUMBERED)
    older, newer = (upserts(NUMBERED, at, [{**order(1), "status": status}]) for at, status in ((1, "old"), (2, "new")))
    first.prepare(TopicSchema.of(NUMBERED))
    for changes, end in ((older, cut(1)), (newer, cut(2))):
        server.log.put(changes)
        server.log.reach(end)
        first.apply(changes)
        first.commit(end)
    behind = server.opened("again", NUMBERED)
    with suppress(StoreError):
        behind.apply(older)
        behind.commit(cut(1))
    assert first.applied() == cut(2)
    assert '"status":"new"' in server.client.get("public.orders:1")


def test_of_two_stores_that_begin_at_once_one_sees_the_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section was copied before the first start, or both were flushed: each looks before the other has said what it writes."""
    first, second = server.opened("cache", NUMBERED), server.opened("again", NUMBERED)
    prepare, begun = CacheBarriers.prepare, list[TopicSchema]()

    def behind_the_other(barriers: CacheBarriers, schema: TopicSchema) -> None:
        if not begun:
            begun.append(schema)
            second.prepare(schema)
        prepare(barriers, schema)

    monkeypatch.setattr(CacheBarriers, "prepare", behind_the_other)
    with pytest.raises(StoreError, match=r"the keys of public\.orders are those of public\.orders in store again"):
        first.prepare(TopicSchema.of(NUMBERED))


def test_two_stores_that_have_come_to_share_their_keys_both_wait(server: Server) -> None:
    server.fill(server.opened("cache", NUMBERED))
    server.shared("cache", "again")
    for store, other in (("cache", "again"), ("again", "cache")):
        with pytest.raises(StoreError, match=rf"are those of public\.orders in store {other}"):
            server.opened(store, NUMBERED)
    server.client.delete("cdc:{again}:ledger")
    assert server.opened("cache", NUMBERED).applied() != ZERO_CUT


def test_a_table_that_moves_to_another_store_is_not_that_stores_loss(server: Server) -> None:
    """The one that had it is emptied later, with every key that it ever put there."""
    server.fill(server.opened("cache", NUMBERED, PAIRS))
    former = server.opened("cache", PAIRS)
    now = server.opened("orders", NUMBERED, value="hash")
    end = server.fill(now)
    assert now.applied() == end
    former.erase()
    assert now.applied() == ZERO_CUT, "it has to see that its rows are gone"
    again = server.opened("orders", NUMBERED, value="hash")
    server.fill(again)
    assert (again.applied(), server.orders()) == (end, ROWS)


def test_what_a_table_has_left_behind_is_not_mixed_with_another_tables_rows(server: Server) -> None:
    """Its rows stay where they are when it is taken out of the configuration; under them nobody would tell whose a key is."""
    server.fill(server.opened("cache", NUMBERED, key="x:{key}"))
    server.opened("cache", PAIRS, key="x:{key}").prepare(TopicSchema.of(PAIRS))
    assert "could be the same" in server.client.hget("cdc:{cache}:ledger", "aside:public.pairs")
    again = server.opened("again", PAIRS, key="x:{key}")
    with pytest.raises(StoreError, match=r"the keys of public\.pairs are those of public\.orders in store cache"):
        again.prepare(TopicSchema.of(PAIRS))


def test_a_template_that_changes_takes_no_other_stores_rows_along(server: Server) -> None:
    """Two may have come to share them in an earlier version, or where one of them may not see the other."""
    end = server.fill(server.opened("cache", NUMBERED))
    server.shared("cache", "again")
    server.opened("cache", NUMBERED, key="x:{key}")
    second = server.opened("again", NUMBERED)
    assert second.applied() == ZERO_CUT, "it has to see that its rows are gone"
    server.fill(second)
    assert (second.applied(), server.orders()) == (end, ROWS)


def test_a_template_that_changes_leaves_alone_what_another_store_has_taken_over(server: Server) -> None:
    server.fill(server.opened("cache", NUMBERED, PAIRS))
    server.opened("cache", PAIRS)
    now = server.opened("orders", NUMBERED)
    end = server.fill(now)
    server.opened("cache", PAIRS, key="x:{schema}.{table}:{key}")
    assert (now.applied(), server.orders(), server.client.keys("x:*")) == (end, ROWS, [])


def test_a_store_that_may_touch_no_keys_but_its_own_works_as_before(server: Server) -> None:
    """Nobody can tell then who else is there."""
    server.client.execute_command("acl", "setuser", "narrow", "on", ">secret", "~cdc:{again}:*", "~public.*", "+@all")
    try:
        server.fill(server.opened("cache", NUMBERED))
        narrow = server.opened("again", NUMBERED, value="hash", username="narrow", password="secret")
        narrow.prepare(TopicSchema.of(NUMBERED))
        narrow.erase()
    finally:
        server.client.execute_command("acl", "deluser", "narrow")


def test_an_erased_store_leaves_nothing_behind(server: Server) -> None:
    sink = server.opened("cache", NUMBERED)
    server.fill(sink)
    sink.erase()
    assert server.client.keys("*") == []
