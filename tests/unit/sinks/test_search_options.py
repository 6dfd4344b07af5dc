"""``settings``, ``mapping`` and ``geo`` of a search index: what they make of an index and its documents, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.model.pgtypes import BOOL, BYTEA, FLOAT8, INT8, JSONB, NUMERIC, POINT, TEXT, TIMESTAMPTZ
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.holding import bound, check, decoded
from sinks.holdingchange import settled
from sinks.search import mapping, settings, wishes
from sinks.search.options import Options
from sinks.search.sink import SearchSink
from tests.contract.rows import Row, upserts

PLACES = Table(
    16900,
    "public",
    "places",
    (
        Column("id", INT8, -1, "int8", key=True, attnum=1),
        Column("name", TEXT, -1, "text", attnum=2),
        Column("latitude", FLOAT8, -1, "float8", attnum=3),
        Column("longitude", NUMERIC, -1, "numeric", attnum=4),
        Column("spot", POINT, -1, "point", attnum=5),
        Column("more", JSONB, -1, "jsonb", attnum=6),
        Column("open", BOOL, -1, "bool", attnum=7),
        Column("picture", BYTEA, -1, "bytea", attnum=8),
        Column("since", TIMESTAMPTZ, -1, "timestamptz", attnum=9),
        Column("span", 3904, -1, "int4range", attnum=10),
    ),
)
SCHEMA = TopicSchema.of(PLACES)
BERLIN: Row = {"id": "1", "name": "Berlin", "latitude": "52.5", "longitude": "13.4", "spot": "(13.4,52.5)", "more": '[{"a": 1}]'}
WHERE = {"location": {"lat": "latitude", "lon": "longitude"}}


def options(store: dict[str, Any] | None = None, /, **said: Any) -> Options:
    tables = {"tables": {"public.places": said}} if said else {}
    return Options.model_validate({"kind": "opensearch", "url": "http://127.0.0.1:1", **tables, **(store or {})})


def previewed(rows: list[Row], made: Options, table: Table = PLACES) -> list[dict[str, Any]]:
    holding = bound("s", made, TopicSchema.of(table))
    check("s", made, TopicSchema.of(table))
    shown = SearchSink("s", made).preview(holding.batch(upserts(table, 1, rows)))
    return [
        {part: json.loads(text) if part not in ("index", "id", "routing") else text for part, text in row.items()} for row in shown
    ]


def field(name: str, **said: Any) -> Any:
    """The field of an index that is made."""
    holding = bound("s", options(**said), SCHEMA)
    sink = SearchSink("s", options(**said))
    held = holding.held(SCHEMA)
    sink.foresee([held])
    found: Any = {"properties": mapping.properties(held, sink._choices.style(held))}
    for part in name.split("."):
        found = found["properties"][part]
    return found


def test_a_mapping_adds_to_the_field_of_the_columns_type_or_takes_its_place() -> None:
    english = field("name", mapping={"name": {"analyzer": "english"}})
    assert english == {"type": "text", "analyzer": "english", "fields": {"keyword": {"type": "keyword", "ignore_above": 1024}}}
    assert field("title", rename={"name": "title"}, mapping={"title": {"type": "keyword"}}) == {
        "type": "keyword",
        "ignore_above": 8191,
    }
    assert field("name", mapping={"name": {"type": "keyword", "ignore_above": 5}}) == {"type": "keyword", "ignore_above": 5}
    scaled = field("latitude", mapping={"latitude": {"type": "scaled_float", "scaling_factor": 100}})
    assert scaled == {"type": "scaled_float", "scaling_factor": 100, "ignore_malformed": True}
    assert field("more", mapping={"more": {"type": "nested"}}) == {"type": "nested", "dynamic": True}
    named = {"type": "object", "properties": {"a": {"type": "long"}}}
    assert field("more", mapping={"more": named}) == {"dynamic": False, **named}
    assert field("a.b", rename={"name": "a.b"}, mapping={"a.b": {"type": "wildcard"}})["type"] == "wildcard"


def test_objects_that_a_mapping_asks_for_are_not_wrapped() -> None:
    rows: list[Row] = [{**BERLIN, "more": text} for text in ('{"a": 1}', '[{"a": 1}]', "[]", "[1]", '"x"', "null", '[[{"a": 1}]]')]
    documents = [row["document"] for row in previewed(rows, options(mapping={"more": {"type": "nested"}}))]
    assert [one.get("more", "-") for one in documents] == [{"a": 1}, [{"a": 1}], [], "-", "-", "-", "-"]
    kept = [one.get("_unindexed", {}).get("more", "-") for one in documents]
    assert kept == ["-", "-", "-", [1], "x", None, [[{"a": 1}]]]
    plain = [row["document"]["more"] for row in previewed(rows[:2], options())]
    assert plain == [{"a": 1}, {"value": [{"a": 1}]}]


def test_single_values_that_a_mapping_asks_for_are_not_wrapped() -> None:
    """As an array of words, or a vector: a text that holds JSON."""
    rows: list[Row] = [{**BERLIN, "more": text} for text in ('["a","b"]', '"a"', "7", "[]", '{"a": 1}', '[{"a": 1}]', "[[1]]")]
    documents = [row["document"] for row in previewed(rows, options(mapping={"more": {"type": "keyword"}}))]
    assert [one.get("more", "-") for one in documents] == [["a", "b"], "a", 7, [], "-", "-", "-"]
    assert [one.get("_unindexed", {}).get("more", "-") for one in documents] == ["-"] * 4 + [{"a": 1}, [{"a": 1}], [[1]]]
    said: dict[str, Any] = {"as": {"name": "json"}, "mapping": {"name": {"type": "knn_vector", "dimension": 3}}}
    [vector] = previewed([{**BERLIN, "name": "[1,2.5,-0.1]"}], options(**said))
    assert vector["document"]["name"] == [1, 2.5, -0.1]
    assert vector["mapping"] == {"name": {"type": "knn_vector", "dimension": 3}}


VECTORS = Table(
    16901,
    "public",
    "places",
    (
        Column("id", INT8, -1, "int8", key=True, attnum=1),
        Column("embedding", 99_000, 3, "vector", attnum=2),
        Column("loose", 99_000, -1, "vector", attnum=3),
        Column("reals", 1021, -1, "_float4", attnum=4),
    ),
)


def test_a_vector_is_an_array_of_so_many_numbers_as_its_type_says() -> None:
    row: Row = {"id": "1", "embedding": "[1,2.5,-1e-07]", "loose": "[1]", "reals": "{1.5,NULL}"}
    method = {"name": "hnsw", "engine": "lucene"}
    made = options(mapping={"embedding": {"type": "knn_vector", "method": method}, "reals": {"type": "knn_vector", "dimension": 2}})
    [shown] = previewed([row], made, VECTORS)
    assert shown["document"] == {"id": 1, "embedding": [1, 2.5, -1e-07], "loose": "[1]", "reals": [1.5, None]}
    assert shown["mapping"] == {
        "embedding": {"type": "knn_vector", "method": method, "dimension": 3},
        "reals": {"type": "knn_vector", "dimension": 2},
    }
    [said] = previewed([row], options(mapping={"loose": {"type": "knn_vector", "dimension": 1}}), VECTORS)
    assert (said["document"]["loose"], said["mapping"]["loose"]) == ([1], {"type": "knn_vector", "dimension": 1})
    for wish, message in (
        ({"embedding": {"type": "knn_vector", "dimension": 4}}, r"embedding is vector\(3\), so dimension = 4 fits no row"),
        ({"loose": {"type": "knn_vector"}}, "loose has no dimension: its type does not say how many numbers a vector has"),
    ):
        with pytest.raises(ConfigError, match=message):
            previewed([row], options(mapping=wish), VECTORS)
    with pytest.raises(ConfigError, match="embedding is vector, and never an array of numbers"):
        previewed([row], options(**{"as": {"embedding": "text"}, "mapping": {"embedding": {"type": "knn_vector"}}}), VECTORS)


def test_a_vector_of_another_dimension_is_another_field() -> None:
    made = options(mapping={"embedding": {"type": "knn_vector"}})
    wider = dataclasses.replace(VECTORS, columns=(VECTORS.columns[0], dataclasses.replace(VECTORS.columns[1], typmod=4)))
    fields = []
    for table in (VECTORS, wider):
        held = bound("s", made, TopicSchema.of(VECTORS)).held(TopicSchema.of(table))
        fields.append(mapping.properties(held, SearchSink("s", made)._choices.style(held)))
    assert mapping.contradicted(fields[1], fields[0]) == ["embedding"]
    assert not mapping.contradicted(fields[0], fields[0])


def test_documents_are_named_and_routed_by_columns() -> None:
    [shown] = previewed([{**BERLIN, "name": "a/b"}], options(id="{name}/{id}", routing="{name}-{open}"))
    assert (shown["id"], shown["routing"]) == ("a\\/b/1", "a/b-\\N")
    [plain] = previewed([BERLIN], options(routing="{name}"))
    assert (plain["id"], plain["routing"]) == ("1", "Berlin")
    assert "routing" not in previewed([BERLIN], options())[0]
    [long] = previewed([{**BERLIN, "name": "x" * 600}], options(id="{name}/{id}"))
    assert long["id"].startswith("\\#")
    assert len(long["id"]) == 66


def test_another_id_or_routing_is_another_shape() -> None:
    former = bound("s", options(id="{name}/{id}", routing="{name}"), SCHEMA)
    assert decoded(former.text).text == former.text
    for other, what in (
        (options(id="{name}:{id}", routing="{name}"), "id is another"),
        (options(id="{name}/{id}"), "routing is another"),
        (options(routing="{open}"), "places are named by open, and were not"),
    ):
        with pytest.raises(ConfigError, match=what):
            settled("s", SCHEMA, former, bound("s", other, SCHEMA))


def test_two_columns_are_a_geo_point() -> None:
    rows: list[Row] = [BERLIN, {**BERLIN, "latitude": None}, {**BERLIN, "latitude": None, "longitude": None}]
    shown = previewed(rows, options(geo=WHERE))
    assert shown[0]["mapping"] == {"location": {"type": "geo_point", "ignore_malformed": True}}
    assert [row["document"]["location"] for row in shown] == [
        {"lat": 52.5, "lon": 13.4},
        {"lat": None, "lon": 13.4},
        {"lat": None, "lon": None},
    ]
    assert not {"latitude", "longitude"} & shown[0]["document"].keys()
    deep = previewed([BERLIN], options(geo={"address.location": WHERE["location"]}))[0]
    assert deep["mapping"] == {"address": {"properties": {"location": {"type": "geo_point", "ignore_malformed": True}}}}
    assert deep["document"]["address"] == {"location": {"lat": 52.5, "lon": 13.4}}


def test_a_point_is_a_geo_point_whose_x_is_the_longitude() -> None:
    [shown] = previewed([BERLIN], options(geo={"location": "spot"}))
    assert shown["document"]["location"] == {"lon": 13.4, "lat": 52.5}
    assert shown["mapping"] == {"location": {"type": "geo_point", "ignore_malformed": True}}
    [plain] = previewed([BERLIN], options())
    assert plain["document"]["spot"] == {"x": 13.4, "y": 52.5}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mapping": {"nmae": {"type": "text"}}}, r'stores.s.tables."public.places": the store has no field nmae'),
        ({"rename": {"name": "title"}, "mapping": {"name": {"type": "text"}}}, "the store has no field name"),
        ({"exclude": ["name"], "mapping": {"name": {"type": "text"}}}, "the store has no field name"),
        ({"mapping": {"open": {"type": "date"}}}, "mapping: open is bool, and never a value of type date"),
        ({"mapping": {"picture": {"type": "long"}}}, "picture is bytea, and never a value of type long"),
        ({"mapping": {"more": {"type": "boolean"}}}, "more is jsonb, and never a value of type boolean"),
        ({"mapping": {"name": {"type": "nested"}}}, "name is text, and never a value of type nested"),
        ({"mapping": {"latitude": {"type": "geo_point"}}}, "latitude is float8, and never a value of type geo_point"),
        ({"mapping": {"since": {"type": "double"}}}, "since is timestamptz, and never a value of type double"),
        ({"mapping": {"span": {"type": "integer_range"}}}, "span is a range, an object of its bounds"),
        ({"mapping": {"name": {"type": "knn_vector", "dimension": 3}}}, "name is text, and never an array of numbers"),
        ({"mapping": {"more": {"type": "knn_vector"}}}, "more has no dimension: its type does not say how many numbers"),
        ({"id": "{name}"}, r'"public.places".id = .*: rows of public.places also differ in id'),
        ({"id": "{id}{name}"}, "between two columns it needs a separator"),
        ({"id": "{id}/{nmae}"}, "public.places has no column nmae"),
        ({"routing": "{nmae}"}, r'"public.places".routing = .*: public.places has no column nmae'),
        ({"routing": "{name}", "exclude": ["name"]}, "the store does not show name, by which documents are told apart"),
        ({"routing": "{name}", "rename": {"name": "title"}}, "name is part of the key in the store, which keeps its names"),
        ({"geo": {"location": {"lat": "latitude", "lon": "lon"}}}, r'"public.places": public.places has no column lon'),
        ({"geo": {"location": {"lat": "name", "lon": "longitude"}}}, "geo: name is not a number"),
        ({"geo": {"name": WHERE["location"]}}, "cannot both be there"),
        ({"geo": WHERE, "exclude": ["latitude"]}, r'"public.places": the store does not hold latitude of public.places'),
        ({"geo": WHERE, "rename": {"name": "location.name"}}, "geo: name cannot stand in location, which is a point"),
        ({"geo": {"location": "name"}}, None),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(said: dict[str, Any], message: str | None) -> None:
    made = options(**said)
    if message is None:
        previewed([BERLIN], made)  # a text may hold "52.5,13.4"
        return
    with pytest.raises(ConfigError, match=message) as refused:
        previewed([BERLIN], made)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("store", "said", "message"),
    [
        ({}, {"mapping": {"name": {"copy_to": "all"}}}, "name: copy_to would fill a field that no column has"),
        ({}, {"routing": "eu"}, "routing = 'eu' cannot name documents' places: it names no column"),
        ({}, {"id": "{id!r}"}, "only {column} may stand in it"),
        ({"workers_from_rows": 1}, {"routing": "{name}"}, "documents with a routing are written by one process"),
        ({"workers_from_rows": 1}, {"index": "x-{name}"}, "are written by one process"),
        ({}, {"index": "{name}"}, "it has to begin with a letter a to z or a digit"),
        ({}, {"index": "x-{name}/{id}"}, "between columns only the letters"),
        ({}, {"index": "orders"}, "it names no column"),
        ({}, {"mapping": {"name": {"type": "join"}}}, "a field of type join holds no column's value"),
        ({}, {"mapping": {"name": {"type": 7}}}, "type is not a text"),
        ({}, {"geo": WHERE, "rename": {"latitude": "lat"}}, "geo: latitude has another place already"),
        ({}, {"geo": WHERE, "mapping": {"location": {"type": "geo_point"}}}, "mapping: location is a geo_point, as geo says"),
        ({"settings": {"hidden": False}}, {}, "settings: hidden cannot be chosen: a pattern"),
        ({"settings": {"index": {"blocks": {"write": True}}}}, {}, "settings: blocks.write cannot be chosen"),
        ({"settings": {"index.final_pipeline": "x"}}, {}, "settings: final_pipeline cannot be chosen"),
        ({"settings": {"routing_partition_size": 2}}, {}, "settings: routing_partition_size cannot be chosen"),
        ({"settings": {"max_result_window": 10}}, {}, "has to be at least 2000"),
        ({"settings": {"priority": 1, "index": {"priority": 2}}}, {}, "settings: says priority twice"),
        ({"settings": {"number_of_shards": 2}, "shards": 3}, {}, "number_of_shards is said by the option shards already"),
    ],
)  # fmt: skip
def test_what_can_never_be_is_refused_with_the_file(store: dict[str, Any], said: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        options(store, **said)


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"settings": {"index": {"analysis": {"analyzer": {"mine": {"type": "standard"}}}, "number_of_shards": 2}}}')
    made = options({"settings": file})
    assert made.further_settings == {"analysis.analyzer.mine.type": "standard", "number_of_shards": 2}
    assert made.shaping.keys() == {"settings.analysis", "settings.number_of_shards"}
    for text, message in (
        ('{"hidden": true}', "hidden cannot be chosen"),
        ("[]", "does not hold one JSON object"),
        ("{", "does not hold"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            bound("s", options({"settings": file}), SCHEMA)
    with pytest.raises(ConfigError, match=r"cannot read .*: no such file"):
        bound("s", options({"settings": tmp_path / "nothing.json"}), SCHEMA)


def test_what_an_index_takes_over_at_any_time_shapes_nothing() -> None:
    assert settings.shaping({"refresh_interval": "9s", "max_result_window": 20_000, "search.idle.after": "1m"}) == {}
    assert settings.shaping({"sort.field": "id"}) != settings.shaping({"sort.field": "name"})


def test_options_are_part_of_the_shape_and_follow_a_renamed_column() -> None:
    said: dict[str, Any] = {"mapping": {"name": {"analyzer": "english"}}, "geo": WHERE}
    former = bound("s", options({"settings": {"analysis": {"analyzer": {"a": {"type": "x"}}}}}, **said), SCHEMA)
    assert decoded(former.text).text == former.text
    columns = tuple(dataclasses.replace(one, name={"name": "called"}.get(one.name, one.name)) for one in PLACES.columns)
    renamed = TopicSchema.of(dataclasses.replace(PLACES, columns=columns))
    assert wishes.of(former.held(renamed))["called"].fragment == {"analyzer": "english"}
    corrected = {**said, "mapping": {"called": {"analyzer": "english"}}}
    store = {"settings": {"analysis": {"analyzer": {"a": {"type": "x"}}}}}
    assert settled("s", renamed, decoded(former.text), bound("s", options(store, **corrected), renamed)).text == former.text
    for other, what in (
        (
            options(store, **{**said, "mapping": {"name": {"analyzer": "german"}}}),
            "another shape of public.places .*: name has other options",
        ),
        (options(store, geo=WHERE), "name has other options"),
        (options(None, **said), "settings.analysis is another"),
        (options(store, mapping=said["mapping"]), "latitude was location.lat, and is latitude"),
    ):
        with pytest.raises(ConfigError, match=what) as refused:
            settled("s", SCHEMA, decoded(former.text), bound("s", other, SCHEMA))
        assert "--rebuild" in (refused.value.hint or "")
