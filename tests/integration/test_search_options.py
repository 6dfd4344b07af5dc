"""``settings``, ``mapping`` and ``geo`` on a real OpenSearch: what searches find, and what becomes of a store when they change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import KILLED
from cdc.errors import ConfigError, StoreError
from cdc.model.batch import Op
from cdc.model.outline import Items, ObjectOutline, Outline, outline_text
from cdc.model.structure import ScalarType
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.contract import Outcome, audit_schema
from sinks.heldlog import HeldLog
from tests.contract.labs import LABS, Lab
from tests.contract.rows import Row, batch, schema, upserts
from tests.faults.points import killed
from tests.logs import cut
from tests.unit.sinks.test_search_options import BERLIN, PLACES, WHERE

pytestmark = pytest.mark.opensearch

ANALYSIS = {
    "analysis": {"analyzer": {"folded": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "asciifolding"]}}}
}
BERLIN_BOX = {"top_left": {"lat": 53, "lon": 13}, "bottom_right": {"lat": 52, "lon": 14}}


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["opensearch"](request.getfixturevalue)
    yield made
    made.close()


class Index:
    """One store of the lab, opened as its follower opens it."""

    def __init__(self, lab: Lab, store: dict[str, Any] | None = None, **said: Any) -> None:
        self._lab = lab
        given = {"tables": {"public.places": said}, **(store or {})}
        self.sink = lab.sink(**given)
        options = options_model("opensearch").model_validate({"kind": "opensearch", **lab._options, **given})
        self.log = HeldLog(lab.log.reader(), lab.name, options)
        lab.epoch += 1
        self.sink.open(self.log, lab.epoch)
        self.log.settle(self.sink)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        self._lab.log.put(changes)
        return self.sink.apply(self.log.holding("public.places").batch(changes))

    def feed(self, changes: pa.RecordBatch, position: int, table: Any = PLACES) -> None:
        if self.sink.shape("public.places") is None:
            self.sink.prepare(self.log.held(TopicSchema.of(table)))
        outcome = self.apply(changes)
        assert not outcome.dead, outcome.dead
        self._lab.log.reach(cut(position))
        self.sink.commit(cut(position))

    def expect(self, rows: list[Row], table: Any = PLACES) -> None:
        """The store's rows are the source's, as the audit compares them."""
        source = TopicSchema.of(table)
        held = self.log.held(source)
        whole = [{name: row.get(name) for name in source.names} for row in rows]
        texts = self.log.holding(held.topic).rows(pa.RecordBatch.from_pylist(whole, audit_schema(source)), source)
        self.sink.make_visible()
        found = [row for part in self.sink.scan(held) for row in part.to_pylist()]
        assert sorted(found, key=str) == sorted(self.sink.as_held(texts, held).to_pylist(), key=str)

    def found(self, query: dict[str, Any]) -> list[str]:
        self.sink.make_visible()
        answer = self._lab.server.request("POST", "/public.places/_search", {"query": query})  # type: ignore[union-attr]
        return sorted(hit["_id"] for hit in answer["hits"]["hits"])


def in_berlin(field: str = "location") -> dict[str, Any]:
    return {"geo_bounding_box": {field: BERLIN_BOX}}


def test_settings_and_mapping_make_the_index(lab: Lab) -> None:
    store = {"settings": {**ANALYSIS, "index": {"number_of_shards": 2, "max_result_window": 20_000}}}
    said = {"mapping": {"name": {"analyzer": "folded"}, "more": {"type": "nested"}}, "rename": {"picture": "image"}}
    index = Index(lab, store, **said)
    rows: list[Row] = [
        {"id": "1", "name": "Café", "more": '[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]'},
        {"id": "2", "name": "cafe", "more": '{"a": 1, "b": "y"}'},
        {"id": "3", "name": "x" * 40_000, "more": '["text", 7]'},
        {"id": "4", "name": None, "more": None, "picture": "\\x00ff"},
    ]
    index.feed(upserts(PLACES, 1, rows), 4)
    index.expect(rows)
    assert index.found({"match": {"name": "CAFE"}}) == ["1", "2"]
    both = {"bool": {"must": [{"term": {"more.a": 1}}, {"match": {"more.b": "y"}}]}}
    assert index.found({"nested": {"path": "more", "query": both}}) == ["2"], "each object by itself"
    made = lab.server.request("GET", "/public.places")["public.places@1"]  # type: ignore[union-attr]
    assert (made["settings"]["index"]["number_of_shards"], made["settings"]["index"]["hidden"]) == ("2", "true")
    assert made["mappings"]["properties"]["name"]["analyzer"] == "folded"
    # The next process goes on with it, and a column that comes later is a field like any other.
    again = Index(lab, store, **said)
    wider = dataclasses.replace(PLACES, columns=(*PLACES.columns, dataclasses.replace(PLACES.columns[1], name="added", attnum=11)))
    again.feed(schema(wider, 5), 5)
    again.feed(upserts(wider, 6, [{"id": "5", "added": "words"}]), 6)
    again.expect([*rows, {"id": "5", "added": "words"}], wider)
    again.feed(batch(wider, [(Op.TRUNCATE, 7, {})]), 7)
    again.expect([], wider)


def test_a_document_whose_outline_is_known_is_what_the_audit_expects(lab: Lab) -> None:
    table = outlined(Items(ObjectOutline({"a": ScalarType.INT8, "b": ScalarType.TEXT, "c": None})))
    index = Index(lab)
    rows: list[Row] = [
        {"id": "1", "more": '[{"a": 1, "b": "x", "c": [1, [2]]}, {"a": 2, "b": null, "c": "text"}]'},
        {"id": "2", "more": "[]"},
        {"id": "3", "more": '["text", 7]'},
        {"id": "4", "more": '[null, {"a": 1}]'},
        {"id": "5", "more": '{"a": 1, "b": "x", "other": {"deep": 1}}'},
        {"id": "6", "more": '"text"'},
        {"id": "7", "more": None},
    ]
    index.feed(upserts(table, 1, rows), 7, table)
    index.expect(rows, table)
    both = {"bool": {"must": [{"term": {"more.a": 1}}, {"term": {"more.b.keyword": "x"}}]}}
    assert index.found({"nested": {"path": "more", "query": both}}) == ["1", "5"]
    again = Index(lab)
    again.feed(upserts(table, 8, [{"id": "2", "more": '[{"a": 1, "b": "x"}]'}]), 8)
    again.expect([{"id": "2", "more": '[{"a": 1, "b": "x"}]'}, *(one for one in rows if one["id"] != "2")], table)


@pytest.mark.parametrize("type_", ["nested", "object", "keyword"])
def test_a_list_of_objects_and_other_values_is_kept_and_not_searched(lab: Lab, type_: str) -> None:
    index = Index(lab, mapping={"more": {"type": type_}})
    mixed = ['[{"a": "]"}, 7]', '[{"a": 1}, "x"]', '["{\\"", {"a": 1}]', "[true, [{}]]", "[1, [2, {}]]"]
    plain = {"keyword": ['["{", 1]', "[1, null]"]}.get(type_, ['[{"a": "x"}, {"a": ["y", "{"]}]', '[{"a": null}, null]', "[]"])
    rows: list[Row] = [{"id": str(number), "more": text} for number, text in enumerate([*plain, *mixed])]
    index.feed(upserts(PLACES, 1, rows), len(rows))
    index.expect(rows)
    answer = lab.server.request("POST", "/public.places/_search", {"size": 99})  # type: ignore[union-attr]
    beside = {hit["_id"] for hit in answer["hits"]["hits"] if "_unindexed" in hit["_source"]}
    assert beside == {one["id"] for one in rows[len(plain) :]}


def outlined(outline: Outline) -> Table:
    text = outline_text(outline)
    return dataclasses.replace(
        PLACES, columns=tuple(dataclasses.replace(one, outline=text) if one.name == "more" else one for one in PLACES.columns)
    )


@pytest.mark.parametrize("name", ["", ".", "a..b", "n.b"])
def test_a_document_may_have_names_that_no_field_can_have(lab: Lab, name: str) -> None:
    member = ObjectOutline({"n": ScalarType.INT8, name: ScalarType.INT8})
    table = outlined(ObjectOutline({"odd": member, "list": Items(member), "dotted.name": ScalarType.INT8}))
    index = Index(lab)
    one = {"n": 1, name: 2}
    rows: list[Row] = [{"id": "1", "more": json.dumps({"odd": one, "list": [one, one], "dotted.name": 7})}]
    index.feed(upserts(table, 1, rows), 1, table)
    index.expect(rows, table)
    assert index.found({"term": {"more.dotted.name": 7}}) == ["1"]


def test_an_index_has_room_for_the_fields_of_every_outline_that_it_ever_had(lab: Lab) -> None:
    """Fields stay in an index."""
    for step in range(3):
        lists = {f"list {step} {number}": Items(ObjectOutline({"a": ScalarType.TEXT})) for number in range(30)}
        plain = {f"{step} {number}": ScalarType.INT8 for number in range(400)}
        table = outlined(ObjectOutline({**lists, **plain}))
        index = Index(lab)
        if step:
            index.feed(schema(table, 10 * step), 10 * step, table)
        row = {"id": "1", "more": json.dumps({f"list {step} 7": [{"a": "word"}], f"{step} 7": step})}
        index.feed(upserts(table, 10 * step + 1, [row]), 10 * step + 1, table)
        assert index.found({"term": {f"more.{step} 7": step}}) == ["1"]


def test_a_document_with_too_many_objects_in_lists_is_a_dead_letter_that_says_so(lab: Lab) -> None:
    table = outlined(Items(ObjectOutline({"a": ScalarType.INT8})))
    index = Index(lab, {"settings": {"mapping.nested_objects.limit": 3}})
    index.feed(upserts(table, 1, [{"id": "1", "more": json.dumps([{"a": 1}] * 3)}]), 1, table)
    outcome = index.apply(upserts(table, 2, [{"id": "2", "more": json.dumps([{"a": 1}] * 4)}]))
    assert [one.reason for one in outcome.dead] == [
        "its lists have more than 3 objects together (index.mapping.nested_objects.limit)"
    ]


def test_two_columns_are_found_on_the_map(lab: Lab) -> None:
    index = Index(lab, geo=WHERE)
    rows: list[Row] = [
        BERLIN,
        {**BERLIN, "id": "2", "latitude": "13.4", "longitude": "52.5"},
        {**BERLIN, "id": "3", "latitude": None},
        {**BERLIN, "id": "4", "longitude": None},
        {**BERLIN, "id": "5", "latitude": None, "longitude": None},
        {**BERLIN, "id": "6", "latitude": "95"},
        {**BERLIN, "id": "7", "latitude": "NaN", "longitude": "NaN"},
        {**BERLIN, "id": "8", "latitude": "Infinity"},
    ]
    index.feed(upserts(PLACES, 1, rows), 8)
    index.expect(rows)
    assert index.found(in_berlin()) == ["1"]
    beyond = {"top_left": {"lat": 86, "lon": -168}, "bottom_right": {"lat": 84, "lon": -165}}
    assert index.found({"geo_bounding_box": {"location": beyond}}) == ["6"], "a latitude of 95 is one of 85 on the other side"
    # A coordinate that the source calls otherwise is the same one, and a row that moves is found where it is.
    columns = tuple(dataclasses.replace(one, name={"latitude": "lat"}.get(one.name, one.name)) for one in PLACES.columns)
    renamed = dataclasses.replace(PLACES, columns=columns)
    index.feed(schema(renamed, 9), 9)
    moved = {**BERLIN, "id": "2", "lat": "52.6"}
    later: list[Row] = [moved if row["id"] == "2" else {**row, "lat": row["latitude"]} for row in rows]
    index.feed(batch(renamed, [(Op.UPDATE, 10, moved)]), 10)
    index.expect(later, renamed)
    assert index.found(in_berlin()) == ["1", "2"]
    index.feed(batch(renamed, [(Op.DELETE, 11, {"id": "1"})]), 11)
    assert index.found(in_berlin()) == ["2"]


def test_a_point_is_found_on_the_map(lab: Lab) -> None:
    index = Index(lab, geo={"address.location": "spot"}, mapping={"more": {"type": "geo_shape"}})
    shape = '{"type": "Point", "coordinates": [13.4, 52.5]}'
    rows: list[Row] = [
        {**BERLIN, "more": shape},
        {**BERLIN, "id": "2", "spot": "(52.5,13.4)", "more": None},
        {**BERLIN, "id": "3", "spot": None, "more": "[1]"},
        {**BERLIN, "id": "4", "spot": "(NaN,Infinity)", "more": '"no"'},
        {**BERLIN, "id": "5", "spot": "(1e300,52.5)", "more": shape},
    ]
    index.feed(upserts(PLACES, 1, rows), 5)
    index.expect(rows)
    assert index.found(in_berlin("address.location")) == ["1"]
    assert index.found({"geo_shape": {"more": {"shape": {"type": "envelope", "coordinates": [[13, 53], [14, 52]]}}}}) == ["1", "5"]


def test_words_and_vectors_in_json(lab: Lab) -> None:
    """The node has no k-NN plugin, so a vector is an array of numbers there."""
    index = Index(lab, mapping={"more": {"type": "keyword"}, "name": {"type": "float"}}, **{"as": {"name": "json"}})
    rows: list[Row] = [
        {"id": "1", "name": "[1,2.5,-0.1]", "more": '["red", "green"]'},
        {"id": "2", "name": "[4,5,6]", "more": '{"red": 1}'},
        {"id": "3", "name": "nothing", "more": '"green"'},
        {"id": "4", "name": None, "more": None},
    ]
    index.feed(upserts(PLACES, 1, rows), 4)
    index.expect(rows)
    assert index.found({"term": {"more": "green"}}) == ["1", "3"]
    assert index.found({"term": {"name": 2.5}}) == ["1"]


def test_another_shape_is_refused_until_the_index_is_built_again(lab: Lab) -> None:
    said: dict[str, Any] = {"mapping": {"name": {"analyzer": "folded"}}, "geo": WHERE}
    store = {"settings": {**ANALYSIS, "refresh_interval": "5s"}}
    Index(lab, store, **said).feed(upserts(PLACES, 1, [BERLIN]), 1)
    Index(lab, {"settings": {**ANALYSIS, "refresh_interval": "1s", "search.idle.after": "1m"}}, **said).expect([BERLIN])
    other = {"analysis": {"analyzer": {"folded": {"type": "standard"}}}}
    for others, told in (
        ((store, {**said, "mapping": {"name": {"type": "keyword"}}}), "name has other options"),
        ((store, {**said, "mapping": {**said["mapping"], "more": {"type": "nested"}}}), "more has other options"),
        ((store, {"mapping": said["mapping"]}), "latitude was location.lat, and is latitude"),
        (({"settings": other}, said), r"settings\.analysis is another"),
        (({}, said), r"settings\.analysis is another"),
    ):
        with pytest.raises(ConfigError, match=told) as refused:
            Index(lab, others[0], **others[1])
        assert "--rebuild" in (refused.value.hint or "")
    lab.server.request("DELETE", "/public.places@1")  # type: ignore[union-attr]
    rebuilt = Index(lab, {"settings": other}, mapping={"name": {"analyzer": "folded"}, "more": {"type": "nested"}})
    rebuilt.feed(upserts(PLACES, 1, [BERLIN]), 1)
    rebuilt.expect([BERLIN])


def test_what_only_the_cluster_knows_it_says(lab: Lab) -> None:
    for said, reason in (
        ({"mapping": {"name": {"analyzer": "nobody"}}}, r"analyzer \[nobody\] has not been configured in mappings"),
        ({"mapping": {"name": {"type": "nonsense"}}}, r"No handler for type \[nonsense\] declared on field \[name\]"),
    ):
        with pytest.raises(StoreError, match=reason) as refused:
            Index(lab, **said).feed(upserts(PLACES, 1, [BERLIN]), 1)
        assert not refused.value.retryable
    with pytest.raises(StoreError, match=r"unknown setting \[index.nonsense\]"):
        Index(lab, {"settings": {"nonsense": 1}}).feed(upserts(PLACES, 1, [BERLIN]), 1)


@pytest.mark.parametrize("point", ["search.index.created", "search.bulk.before_together", "search.ledger.before_write"])
def test_a_writer_that_is_killed_leaves_an_index_of_the_shape_or_none(lab: Lab, point: str) -> None:
    said: dict[str, Any] = {"mapping": {"name": {"analyzer": "folded"}}, "geo": WHERE}
    store = {"settings": ANALYSIS}
    assert killed(lambda: Index(lab, store, **said).feed(upserts(PLACES, 1, [BERLIN]), 1), f"{point}=kill") == KILLED
    lab.epoch += 1
    index = Index(lab, store, **said)
    index.feed(upserts(PLACES, 1, [BERLIN]), 1)
    index.expect([BERLIN])
    assert index.found({"match": {"name": "BERLÍN"}}) == index.found(in_berlin()) == ["1"]
