"""Pages of a scroll read where they stand say what their parsed hits say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from cdc.model.topic import TopicSchema
from sinks.render.jsontext import row_texts
from sinks.search.fields import sources, style_of, taken_out
from sinks.search.pages import Hits
from tests.contract.rows import TYPES
from tests.unit.sinks.test_jsonrows import random_batch

SCHEMA = TopicSchema.of(TYPES)
STYLE = style_of(SCHEMA, {})


def answer(documents: list[Any], scroll: str = "DXF1ZXJ5QW5k==", **more: Any) -> bytes:
    hits = [
        {"_index": "t-1", "_id": f'{at}:"\u00e9', "_score": None, "_source": "@", "sort": [at], **more}
        for at in range(len(documents))
    ]
    whole = {
        "_scroll_id": scroll,
        "took": 3,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": {"value": len(hits), "relation": "eq"}, "max_score": None, "hits": hits},
    }
    head, *rest = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).split('"@"')
    return (head + "".join(document + after for document, after in zip(documents, rest, strict=True))).encode()


def test_rows_of_every_type_are_those_of_the_parsed_documents(seed: int) -> None:
    documents = sources(random_batch(seed, 40), SCHEMA, STYLE)
    objects = ('{"a":[1,{"b":2}]}', "[1,2]", '"text"', "1.50", "null", '{"value":1}', '{"value":{"value":[]}}', '{"value":1,"b":2}')
    for value in objects:
        wrapped = value if value[0] == "{" and value != '{"value":1}' else f'{{"value":{value}}}'
        documents += [f'{{"id":"a","docb":{wrapped}}}', f'{{"id":"b","docb" : {{ "value" : {value} }} }}']
    documents += ['{"id":"c","_unindexed":{"docb":[1]}}', '{"id":"d","docb":{"value":1']
    documents[-1] += "}}"
    # What is left for Python to read in one document leaves the others alone.
    documents += [
        r'{"id":"e","docb":{"value":["\ud83d\ude00"]}}',
        r'{"id":"f","docb":{"value":["\ud83d"]}}',
        r'{"id":"g","docb":{"value":"\"}\\"}}',
    ]
    hits = Hits.of(answer(documents))
    assert (hits.scroll, len(hits)) == ("DXF1ZXJ5QW5k==", len(documents))
    rows, left = hits.rows(SCHEMA, STYLE)
    assert not left.all()
    parsed = hits.parsed(np.ones(len(hits), np.bool_))
    wanted = row_texts([taken_out(hit["_source"], SCHEMA, STYLE) for hit in parsed], SCHEMA, STYLE).to_pylist()
    for at in np.flatnonzero(~left).tolist():
        assert rows.slice(at, 1).to_pylist() == [wanted[at]], documents[at]
    ids = hits.ids()
    assert ids is not None
    assert ids.to_pylist() == [hit["_id"] for hit in parsed]


def test_what_hits_hold_besides_makes_no_difference() -> None:
    more: dict[str, Any] = {"inner": {"hits": [{"_id": "x", "_source": {"hits": []}}]}, "highlight": ["}", '"', "\\"]}
    plain, with_more = (Hits.of(answer(['{"id":"a"}', ' {"id" : "b"} '], **one)) for one in ({}, more))
    for hits in (plain, with_more):
        rows, left = hits.rows(SCHEMA, STYLE)
        assert not left.any()
        assert rows.column("id").to_pylist() == ["a", "b"]
        assert hits.ids().to_pylist() == ['0:"\u00e9', '1:"\u00e9']  # type: ignore[union-attr]


@pytest.mark.parametrize("odd", [b"7", b'"text"', b"[1]", b'{"_id":"1","_source":{},"_source":{}}', b'{"_id":"1"}'])
def test_a_hit_that_is_no_document_is_left_and_the_others_are_not(odd: bytes) -> None:
    hits = Hits.of(answer(['{"id":"a"}']).replace(b'"hits":[', b'"hits":[' + odd + b","))
    rows, left = hits.rows(SCHEMA, STYLE)
    assert left.tolist() == [True, False]
    assert rows.column("id")[1].as_py() == "a"


def test_a_page_may_be_of_any_size() -> None:
    count = 5000
    hits = Hits.of(answer([f'{{"id":"{at}"}}' for at in range(count)]))
    rows, left = hits.rows(SCHEMA, STYLE)
    assert not left.any()
    assert rows.column("id").to_pylist() == [str(at) for at in range(count)]


def test_the_last_page_is_empty() -> None:
    hits = Hits.of(answer([]))
    assert len(hits) == 0
    assert hits.scroll


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}",
        b"[]",
        b'{"_scroll_id":"x"}',
        b'{"_scroll_id":"x","hits":{}}',
        b'{"_scroll_id":"x","hits":{"hits":[]}',
        b'{"hits":{"hits":[]}}',
        b'{"_scroll_id":"x","hits":{"hits":[]}}}',
        answer(["{}"])[:-3],
    ],
)
def test_what_is_no_page_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError):
        Hits.of(damaged)
