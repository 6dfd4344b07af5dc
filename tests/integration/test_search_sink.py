"""What only the real OpenSearch shows: dead letters, the fence before a purge, what users see through the alias."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.errors import ConfigError, StoreError
from cdc.follow import apply as applying
from cdc.follow.rules import Rules
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import Op
from cdc.model.pgtypes import INT4, INT8
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.replay.rows import SLICES
from sinks import make_sink, options_model
from sinks.contract import Outcome
from sinks.deadletters import box_of
from sinks.heldlog import HeldLog
from sinks.search import bulk
from sinks.search.sink import Options, SearchSink
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, batch, order, schema, upserts
from tests.integration.spark.traffic import Traffic
from tests.logs import LooseLog

CANARY = "canary-value"


def cut(position: int) -> Cut:
    return Cut(Position(position), Lsn(position), 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Logged(SearchSink):
    """What it is fed stands in the log first, as in the product."""

    log = LooseLog()

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        self.log.put(changes)
        return super().apply(changes)

    def commit(self, cut: Cut) -> None:
        self.log.reach(cut)
        super().commit(cut)


@pytest.fixture
def opened(opensearch: OpenSearch, clock: Clock) -> Iterator[Any]:
    made: list[SearchSink] = []
    log = LooseLog()

    def make(name: str = "search", **options: Any) -> SearchSink:
        sink = Logged(name, Options.model_validate({"kind": "opensearch", "url": opensearch.url, **options}), clock)
        made.append(sink)
        sink.log = log
        sink.open(log.reader(), 1)
        sink.prepare(TopicSchema.of(ORDERS))
        return sink

    yield make
    for sink in made:
        sink.close()


def count(server: OpenSearch, index: str) -> int:
    server.request("POST", f"/{index}/_refresh")
    return int(server.request("GET", f"/{index}/_count")["count"])


def stored(server: OpenSearch, index: str) -> int:
    """Documents of rows, deleted ones among them; not what the index says of itself."""
    server.request("POST", f"/{index}/_refresh")
    return int(server.request("POST", f"/{index}/_count", {"query": {"exists": {"field": "_cdc_position"}}})["count"])


def test_users_see_living_rows_only(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    sink.apply(upserts(ORDERS, 1, [order(1, note="a paid flight"), order(2)]))
    sink.apply(batch(ORDERS, [(Op.DELETE, 3, order(2))]))
    sink.commit(cut(3))
    sink.make_visible()
    assert count(opensearch, "public.orders") == 1
    assert count(opensearch, "public.*") == 1, "a pattern must not reach around the alias"
    found = opensearch.request("POST", "/public.orders/_search", {"query": {"match": {"note": "flight"}}})["hits"]["hits"]
    assert [hit["_id"] for hit in found] == ["1"]
    for query in (
        {"range": {"amount": {"gt": 1.0}}},
        {"range": {"created_at": {"gte": "2013-01-01"}}},
        {"term": {"status.keyword": "new"}},
    ):
        assert opensearch.request("POST", "/public.orders/_search", {"query": query})["hits"]["total"]["value"] == 1


def test_only_the_stores_own_indices_are_refreshed_for_who_waits(opensearch: OpenSearch, opened: Any) -> None:
    never = {"index": {"refresh_interval": "-1"}}
    opensearch.request("PUT", "/somebodys@1", {"settings": never})
    opensearch.request("PUT", "/somebodys@1/_doc/1", {"any": "thing"})
    sink, other = opened(refresh_interval="-1"), opened("other", index="other.{schema}.{table}", refresh_interval="-1")
    for one in (sink, other):
        one.apply(upserts(ORDERS, 1, [order(1)]))
        one.commit(cut(1))
    sink.make_visible()

    def found(index: str) -> int:
        return int(opensearch.request("GET", f"/{index}/_count")["count"])

    assert found("public.orders") == 1
    assert (found("other.public.orders"), found("somebodys@1")) == (0, 0)


def test_somebody_elses_index_that_cannot_be_read_stands_in_nobodys_way(opensearch: OpenSearch, opened: Any) -> None:
    opensearch.request("PUT", "/somebodys@1", {"settings": {"index": {"number_of_shards": 2}}})
    opensearch.request("POST", "/somebodys@1/_close")
    sink = opened()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    sink.make_visible()
    assert sink.applied() == cut(1)
    assert count(opensearch, "public.orders") == 1
    sink.erase()
    assert "somebodys@1" in opensearch.request("GET", "/_all?expand_wildcards=all")


def test_deleted_rows_are_purged_after_their_time(opensearch: OpenSearch, opened: Any, clock: Clock) -> None:
    sink = opened(purge_after_s=60)
    sink.apply(upserts(ORDERS, 1, [order(1), order(2)]))
    sink.apply(batch(ORDERS, [(Op.DELETE, 3, order(1))]))
    sink.commit(cut(4))
    clock.now = 59
    sink.commit(cut(5))
    assert stored(opensearch, "public.orders@1") == 2
    clock.now = 61
    sink.commit(cut(6))
    assert stored(opensearch, "public.orders@1") == 1


def test_a_sleeper_meets_the_fence(opensearch: OpenSearch, opened: Any, clock: Clock) -> None:
    sleeper, sink = opened(), opened()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.apply(batch(ORDERS, [(Op.DELETE, 2, order(1))]))
    sink.commit(cut(3))
    clock.now = 1000
    sink.commit(cut(4))
    assert stored(opensearch, "public.orders@1") == 0
    opensearch.restart()  # and with it goes what the server itself remembers of the delete
    late = upserts(ORDERS, 1, [order(1)])
    assert sleeper.apply(late) == Outcome(0, stale=1)
    assert sleeper.apply(upserts(ORDERS, 5, [order(5)])) == Outcome(1), "what is new passes"
    assert stored(opensearch, "public.orders@1") == 1


def test_a_row_that_no_field_can_hold_is_a_dead_letter(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    # Somebody has made the field narrower than the column: the documents of two rows are refused, the others pass.
    opensearch.request("PUT", "/public.orders@1/_mapping", {"properties": {"rank": {"type": "byte"}}})
    table = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("rank", INT4)))
    rows = [order(i, CANARY, rank=str(1000 if i in (3, 7) else i)) for i in range(40)]
    outcome = sink.apply(upserts(table, 1, rows))
    assert (outcome.written, outcome.stale) == (38, 0)
    assert [(letter.table, letter.position) for letter in outcome.dead] == [("public.orders", 4), ("public.orders", 8)]
    assert all("rank" in letter.reason and CANARY not in letter.reason and "1000" not in letter.reason for letter in outcome.dead)
    assert count(opensearch, ".headwater-search@dead") == 2
    sink.apply(upserts(table, 1, rows))
    assert count(opensearch, ".headwater-search@dead") == 2, "a replay adds none"


def test_a_store_that_refuses_too_much_stops(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    opensearch.request("PUT", "/public.orders@1/_mapping", {"properties": {"rank": {"type": "byte"}}})
    table = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("rank", INT4)))
    with pytest.raises(StoreError, match="refuses 40 of 40") as failure:
        sink.apply(upserts(table, 1, [order(i, CANARY, rank="1000") for i in range(40)]))
    assert not failure.value.retryable
    assert CANARY not in failure.value.line()


def test_a_column_with_a_new_type_is_refused_by_name(opened: Any) -> None:
    sink = opened()
    columns = tuple(Column("status", INT8) if column.name == "status" else column for column in ORDERS.columns)
    with pytest.raises(StoreError, match="new type for status"):
        sink.prepare(TopicSchema.of(dataclasses.replace(ORDERS, columns=columns)))


def test_nothing_is_created_by_writing(opensearch: OpenSearch, opened: Any) -> None:
    """The index is deleted under our feet: it comes back with its strict mapping, not with one that was guessed."""
    sink = opened()
    opensearch.request("DELETE", "/public.orders@1")
    assert sink.apply(upserts(ORDERS, 1, [order(1)])) == Outcome(1)
    mappings = opensearch.request("GET", "/public.orders/_mapping")["public.orders@1"]["mappings"]
    assert mappings["dynamic"] == "strict"
    assert mappings["properties"]["amount"]["type"] == "double"


def test_somebody_elses_index_is_left_alone(opensearch: OpenSearch, opened: Any) -> None:
    opensearch.request("PUT", "/mine.orders")
    with pytest.raises(StoreError, match=r"mine\.orders exists and is not ours"):
        opened(index="mine.{table}")


def test_no_table_shares_documents_with_another_whatever_it_is_called(opensearch: OpenSearch, opened: Any) -> None:
    """A name that needs a hash has a public one: a table that is really called like the result stays away from it all the same."""
    sink = opened()
    odd = dataclasses.replace(ORDERS, oid=1, name="Orders")
    forged = dataclasses.replace(ORDERS, oid=2, name=alias_of(opensearch, sink, odd).removeprefix("public."))
    for table in (odd, forged):
        sink.prepare(TopicSchema.of(table))
        assert sink.apply(upserts(table, 10 + table.oid, [order(1, table.name)])) == Outcome(1)
    assert sink.apply(batch(forged, [(Op.TRUNCATE, 20, {})])) == Outcome(1)
    sink.make_visible()
    held = [[row for part in sink.scan(TopicSchema.of(table)) for row in part.to_pylist()] for table in (odd, forged)]
    assert held == [[order(1, "Orders")], []]


def alias_of(server: OpenSearch, sink: SearchSink, table: Table) -> str:
    before = set(server.request("GET", "/_alias?expand_wildcards=all"))
    sink.prepare(TopicSchema.of(table))
    (index,) = set(server.request("GET", "/_alias?expand_wildcards=all")) - before
    return str(index).partition("@")[0]


@pytest.mark.parametrize("template", ["{table}", "all", "{schema}_{table}"])
def test_an_index_that_two_tables_would_share_is_refused_by_name(opened: Any, template: str) -> None:
    sink = opened(index=template)
    other = dataclasses.replace(ORDERS, oid=7, schema="public_orders" if template == "{schema}_{table}" else "archive")
    mine = ORDERS
    if template == "{schema}_{table}":
        mine, other = dataclasses.replace(ORDERS, name="orders_x"), dataclasses.replace(other, name="x")
    sink.foresee([TopicSchema.of(ORDERS)])
    with pytest.raises(
        ConfigError, match=f"{mine.qualified} and {other.qualified}|{other.qualified} and {mine.qualified}"
    ) as foreseen:
        sink.foresee([TopicSchema.of(mine), TopicSchema.of(other)])
    assert "{schema}.{table}" in str(foreseen.value.hint)
    sink.prepare(TopicSchema.of(mine))
    assert sink.apply(upserts(mine, 1, [order(1)])) == Outcome(1)
    with pytest.raises(StoreError, match=f"holds {mine.qualified}, not {other.qualified}") as refused:
        sink.prepare(TopicSchema.of(other))
    assert not refused.value.retryable
    assert "{schema}.{table}" in str(refused.value.hint)


def test_the_index_of_another_store_is_refused(opened: Any) -> None:
    opened("first")
    with pytest.raises(StoreError, match=r"public\.orders@1 belongs to store first") as refused:
        opened("second")
    assert not refused.value.retryable
    assert "index = " in str(refused.value.hint)


def test_an_emptied_store_says_so(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    sink.commit(cut(9))
    for index in opensearch.request("GET", "/_cat/indices?format=json&expand_wildcards=all"):
        opensearch.request("DELETE", f"/{index['index']}")
    assert sink.open(sink.log.reader(), 1) == ZERO_CUT


def test_an_index_that_somebody_closed_is_waited_for(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    opensearch.request("POST", "/public.orders@1/_close")
    with pytest.raises(StoreError, match="index_closed_exception") as failure:
        sink.apply(upserts(ORDERS, 1, [order(1)]))
    assert failure.value.retryable
    opensearch.request("POST", "/public.orders@1/_open?wait_for_active_shards=1")
    assert sink.apply(upserts(ORDERS, 1, [order(1)])) == Outcome(1)


@pytest.fixture
def settings(opensearch: OpenSearch) -> Iterator[Any]:
    """Sets settings of the cluster, and takes them back after the test."""
    made: list[str] = []

    def change(name: str, value: Any) -> None:
        made.append(name)
        opensearch.request("PUT", "/_cluster/settings", {"persistent": {name: value}})

    yield change
    opensearch.request("PUT", "/_cluster/settings", {"persistent": dict.fromkeys(made)})


@pytest.mark.parametrize(
    ("setting", "value", "shown", "helps"),
    [
        ("cluster.max_shards_per_node", 1, r"\[\d+\]/\[1\] maximum \w+ shards open", '"cluster.max_shards_per_node"'),
        ("cluster.blocks.create_index", True, "cluster create-index blocked", '"cluster.blocks.create_index": null'),
        ("cluster.blocks.read_only", True, "cluster read-only", '"cluster.blocks.read_only": null'),
    ],
)
def test_why_the_cluster_makes_no_index_is_shown(
    opened: Any, settings: Any, setting: str, value: object, shown: str, helps: str
) -> None:
    sink = opened()
    settings(setting, value)
    with pytest.raises(StoreError, match=shown) as failure:
        sink.prepare(TopicSchema.of(PAIRS))
    assert failure.value.retryable, "an operator ends it at the cluster"
    assert helps in str(failure.value.hint)


def test_why_the_cluster_takes_no_rows_is_shown(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": True})
    with pytest.raises(StoreError, match=r"index \[public.orders@1\] blocked by: \[FORBIDDEN/8/index write") as failure:
        sink.apply(upserts(ORDERS, 1, [order(1, CANARY)]))
    assert failure.value.retryable
    assert 'PUT /public.orders@1/_settings {"index.blocks.write": null}' in str(failure.value.hint)


def test_an_index_at_the_flood_stage_is_told_at_once(opensearch: OpenSearch, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster answers 429, as when it is busy; but it stays so until there is space, so nothing is sent again and again."""
    sink = opened()
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.read_only_allow_delete": True})
    monkeypatch.setattr(bulk, "backoff_s", lambda *_: pytest.fail("it was taken for busy"))
    with pytest.raises(StoreError, match="cluster_block_exception") as failure:
        sink.apply(upserts(ORDERS, 1, [order(1)]))
    assert failure.value.retryable
    assert "flood stage" in str(failure.value.hint)
    opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.read_only_allow_delete": None})
    assert sink.apply(upserts(ORDERS, 1, [order(1)])) == Outcome(1)


def test_a_large_batch_goes_out_in_several_requests(opened: Any) -> None:
    sink = opened(request_bytes=20_000)
    rows = [order(i) for i in range(1000)]
    assert sink.apply(upserts(ORDERS, 1, rows)) == Outcome(1000)
    assert sink.apply(upserts(ORDERS, 1, rows)) == Outcome(0, stale=1000)
    sink.make_visible()
    assert pa.Table.from_batches(sink.scan(TopicSchema.of(ORDERS))).num_rows == 1000


def test_what_users_find_after_columns_went_and_were_renamed(opensearch: OpenSearch, opened: Any) -> None:
    sink = opened()
    sink.apply(schema(NUMBERED, 1))
    sink.apply(upserts(NUMBERED, 2, [order(key, "new", note="secret") for key in range(3000)]))  # more than a page
    names = {"status": "state"}
    kept = [dataclasses.replace(c, name=names.get(c.name, c.name)) for c in NUMBERED.columns if c.name != "note"]
    new = dataclasses.replace(NUMBERED, columns=tuple(kept))
    sink.apply(schema(new, 4000))
    sink.commit(cut(4000))
    sink.make_visible()
    assert sum(batch.num_rows for batch in sink.scan(TopicSchema.of(new))) == 3000
    found = opensearch.request("POST", "/public.orders/_search", {"size": 1, "query": {"match": {"state": "new"}}})["hits"]["hits"]
    assert set(found[0]["_source"]) == set(new.names)
    assert count(opensearch, "public.orders") == 3000


def test_a_field_that_changes_its_type_takes_a_new_index_behind_the_same_alias(opensearch: OpenSearch, opened: Any) -> None:
    zombie, sink = opened(), opened()
    sink.apply(schema(NUMBERED, 1))
    sink.apply(upserts(NUMBERED, 2, [order(1), order(2)]))
    zombie.prepare(TopicSchema.of(NUMBERED))
    names = {"customer_id": "note", "note": "customer_id"}
    new = dataclasses.replace(
        NUMBERED, columns=tuple(dataclasses.replace(c, name=names.get(c.name, c.name)) for c in NUMBERED.columns)
    )
    sink.apply(schema(new, 4))
    assert zombie.apply(upserts(NUMBERED, 2, [order(1, "late")])) == Outcome(0, stale=1)
    assert list(opensearch.request("GET", "/_alias/public.orders")) == ["public.orders@2"]
    sink.make_visible()
    found = opensearch.request("POST", "/public.orders/_search", {"query": {"term": {"note": 7}}})["hits"]["hits"]
    assert len(found) == 2
    sink.commit(cut(4))
    sink.apply(batch(new, [(Op.DELETE, 5, order(2))]))
    sink.commit(cut(5))
    sink.make_visible()
    assert count(opensearch, "public.orders") == 1


@pytest.mark.parametrize("size_mb", [45, 80])
def test_a_row_larger_than_the_cluster_can_take_does_not_hold_up_the_others(opened: Any, size_mb: int) -> None:
    sink = opened()
    outcome = sink.apply(upserts(ORDERS, 1, [order(1), order(2, note="x" * (size_mb << 20)), order(3)]))
    # A part that a busy node turned away may have been written all the same, and is then stale when it is sent again.
    assert (outcome.written + outcome.stale, [letter.position for letter in outcome.dead]) == (2, [2])
    assert "larger than" in outcome.dead[0].reason


def test_two_workers_leave_the_letters_that_one_writer_would(opensearch: OpenSearch, tmp_path: Path, seed: int) -> None:
    """Each takes a piece of the range, the later one first, and knows nothing of what the other sets aside."""
    said = {"mapping": {"customer_id": {"type": "integer", "ignore_malformed": False}}, "computed": {"share": "100 / customer_id"}}
    given = {"kind": "opensearch", "url": opensearch.url, "workers_from_rows": 1, "tables": {"public.orders": said}}
    options = options_model("opensearch").model_validate(given)
    refused, divided = str(2**40), "0"
    customers = [[refused, divided, refused, divided, "7", "7", "7"], ["7", "7", refused, divided, refused, divided, "7"]]
    traffic = Traffic(tmp_path / "log", seed)
    for piece, found in enumerate(customers):
        rows = [(Op.UPDATE, 7 * piece + key, order(key, customer_id=one)) for key, one in enumerate(found, 1)]
        cut = traffic.append(batch(ORDERS, rows), 10 * piece + 10)
    with closing(HeldLog(EmbeddedLogReader(traffic.folder), "search", options)) as log:
        store = make_sink("search", options)
        store.open(log, 1)
        log.settle(store)
        store.prepare(log.held(TopicSchema.of(ORDERS)))
        for after in (7, 0):
            applying._WORKERS.clear()
            part = pa.RecordBatch.from_pylist([{"topic": "public.orders", "after": after, "upto": after + 7, "rows": 7}], SLICES)
            work = applying.on_workers(Rules("search", options), applying.StoreWriter(traffic.folder, 1, 1))
            applying.outcome_of(pa.Table.from_batches(work(iter([part]))))
        applying._WORKERS.clear()
        store.commit(cut)
        letters = {(one.key, int(one.position), one.failed) for one in box_of(store).letters()}  # type: ignore[union-attr]
        store.close()
    traffic.close()
    assert letters == {("3", 10, False), ("4", 11, True), ("5", 12, False), ("6", 13, True)}
    opensearch.request("POST", "/public.orders/_refresh")
    hits = opensearch.request("GET", "/public.orders/_search")["hits"]["hits"]
    assert sorted(hit["_id"] for hit in hits) == ["1", "2", "7"]
