"""What a search store says of itself, on a real OpenSearch: indices and ledgers that are deleted, restored, copied and moved behind its back.

Every test ends alike: what is whole again equals the log, nothing is reported whole that is not.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import armed
from cdc.embedded.opensearch import OpenSearch
from cdc.errors import Stopped, StopState, StoreError
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op, first_position
from cdc.model.pgtypes import INT4, TEXT
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed
from sinks.search.sink import Options, SearchSink
from sinks.search.tables import Tables
from sinks.search.wire import Answer, Cluster
from tests.contract.lossy_proxy import LossyProxy
from tests.contract.rows import ORDERS, Row, batch, order, schema

ITEMS = dataclasses.replace(ORDERS, oid=16500, name="items")
LEDGER = ".headwater-search"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Feed:
    """A log, and a follower of it in few lines: opens the store, brings it what it lacks, opens it again after an error."""

    def __init__(self, server: OpenSearch, **options: Any) -> None:
        self.log = MemoryLog()
        self.writer = self.log.writer()
        self.server = server
        self.clock = Clock()
        self.options = options
        self.url = server.url
        self.rows: dict[str, dict[str, Row]] = {}
        """What each table holds at the log's head, by key."""
        self.epoch = 1
        self.sinks: list[SearchSink] = []
        self.sink = self.another()
        self.applied: Cut | None = None
        self.between: Callable[[], None] = lambda: None
        """Called before each batch and before the commit."""
        self.passed_over: set[int] = set()
        """The positions of changes that the store's policy ignores."""
        self.past: dict[tuple[str, str], list[tuple[int, Row | None]]] = {}
        """Per table and key what each change has made of it."""

    def another(self, name: str = "search", **options: Any) -> SearchSink:
        given = {"kind": "opensearch", "url": self.url, **self.options, **options}
        self.sinks.append(SearchSink(name, Options.model_validate(given), self.clock))
        return self.sinks[-1]

    def add(self, table: Table, *changes: tuple[Op, Row]) -> Cut:
        first = self.writer.next_position
        rows = self.rows.setdefault(table.qualified, {})
        numbered = [(op, first + i, row) for i, (op, row) in enumerate(changes)]
        if numbered:
            self.writer.append(batch(table, numbered))
        for op, position, row in numbered:
            key = json.dumps([row.get(column.name) for column in table.key])
            touched = list(rows) if op == Op.TRUNCATE else [key]
            for one in touched:
                gone = op in (Op.TRUNCATE, Op.DELETE)
                self.past.setdefault((table.qualified, one), []).append((position, None if gone else row))
            if op == Op.TRUNCATE:
                rows.clear()
            elif op == Op.DELETE:
                rows.pop(key, None)
            else:
                rows[key] = row
        return self.writer.commit(Lsn(self.writer.head.commit_lsn + 10), 0)

    def insert(self, table: Table, *keys: int, note: str = "") -> Cut:
        return self.add(table, *((Op.INSERT, order(key, note=note)) for key in keys))

    def pass_over(self, table: Table) -> Cut:
        """A change of definition that the store's policy ignores."""
        position = self.writer.next_position
        self.passed_over.add(position)
        self.writer.append(schema(dataclasses.replace(table, columns=(*table.columns, Column("ignored", TEXT))), position))
        return self.writer.commit(Lsn(self.writer.head.commit_lsn + 10), 0)

    def follow(self, *, attempts: int = 6) -> None:
        """Until the store says that it holds the log's head. Raises what the last attempt raised."""
        for attempt in range(attempts):
            try:
                if self.applied is None:
                    self.applied = self.sink.open(self.log.reader(), self.epoch)
                self.advance()
                return
            except StoreError as error:
                self.applied = None
                self.sink.close()
                self.between()
                if not error.retryable or attempt == attempts - 1:
                    raise

    def advance(self) -> None:
        """One step from where it stands, without opening the store again."""
        assert self.applied is not None
        reader, head = self.log.reader(), self.log.head
        for topic in reader.topics():
            for changes in reader.read(topic.name, self.applied.position, head.position):
                self.between()
                if first_position(changes) not in self.passed_over:
                    self.sink.apply(changes)
        self.between()
        self.sink.commit(head)
        self.applied = head

    def write_uncommitted(self, key: int) -> None:
        """One more row is in the log and in the store; no commit has covered it."""
        before, now = self.log.head, self.insert(ORDERS, key)
        for changes in self.log.reader().read(ORDERS.qualified, before.position, now.position):
            self.sink.apply(changes)

    def open_again(self, *tables: Table) -> None:
        """The store is opened again, and then holds everything."""
        self.applied = None
        self.follow()
        self.holds(*tables)

    def refuse_commit(self, reported: int) -> None:
        """The commit of what was written is refused, and until the store is opened again it says that it is no further than this position."""
        with pytest.raises(StoreError) as failure:
            self.sink.commit(self.log.head)
        assert failure.value.retryable
        assert self.reported().position == reported

    def catch_up(self) -> None:
        """As a follower does: looks whether the store still is where it was, and goes on from what it finds."""
        self.clock.now += 60
        if self.applied is not None and self.sink.applied() != self.applied:
            self.applied = None
        self.follow()

    def reported(self) -> Cut:
        """What `cdc wait` would see: a sink that only reads."""
        reading = self.another()
        return reading.open(self.log.reader())

    def holds(self, *tables: Table) -> None:
        """Everything that the log has, and nothing else."""
        self.sink.make_visible()
        for table in tables or (ORDERS,):
            assert self.found(table) == sorted(self.rows.get(table.qualified, {}).values(), key=str), table.qualified
        assert self.reported() == self.log.head == self.sink.applied()

    def is_whole_to(self, reported: Cut, *tables: Table) -> None:
        """Each key is what its last change up to there has made of it, or a later one."""
        for table in tables:
            there = {json.dumps([row[column.name] for column in table.key]): row for row in self.found(table)}
            for (topic, key), states in self.past.items():
                if topic == table.qualified:
                    last = max((position for position, _ in states if position <= reported.position), default=0)
                    right = [row for position, row in states if position >= last] + ([None] if last == 0 else [])
                    assert there.get(key) in right, (topic, key, reported)

    def found(self, table: Table) -> list[Row]:
        return sorted((row for part in self.sink.scan(TopicSchema.of(table)) for row in part.to_pylist()), key=str)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


@pytest.fixture
def feed(opensearch: OpenSearch) -> Iterator[Feed]:
    made = Feed(opensearch, purge_after_s=1e9)
    yield made
    made.close()


class Shots:
    """Snapshots of single indices."""

    def __init__(self, server: OpenSearch) -> None:
        self.server = server
        self.name = uuid.uuid4().hex[:8]
        place = str(server.repository / self.name)
        server.request("PUT", f"/_snapshot/{self.name}", {"type": "fs", "settings": {"location": place}})

    def take(self, indices: str) -> str:
        shot = uuid.uuid4().hex[:8]
        body = {"indices": indices, "include_global_state": False}
        self.server.request("PUT", f"/_snapshot/{self.name}/{shot}?wait_for_completion=true", body)
        return shot

    def restore(self, shot: str, indices: str, *, close: bool = False, **more: Any) -> None:
        """Over a closed index, or in place of a deleted one."""
        if close:
            self.server.request("POST", f"/{indices}/_close")
        elif not more:
            self.server.request("DELETE", f"/{indices}")
        body = {"indices": indices, "include_global_state": False, **more}
        self.server.request("POST", f"/_snapshot/{self.name}/{shot}/_restore?wait_for_completion=true", body)


@pytest.fixture
def shots(opensearch: OpenSearch) -> Iterator[Shots]:
    made = Shots(opensearch)
    yield made
    opensearch.request("DELETE", f"/_snapshot/{made.name}")


def copy_index(server: OpenSearch, source: str, target: str) -> None:
    """As somebody copies an index by hand: definition, aliases and documents."""
    held = server.request("GET", f"/{source}")[source]
    index = {k: v for k, v in held["settings"]["index"].items() if k in ("hidden", "number_of_shards", "number_of_replicas")}
    server.request("PUT", f"/{target}", {"settings": {"index": index}, "mappings": held["mappings"], "aliases": held["aliases"]})
    server.request("POST", f"/{source}/_refresh")
    server.request("POST", "/_reindex?refresh=true", {"source": {"index": source}, "dest": {"index": target}})


# -- what is found whole, and what is not ------------------------------------------------------------------------------


def test_what_was_brought_is_found_and_nothing_is_brought_twice(feed: Feed) -> None:
    feed.insert(ORDERS, 1, 2)
    feed.insert(ITEMS, 1)
    feed.follow()
    feed.holds(ORDERS, ITEMS)
    again = feed.another()
    assert again.open(feed.log.reader(), 1) == feed.log.head
    assert again.held("public.orders") == feed.log.head.position
    assert again.shape("public.orders") == feed.sink.shape("public.orders")


def test_a_sink_that_reads_creates_nothing(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    reading = feed.another()
    assert reading.open(feed.log.reader()) == ZERO_CUT
    assert reading.applied() == ZERO_CUT
    assert reading.shape("public.orders") is None
    assert list(reading.scan(TopicSchema.of(ORDERS))) == []
    with pytest.raises(StoreError, match="not open for writing"):
        reading.prepare(TopicSchema.of(ORDERS))
    assert opensearch.request("GET", "/_cat/indices?format=json&expand_wildcards=all") == []


def test_an_index_that_was_deleted_is_filled_again(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1, 2)
    feed.insert(ITEMS, 1)
    feed.follow()
    opensearch.request("DELETE", "/public.orders@1")
    assert feed.reported() == ZERO_CUT
    feed.catch_up()
    feed.holds(ORDERS, ITEMS)


def test_an_index_deleted_between_two_batches_loses_nothing(feed: Feed, opensearch: OpenSearch) -> None:
    """Nobody looks in between: the writing itself notices."""
    feed.insert(ORDERS, 1, 2)
    feed.follow()
    opensearch.request("DELETE", "/public.orders@1")
    feed.insert(ORDERS, 3)
    with pytest.raises(StoreError, match="was deleted") as failure:
        feed.advance()
    assert failure.value.retryable
    feed.open_again()


def test_an_index_deleted_between_rows_and_commit_is_not_taken_for_whole(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    feed.write_uncommitted(2)
    opensearch.request("DELETE", "/public.orders@1")
    feed.refuse_commit(reported=0)
    feed.open_again()


class Vanishing:
    """An index or a ledger that is deleted right before a request of one kind: it was there a moment ago."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: OpenSearch, index: str, method: str, path: str) -> None:
        self.times = 0
        real = Cluster.send

        def send(cluster: Cluster, asked: str, at: str, *given: Any, **named: Any) -> Answer:
            if not self.times and asked == method and re.fullmatch(path, at):
                self.times += 1
                server.request("DELETE", f"/{index}")
            return real(cluster, asked, at, *given, **named)

        monkeypatch.setattr(Cluster, "send", send)


def test_an_index_deleted_in_the_middle_of_a_purge_is_filled_again(feed: Feed, opensearch: OpenSearch) -> None:
    """The purge has come to its documents by then, and is answered in another form."""
    feed.insert(ORDERS, *range(1, 20_001))
    feed.follow()
    over = threading.Event()

    def delete_it_on_the_way() -> None:
        while not over.wait(0.002):
            told = json.dumps(opensearch.request("GET", "/_tasks?actions=*/delete/byquery&detailed"))
            if re.search(r'"deleted": ?[1-9]', told):
                opensearch.request("DELETE", "/public.orders@1")
                return

    deleting = threading.Thread(target=delete_it_on_the_way)
    deleting.start()
    try:
        feed.add(ORDERS, (Op.TRUNCATE, {}))
        with pytest.raises(StoreError, match="purging deleted rows was answered 404 index_not_found_exception") as failure:
            feed.advance()
    finally:
        over.set()
        deleting.join()
    assert failure.value.retryable
    feed.open_again()


WIDER = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", TEXT, -1, "text")))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/public.orders@1/_refresh"),
        ("POST", "/public.orders@1/_delete_by_query"),
        ("POST", "/_aliases"),
        ("POST", "/_mget"),
    ],
)
def test_an_index_deleted_before_any_request_is_filled_again(
    feed: Feed, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    feed.insert(ORDERS, 1, 2)
    feed.follow()
    if path == "/_aliases":
        opensearch.request("POST", "/_aliases", {"actions": [{"remove": {"index": "public.orders@1", "alias": "public.orders"}}]})
    vanishing = Vanishing(monkeypatch, opensearch, "public.orders@1", method, path)
    feed.add(ORDERS, (Op.TRUNCATE, {}))
    feed.insert(ORDERS, 3)
    if path.startswith("/_"):
        feed.applied = None  # opened again
    feed.follow()
    assert vanishing.times == 1
    feed.holds()


def test_an_index_deleted_before_it_takes_a_column_is_looked_for_again(
    feed: Feed, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.insert(ORDERS, 1, 2)
    feed.follow()
    vanishing = Vanishing(monkeypatch, opensearch, "public.orders@1", "PUT", "/public.orders@1/_mapping")
    with pytest.raises(StoreError, match="index_not_found_exception") as failure:
        feed.sink.prepare(TopicSchema.of(WIDER))
    assert vanishing.times == 1
    assert failure.value.retryable
    feed.open_again()


@pytest.mark.parametrize("path", [r"/public.orders@1/_search", r"/public.orders@1/_mget"])
def test_an_index_deleted_while_it_is_read_is_not_taken_for_an_empty_one(
    feed: Feed, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """An audit would name every row as missing."""
    feed.insert(ORDERS, 1, 2)
    feed.follow()
    vanishing = Vanishing(monkeypatch, opensearch, "public.orders@1", "POST", path)
    keys = pa.RecordBatch.from_pydict({"id": pa.array(["1", "2"])})
    with pytest.raises(StoreError, match="index_not_found_exception") as failure:
        list(feed.sink.scan(TopicSchema.of(ORDERS))) if path.endswith("_search") else feed.sink.fetch(TopicSchema.of(ORDERS), keys)
    assert vanishing.times == 1
    assert failure.value.retryable


def test_a_ledger_deleted_while_it_is_made_is_made_again(
    feed: Feed, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = Vanishing(monkeypatch, opensearch, LEDGER, "POST", "/_aliases")
    feed.insert(ORDERS, 1)
    feed.follow()
    assert vanishing.times == 1
    feed.holds()


@pytest.mark.parametrize("close", [True, False])
def test_an_older_copy_is_brought_up_to_date(feed: Feed, shots: Shots, close: bool) -> None:
    feed.insert(ORDERS, 1, 2)
    feed.follow()
    older = feed.log.head
    shot = shots.take("public.orders@1")
    feed.add(ORDERS, (Op.DELETE, order(1)), (Op.UPDATE, order(2, "paid")), (Op.INSERT, order(3)))
    feed.insert(ITEMS, 1)
    feed.follow()
    shots.restore(shot, "public.orders@1", close=close)
    assert feed.reported() == older, "it goes on from what the copy holds"
    feed.catch_up()
    feed.holds(ORDERS, ITEMS)


@pytest.mark.parametrize("close", [True, False])
def test_a_copy_from_the_middle_of_a_batch_is_not_taken_for_whole(feed: Feed, shots: Shots, close: bool) -> None:
    """Taken and put back while rows come: the document that says how far is the very same, the rows are not."""
    feed.insert(ORDERS, 1)
    feed.follow()
    feed.insert(ORDERS, 2)
    feed.insert(ORDERS, 3)
    second, third = (next(feed.log.reader().read("public.orders", Position(p - 1), Position(p))) for p in (2, 3))
    feed.sink.apply(second)
    shot = shots.take("public.orders@1")
    feed.sink.apply(third)
    shots.restore(shot, "public.orders@1", close=close)
    feed.refuse_commit(reported=1)
    feed.open_again()


def test_a_copy_that_was_indexed_again_is_built_anew(feed: Feed, opensearch: OpenSearch) -> None:
    """It has every document, and the one that says how far; but it has lost the rows' versions."""
    feed.insert(ORDERS, 1, 2)
    feed.add(ORDERS, (Op.DELETE, order(1)))
    feed.follow()
    copy_index(opensearch, "public.orders@1", "saved")
    opensearch.request("DELETE", "/public.orders@1")
    copy_index(opensearch, "saved", "public.orders@1")
    opensearch.request("DELETE", "/saved")
    assert feed.reported() == ZERO_CUT
    feed.insert(ORDERS, 3)
    feed.catch_up()
    feed.holds()


def test_a_ledger_that_was_deleted_costs_nothing(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.insert(ITEMS, 1)
    feed.follow()
    opensearch.request("DELETE", f"/{LEDGER}")
    assert feed.reported() == feed.log.head
    feed.insert(ITEMS, 2)
    feed.catch_up()
    feed.holds(ORDERS, ITEMS)


def test_a_ledger_that_was_restored_older_costs_a_stretch(feed: Feed, shots: Shots) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    older = feed.log.head
    shot = shots.take(LEDGER)
    feed.insert(ORDERS, 2)
    feed.follow()
    shots.restore(shot, LEDGER)
    assert feed.reported() == older
    feed.insert(ORDERS, 3)
    feed.catch_up()
    feed.holds()


def test_everything_restored_older_is_brought_up_to_date(feed: Feed, shots: Shots) -> None:
    feed.insert(ORDERS, 1)
    feed.insert(ITEMS, 1)
    feed.follow()
    shot = shots.take(f"{LEDGER},public.orders@1,public.items@1")
    feed.add(ORDERS, (Op.DELETE, order(1)))
    feed.insert(ITEMS, 2)
    feed.follow()
    shots.restore(shot, f"{LEDGER},public.orders@1,public.items@1")
    feed.catch_up()
    feed.holds(ORDERS, ITEMS)


def test_an_emptied_cluster_is_filled_again(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    for index in opensearch.request("GET", "/_cat/indices?format=json&expand_wildcards=all"):
        opensearch.request("DELETE", f"/{index['index']}")
    assert feed.reported() == ZERO_CUT
    feed.catch_up()
    feed.holds()


def test_a_table_selected_later_is_not_whole_until_it_is_there(feed: Feed) -> None:
    feed.options["tables"] = ("public.orders",)
    feed.sink = feed.another()
    feed.insert(ITEMS, 1)
    feed.insert(ORDERS, 1)
    feed.applied = feed.sink.open(feed.log.reader(), 1)
    for changes in feed.log.reader().read("public.orders", Position(0), Position(2)):
        feed.sink.apply(changes)
    feed.sink.commit(feed.log.head)
    feed.options["tables"] = ("*",)
    feed.sink = feed.another()
    assert feed.sink.open(feed.log.reader(), 2) == ZERO_CUT
    assert feed.sink.held("public.orders") == 2, "these rows need not be brought again"
    assert feed.sink.held("public.items") == 0
    feed.applied, feed.epoch = None, 3
    feed.follow()
    feed.holds(ORDERS, ITEMS)


# -- what is passed over ----------------------------------------------------------------------------------------------


def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every request from now on."""
    made: list[str] = []
    real = Cluster.send

    def send(cluster: Cluster, method: str, path: str, *given: Any, **named: Any) -> Answer:
        made.append(f"{method} {path}")
        return real(cluster, method, path, *given, **named)

    monkeypatch.setattr(Cluster, "send", send)
    return made


def test_what_is_passed_over_costs_no_request(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index says so in the request of the commit, and costs one look when this process has not written it yet."""
    feed.insert(ORDERS, 1)
    feed.insert(ITEMS, 1)
    feed.follow()
    feed.insert(ORDERS, 2)
    made = requests(monkeypatch)
    feed.advance()
    usual = list(made)
    made.clear()
    feed.insert(ORDERS, 3)
    feed.pass_over(ITEMS)
    feed.advance()
    assert made == usual
    assert len(usual) == 2
    made.clear()
    feed.pass_over(ITEMS)
    feed.advance()
    assert made == ["POST /_bulk"]
    feed.holds(ORDERS, ITEMS)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_passed_over_counts_as_held_by_every_shard(opensearch: OpenSearch, shards: int) -> None:
    """Also by a process that has not written the index."""
    feed = Feed(opensearch, shards=shards)
    feed.insert(ORDERS, *range(20))
    feed.follow()
    feed.sink = feed.another()
    feed.applied = feed.sink.open(feed.log.reader(), 2)
    feed.pass_over(ORDERS)
    feed.advance()
    feed.holds()
    feed.close()


@pytest.mark.parametrize("how", ["deleted", "older", "moved"])
@pytest.mark.parametrize("known", [True, False])
def test_an_index_that_is_another_by_now_is_not_said_to_have_passed_anything(
    feed: Feed, opensearch: OpenSearch, shots: Shots, how: str, known: bool
) -> None:
    feed.insert(ORDERS, 1)
    feed.insert(ITEMS, 1)
    feed.follow()
    shot = shots.take("public.orders@1")
    feed.insert(ORDERS, 2)
    feed.follow()
    if not known:
        feed.sink = feed.another()
        feed.applied = feed.sink.open(feed.log.reader(), 2)
        feed.epoch = 3
    if how == "deleted":
        opensearch.request("DELETE", "/public.orders@1")
    else:
        shots.restore(shot, "public.orders@1", close=how == "moved")
    feed.pass_over(ORDERS)
    feed.insert(ITEMS, 2)
    with suppress(StoreError):
        feed.advance()
    assert feed.reported().position <= (0 if how == "deleted" else 2)
    feed.open_again(ORDERS, ITEMS)


def test_a_commit_that_passes_changes_over_and_is_not_answered(opensearch: OpenSearch) -> None:
    proxy = LossyProxy(opensearch.port)
    feed = Feed(opensearch)
    feed.insert(ORDERS, 1)
    feed.url = f"http://127.0.0.1:{proxy.port}"
    feed.sink = feed.another()
    feed.follow()
    proxy.lose_answers = True
    feed.pass_over(ORDERS)
    with pytest.raises(StoreError):
        feed.sink.commit(feed.log.head)
    proxy.lose_answers = False
    feed.sink.commit(feed.log.head)
    feed.holds()
    feed.insert(ORDERS, 2)
    feed.catch_up()
    feed.holds()
    feed.close()
    proxy.close()


def test_rows_that_were_not_taken_are_not_passed_over(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": True})
    with pytest.raises(StoreError, match="index write"):
        feed.write_uncommitted(2)
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": None})
    feed.refuse_commit(reported=1)
    feed.open_again()


# -- who writes --------------------------------------------------------------------------------------------------------


def test_another_service_of_the_same_name_is_refused_and_disturbs_nobody(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    other = Feed(opensearch)
    other.insert(ITEMS, 1)
    for epoch in (1, 99, None):
        with pytest.raises(Stopped, match="fed by another log") as refused:
            other.sink.open(other.log.reader(), epoch)
        assert refused.value.state is StopState.OTHER_LOG
    opensearch.request("DELETE", f"/{LEDGER}")
    with pytest.raises(Stopped, match="fed by another log"):
        other.sink.open(other.log.reader(), 1)
    feed.insert(ORDERS, 2)
    feed.catch_up()
    feed.holds()
    other.close()


def test_a_later_writer_is_named_to_the_earlier_one(feed: Feed) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    later = feed.another()
    later.open(feed.log.reader(), 7)
    feed.insert(ORDERS, 2)
    with pytest.raises(StoreError) as failure:
        feed.advance()
    assert failure.value.retryable
    with pytest.raises(EpochPassed) as passed:
        feed.sink.open(feed.log.reader(), 1)
    assert passed.value.seen == 7
    with pytest.raises(StoreError, match="not open for writing"):
        feed.sink.commit(feed.log.head)
    feed.epoch = 8
    feed.open_again()


def test_a_late_writer_does_not_take_away_the_index_that_another_has_built(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come to a change of a field's type; one of them sleeps before the index that it takes for its own, unfinished one."""
    narrow = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", INT4, -1, "int4")))
    feed.add(narrow, (Op.INSERT, {**order(1), "more": "1"}))
    feed.follow()
    late, now = feed.another(), feed.another()
    late.open(feed.log.reader(), 2)
    position = feed.writer.next_position
    change = schema(WIDER, position)
    feed.writer.append(change)
    feed.writer.commit(Lsn(feed.writer.head.commit_lsn + 10), 0)
    real, built = Tables.building, []

    def building(tables: Tables, *given: Any) -> Any:
        if not built:
            built.append(now)
            now.open(feed.log.reader(), 3)
            now.apply(change)
            now.commit(feed.log.head)
        return real(tables, *given)

    monkeypatch.setattr(Tables, "building", building)
    with pytest.raises(StoreError) as refused:
        late.apply(change)
    assert refused.value.retryable
    assert built
    assert feed.reported() == now.applied() == feed.log.head
    now.make_visible()
    assert [row["more"] for part in now.scan(TopicSchema.of(WIDER)) for row in part.to_pylist()] == ["1"]


def test_an_index_that_was_built_and_not_put_in_place_is_built_again(feed: Feed) -> None:
    narrow = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("more", INT4, -1, "int4")))
    feed.add(narrow, (Op.INSERT, {**order(1), "more": "1"}))
    feed.follow()
    feed.writer.append(schema(WIDER, feed.writer.next_position))
    feed.writer.commit(Lsn(feed.writer.head.commit_lsn + 10), 0)
    with armed("search.schema.rebuilt=error"), pytest.raises(OSError, match=r"search\.schema\.rebuilt"):
        feed.advance()
    feed.sink, feed.applied, feed.epoch = feed.another(), None, 2
    feed.follow()
    assert feed.reported() == feed.log.head
    feed.sink.make_visible()
    assert [row["more"] for part in feed.sink.scan(TopicSchema.of(WIDER)) for row in part.to_pylist()] == ["1"]


def test_a_history_that_the_log_left_is_not_believed(feed: Feed) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    kept = (list(feed.log.cuts), list(feed.log.batches))
    feed.insert(ORDERS, 2)
    feed.follow()
    feed.log.cuts, feed.log.batches = kept  # restored from an older copy, and the stream begun again
    feed.writer.begin_history()
    feed.writer.rollback()
    with pytest.raises(Stopped) as stopped:
        feed.another().open(feed.log.reader(), 2)
    assert stopped.value.state is StopState.DIVERGED
    feed.sink = feed.another()
    feed.sink.erase()
    feed.rows["public.orders"].pop(json.dumps(["2"]))
    feed.insert(ORDERS, 9)
    feed.open_again()


def test_rows_of_a_history_that_the_log_left_count_though_no_commit_came(feed: Feed) -> None:
    """The cut is one that both histories have; rows beyond it were written, and would beat the new history's for ever."""
    feed.insert(ORDERS, 1)
    feed.follow()
    kept = (list(feed.log.cuts), list(feed.log.batches))
    feed.write_uncommitted(2)
    feed.log.cuts, feed.log.batches = kept
    feed.writer.begin_history()
    feed.writer.rollback()
    with pytest.raises(Stopped) as stopped:
        feed.another().open(feed.log.reader(), 2)
    assert stopped.value.state is StopState.DIVERGED


def test_erase_removes_what_the_name_made_and_nothing_else(feed: Feed, opensearch: OpenSearch) -> None:
    opensearch.request("PUT", "/mine@1")
    other = Feed(opensearch, index="other.{schema}.{table}")
    other.sink = other.another("other")
    other.insert(ORDERS, 1)
    other.follow()
    feed.insert(ORDERS, 1)
    feed.insert(ITEMS, 1)
    feed.follow()
    opensearch.request("PUT", "/public.items@1/_mapping", {"properties": {"note": {"type": "text"}}})  # and with it goes its _meta
    opensearch.request("POST", "/public.orders@1/_close")
    for _ in range(2):
        feed.another().erase()
    left = {index["index"] for index in opensearch.request("GET", "/_cat/indices?format=json&expand_wildcards=all")}
    assert left == {"mine@1", "other.public.orders@1", ".headwater-other", ".headwater-other@dead"}
    other.close()


# -- operators who err ---------------------------------------------------------------------------------------------------


def test_a_copy_under_another_name_takes_neither_rows_nor_searches(feed: Feed, opensearch: OpenSearch, shots: Shots) -> None:
    """Restored beside the index it brings all aliases with it: nothing can be written through two, and searches find rows twice."""
    feed.insert(ORDERS, 1)
    feed.follow()
    shot = shots.take("public.orders@1")
    shots.restore(shot, "public.orders@1", rename_pattern="(.+)", rename_replacement="restored_$1")
    feed.insert(ORDERS, 2)
    feed.follow()
    feed.insert(ORDERS, 3)
    feed.catch_up()
    feed.holds()
    assert list(opensearch.request("GET", "/_alias/public.orders")) == ["public.orders@1"]
    assert opensearch.request("GET", "/.headwater-search@dead/_count")["count"] == 0
    names = {index["index"] for index in opensearch.request("GET", "/_cat/indices?format=json&expand_wildcards=all")}
    assert "restored_public.orders@1" in names, "what an operator has put there stays"


def test_an_alias_that_lost_its_filter_is_put_right(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1, 2)
    feed.add(ORDERS, (Op.DELETE, order(1)))
    feed.follow()
    opensearch.request("POST", "/_aliases", {"actions": [{"add": {"index": "public.orders@1", "alias": "public.orders"}}]})
    feed.catch_up()
    feed.sink.make_visible()
    assert opensearch.request("GET", "/public.orders/_count")["count"] == 1


def test_an_alias_that_was_removed_comes_back(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    opensearch.request("POST", "/_aliases", {"actions": [{"remove": {"index": "public.orders@1", "alias": "public.orders"}}]})
    feed.catch_up()
    assert list(opensearch.request("GET", "/_alias/public.orders")) == ["public.orders@1"]
    feed.holds()


def test_indices_of_two_stores_put_in_each_others_place_are_refused(feed: Feed, opensearch: OpenSearch, shots: Shots) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    other = feed.another("other", index="other.{table}")
    other.open(feed.log.reader(), 1)
    for changes in feed.log.reader().read("public.orders", Position(0), Position(1)):
        other.apply(changes)
    other.commit(feed.log.head)
    shot = shots.take("other.orders@1")
    opensearch.request("DELETE", "/public.orders@1")
    pattern = {"rename_pattern": "other.orders@1", "rename_replacement": "public.orders@1", "include_aliases": False}
    shots.restore(shot, "other.orders@1", **pattern)
    assert feed.reported() == ZERO_CUT
    with pytest.raises(StoreError, match="belongs to store other") as refused:
        feed.catch_up()
    assert not refused.value.retryable
    assert other.applied() == feed.log.head


def test_a_block_holds_up_and_loses_nothing(feed: Feed, opensearch: OpenSearch) -> None:
    feed.insert(ORDERS, 1)
    feed.follow()
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": True})
    feed.insert(ORDERS, 2)
    with pytest.raises(StoreError, match="index write") as failure:
        feed.catch_up()
    assert failure.value.retryable
    assert feed.reported().position == 1
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": None})
    feed.catch_up()
    feed.holds()


def test_a_node_that_restarts_between_rows_and_commit_is_written_again(feed: Feed, opensearch: OpenSearch) -> None:
    """It may have lost the end of its translog (index.translog.durability: async)."""
    feed.insert(ORDERS, 1)
    feed.follow()
    feed.write_uncommitted(2)
    opensearch.crash()
    opensearch.start()
    feed.refuse_commit(reported=1)
    feed.open_again()


# -- several shards ----------------------------------------------------------------------------------------------------


def test_each_shard_says_for_itself_how_far_it_is(opensearch: OpenSearch) -> None:
    """A snapshot is of one moment within a shard, not across them; and a shard can be lost alone."""
    feed = Feed(opensearch, shards=3)
    feed.insert(ORDERS, *range(30))
    feed.follow()
    feed.holds()
    opensearch.request("POST", "/public.orders@1/_refresh")
    documents = [
        opensearch.request("GET", f"/public.orders@1/_search?preference=_shards:{shard}&size=100")["hits"]["hits"]
        for shard in range(3)
    ]
    said = [[hit for hit in hits if "%standing" in hit["_source"]] for hits in documents]
    assert [len(hits) for hits in said] == [1, 1, 1]
    opensearch.request("DELETE", f"/public.orders@1/_doc/{said[1][0]['_id'].replace(chr(92), '%5C').replace('@', '%40')}")
    assert feed.reported() == ZERO_CUT
    feed.catch_up()
    feed.holds()
    feed.close()


# -- at random moments -------------------------------------------------------------------------------------------------


class Mishaps:
    """What operators and machines do to a cluster, at any moment."""

    def __init__(self, feed: Feed, shots: Shots, proxy: LossyProxy, chance: random.Random) -> None:
        self.feed = feed
        self.server = feed.server
        self.shots = shots
        self.proxy = proxy
        self.chance = chance
        self.taken: list[tuple[str, str]] = []
        self.left = 0
        """So many more may happen in this step."""

    def maybe(self) -> None:
        self.proxy.lose_answers = False
        if self.left and self.chance.random() < 0.4:
            self.left -= 1
            # What an operator asks for may be refused: the index is not there.
            with suppress(ValueError):
                self.chance.choice(
                    (
                        self.delete,
                        self.shoot,
                        self.shoot,
                        self.restore,
                        self.restore,
                        self.save,
                        self.put_back,
                        self.lose,
                        self.unalias,
                        self.move,
                    )
                )()

    def delete(self) -> None:
        self.server.request("DELETE", f"/{self._one()}")

    def shoot(self) -> None:
        index = self._one()
        self.taken.append((self.shots.take(index), index))

    def restore(self) -> None:
        if self.taken:
            self.shots.restore(*self.chance.choice(self.taken), close=self.chance.random() < 0.5)

    def save(self) -> None:
        self.forget_saved()
        self.source = self._one()
        copy_index(self.server, self.source, "saved")

    def put_back(self) -> None:
        if self._there("saved"):
            with suppress(ValueError):
                self.server.request("DELETE", f"/{self.source}")
            copy_index(self.server, "saved", self.source)
            self.forget_saved()

    def lose(self) -> None:
        """The next answer is lost."""
        self.proxy.lose_answers = True

    def unalias(self) -> None:
        actions = [{"remove": {"index": "public.orders@1", "alias": self.chance.choice(("public.orders", "public.orders@1.w*"))}}]
        self.server.request("POST", "/_aliases", {"actions": actions})

    def move(self) -> None:
        """A copy of an index as it is takes its place: nothing is lost but its primary."""
        index = self._one()
        self.shots.restore(self.shots.take(index), index, close=True)

    def forget_saved(self) -> None:
        if self._there("saved"):
            self.server.request("DELETE", "/saved")

    def _one(self) -> str:
        return self.chance.choice(("public.orders@1", "public.items@1", LEDGER))

    def _there(self, index: str) -> bool:
        return any(one["index"] == index for one in self.server.request("GET", "/_cat/indices?format=json&expand_wildcards=all"))


@pytest.mark.parametrize("shards", [1, 2])
def test_whatever_happens_to_a_store_it_is_made_whole_and_says_nothing_else(
    opensearch: OpenSearch, shots: Shots, seed: int, shards: int
) -> None:
    chance = random.Random(seed)
    proxy = LossyProxy(opensearch.port)
    feed = Feed(opensearch, purge_after_s=chance.choice((0, 1e9)), shards=shards)
    feed.url = f"http://127.0.0.1:{proxy.port}"
    feed.sink = feed.another()
    mishaps = Mishaps(feed, shots, proxy, chance)
    feed.between = mishaps.maybe
    for step in range(10):
        _traffic(feed, chance, step)
        mishaps.left = chance.randint(0, 3)
        with suppress(StoreError):
            feed.catch_up()
        proxy.lose_answers = False
        with suppress(StoreError):
            reported = feed.reported()
            feed.sink.make_visible()
            feed.is_whole_to(reported, ORDERS, ITEMS)
    mishaps.left = 0
    mishaps.forget_saved()
    feed.catch_up()
    feed.holds(ORDERS, ITEMS)
    feed.close()
    proxy.close()


def _traffic(feed: Feed, chance: random.Random, step: int) -> None:
    for table in (ORDERS, ITEMS):
        changes: list[tuple[Op, Row]] = []
        for number in range(chance.randint(0, 6)):
            op = chance.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE))
            changes.append((op, order(chance.randrange(12), note=f"{step}.{number}")))
        if chance.random() < 0.1:
            changes = [(Op.TRUNCATE, {})]
        if chance.random() < 0.2:
            feed.pass_over(table)
        feed.add(table, *changes)
