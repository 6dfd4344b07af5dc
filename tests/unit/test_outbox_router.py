"""Which rows of the outbox table are events, and of which topics (``cdc.outbox.router``)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdc.model import pgtypes
from cdc.model.batch import Op, table_of
from cdc.model.table import Column, Table
from cdc.outbox.router import Routed, UnfitTable, check, routed
from cdc.settings.outbox import Outbox
from tests.contract.rows import batch

TABLE = Table(
    77,
    "public",
    "outbox",
    (
        Column("id", pgtypes.TEXT, key=True, attnum=1),
        Column("aggregatetype", pgtypes.TEXT, attnum=2),
        Column("aggregateid", pgtypes.TEXT, attnum=3),
        Column("type", pgtypes.TEXT, attnum=4),
        Column("payload", pgtypes.TEXT, attnum=5),
    ),
)


def events(routes: list[str | None], topics: tuple[str, ...] = (), *, topics_max: int = 1000, keyless: int = -1) -> Routed:
    """Of one inserted row for each route."""
    rows = [
        {"id": str(at), "aggregatetype": route, "aggregateid": None if at == keyless else "k", "type": "t", "payload": "{}"}
        for at, route in enumerate(routes)
    ]
    changes = batch(TABLE, [(Op.INSERT, 1 + at, row) for at, row in enumerate(rows)])
    return routed(changes, Outbox(topics_max=topics_max), lambda ids: np.zeros(len(ids), np.bool_), topics)


def found(of: Routed) -> dict[str, list[str]]:
    """Topic → the ids of its events."""
    return {table_of(one.schema).qualified: one.column("id").to_pylist() for one in of.batches}


def test_each_route_has_its_topic_and_each_event_its_place() -> None:
    made = events(["a", "b", "a", None, "", "b"], keyless=5)
    assert found(made) == {"outbox.a": ["0", "2"], "outbox.b": ["1"]}
    assert [places.tolist() for places in made.places] == [[0, 2], [1]]
    assert {one.why: one.rows for one in made.refused} == {
        "no topic can have the name that its route makes": 2,
        "it has no key": 1,
    }


def test_whoever_inserts_rows_makes_no_topics_without_end() -> None:
    """Those that are there go on; of new ones the first have room."""
    made = events(["old", "new", "newer", "newest", "old", "newest"], ("outbox.old",), topics_max=2)
    assert found(made) == {"outbox.old": ["0", "4"], "outbox.new": ["1"]}
    assert {one.why: one.rows for one in made.refused} == {"there would be more than 2 topics of events (topics_max)": 3}
    assert made.events == 3
    assert sorted(place for places in made.places for place in places.tolist()) == [0, 1, 2]
    assert found(events(["a", "b"], ("outbox.a", "outbox.x"), topics_max=1)) == {"outbox.a": ["0"]}


def test_an_update_that_comes_with_its_insert_is_no_event() -> None:
    row = {"id": "7", "aggregatetype": "a", "aggregateid": "k", "type": "t", "payload": "{}"}
    changes = batch(
        TABLE,
        [
            (Op.INSERT, 1, row),
            (Op.UPDATE, 2, {**row, "type": "another"}),
            (Op.DELETE, 3, row),
            (Op.UPDATE, 4, {**row, "id": "8"}),
            (Op.INSERT, 5, row),
        ],
    )
    made = routed(changes, Outbox(), lambda ids: np.zeros(len(ids), np.bool_), ())
    assert found(made) == {"outbox.a": ["7", "8", "7"]}
    assert made.updated == 1


def test_columns_are_headers_beside_those_of_their_own_column() -> None:
    columns = (
        *TABLE.columns,
        Column("headers", pgtypes.JSONB, attnum=6),
        Column("tenant_id", pgtypes.INT8, attnum=7),
        Column("on", pgtypes.DATE, attnum=8),
    )
    table = replace(TABLE, columns=columns)
    base = {"id": "1", "aggregatetype": "a", "aggregateid": "k", "type": "t", "payload": "{}"}
    rows = [
        {**base, "headers": '{"x": 1.50, "tenant": "old"}', "tenant_id": 7, "on": None},
        {**base, "headers": None, "tenant_id": None, "on": None},
        {**base, "headers": None, "tenant_id": 8, "on": "infinity"},
        {**base, "headers": '["no object"]', "tenant_id": 9, "on": None},
    ]
    changes = batch(table, [(Op.INSERT, 1 + at, row) for at, row in enumerate(rows)])
    outbox = Outbox(headers={"tenant": "tenant_id", "kind": "type", "on": "on"})
    answer = routed(changes, outbox, lambda ids: np.zeros(len(ids), np.bool_), ())
    (made,) = answer.batches
    found = [None if text is None else json.loads(text) for text in made.column("headers").to_pylist()]
    assert found[0] == {"x": 1.5, "tenant": "7", "kind": "t"}
    assert found[1] == {"kind": "t"}
    assert found[2]["tenant"] == "8"
    assert len(found) == 3
    assert [one.why for one in answer.refused] == ["its headers are not an object, beside which a column could be one"]
    with pytest.raises(UnfitTable, match=r"^it has no column tenant_id$"):
        check(TABLE, outbox)
