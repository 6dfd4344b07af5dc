"""``columns``, ``exclude`` and ``rename`` in a store's configuration, the same in every kind: what is held, what it is called, and what becomes of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import armed
from cdc.errors import ConfigError, StoreError
from cdc.model.batch import Op
from cdc.model.pgtypes import INT8, JSONB, NUMERIC, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.contract import Sink, audit_schema
from sinks.heldlog import HeldLog
from tests.contract.labs import Lab
from tests.contract.rows import Row, batch, numeric, schema, upserts
from tests.logs import cut

TABLE = Table(
    16700,
    "public",
    "people",
    (
        Column("id", INT8, -1, "", key=True, attnum=1),
        Column("name", TEXT, -1, "", attnum=2),
        Column("city", TEXT, -1, "", attnum=3),
        Column("cost", NUMERIC, numeric(12, 2), "", attnum=4),
        Column("zip", TEXT, -1, "", attnum=5),
        Column("more", JSONB, -1, "", attnum=6),
    ),
)
LATER = dataclasses.replace(
    TABLE,
    columns=(
        *(
            dataclasses.replace(one, name={"name": "full_name"}.get(one.name, one.name))
            for one in TABLE.columns
            if one.name != "zip"
        ),
        Column("added", TEXT, -1, "", attnum=7),
    ),
)
"""Renames a column and drops another, adds one."""
NASTY = '\u00e9 " \\ \n {}'
ROWS: list[Row] = [
    {"id": "1", "name": "Ada", "city": NASTY, "cost": "NaN", "zip": "50667", "more": '{"a": [1.50]}'},
    {"id": "2", "name": "", "city": None, "cost": "1.10", "zip": None, "more": "[1]"},
    {"id": "3", "name": None, "city": "", "cost": None, "zip": "0", "more": None},
]
OBJECTS = ("redis", "opensearch", "console")
"""Kinds that hold documents."""
ADDRESS = {"city": "address.city", "zip": "address.zip", "more": "address.more"}


class HeldStore:
    """One store of a lab, opened as its follower opens it."""

    def __init__(self, lab: Lab, **said: Any) -> None:
        self._lab = lab
        given = {"tables": {"public.people": said}} if said else {}
        self.sink = lab.sink(**given)
        options = options_model(lab.kind).model_validate({"kind": lab.kind, **lab._options, **given})
        self.log = HeldLog(lab.log.reader(), lab.name, options)
        lab.epoch += 1
        self.sink.open(self.log, lab.epoch)
        self.log.settle(self.sink)
        self.sink.finish()

    def feed(self, changes: pa.RecordBatch) -> None:
        self._lab.log.put(changes)
        given = self.log.holding("public.people").batch(changes)
        outcome = self.sink.apply(given)
        assert (len(outcome.dead), outcome.written + outcome.stale) == (0, len(changes))

    def prepare(self, table: Table) -> None:
        self.sink.prepare(self.log.held(TopicSchema.of(table)))

    def commit(self, position: int) -> None:
        self._lab.log.reach(cut(position))
        self.sink.commit(cut(position))

    def expect(self, table: Table, rows: list[Row]) -> None:
        """The store's rows are the source's through the same holding, by a scan and one by one."""
        if not self._lab.readable:
            return
        schema = TopicSchema.of(table)
        held = self.log.held(schema)
        source = self.log.holding(held.topic).rows(pa.RecordBatch.from_pylist(rows, audit_schema(schema)), schema)
        wanted = sorted(self.sink.as_held(source, held).to_pylist(), key=str)
        self.sink.make_visible()
        parts = list(self.sink.scan(held))
        assert sorted((row for part in parts for row in part.to_pylist()), key=str) == wanted
        keys = pa.RecordBatch.from_pylist([{"id": row["id"]} for row in wanted], pa.schema([("id", pa.utf8())]))
        assert sorted(self.sink.fetch(held, keys).to_pylist(), key=str) == wanted


def loaded(lab: Lab, **said: Any) -> HeldStore:
    store = HeldStore(lab, **said)
    lab.log.put(upserts(TABLE, 1, ROWS))
    store.prepare(TABLE)
    store.feed(upserts(TABLE, 1, ROWS))
    store.commit(3)
    return store


def names(sink: Sink, topic: str = "public.people") -> tuple[str, ...]:
    shape = sink.shape(topic)
    assert shape is not None
    return shape.schema.names


def test_a_store_holds_what_it_is_to_hold_and_nothing_else(lab: Lab) -> None:
    store = loaded(lab, columns=["id", "name", "cost"], rename={"name": "title"})
    assert names(store.sink) == ("id", "title", "cost")
    store.expect(TABLE, ROWS)
    changed: Row = {**ROWS[1], "name": "Bob", "zip": "x"}
    store.feed(batch(TABLE, [(Op.UPDATE, 4, changed), (Op.DELETE, 5, ROWS[2])]))
    store.commit(5)
    store.expect(TABLE, [ROWS[0], changed])
    # The source renames, drops and adds columns: only what this store holds counts.
    store.feed(schema(LATER, 6))
    store.commit(6)
    assert names(store.sink) == ("id", "title", "cost")
    later: list[Row] = [{"added": None, **row, "full_name": row["name"]} for row in (ROWS[0], changed)]
    later = [{name: row[name] for name in LATER.names} for row in later]
    more: Row = {**later[0], "id": "9", "full_name": "Eve", "added": "new"}
    store.feed(upserts(LATER, 7, [more]))
    store.commit(7)
    store.expect(LATER, [*later, more])
    # Opened again by the next process, with the file as it was, though the source's names are others by now.
    if lab.readable:
        again = HeldStore(lab, columns=["id", "name", "cost"], rename={"name": "title"})
        again.expect(LATER, [*later, more])
        corrected = HeldStore(lab, columns=["id", "full_name", "cost"], rename={"full_name": "title"})
        corrected.expect(LATER, [*later, more])
    else:
        with pytest.raises(ConfigError, match="has no column name"):
            HeldStore(lab, columns=["id", "name", "cost"], rename={"name": "title"})


@pytest.mark.parametrize("point", ["cache.schema.rewritten=error", "cache.write.sent=error:2", "search.schema.rewritten=error"])
def test_a_rewrite_that_was_interrupted_is_finished_by_the_columns_that_the_store_holds(lab: Lab, point: str) -> None:
    """The configuration still names columns as they were called before; by these names they cannot be found any more."""
    if not point.startswith({"redis": "cache", "opensearch": "search"}.get(lab.kind, "nowhere")):
        pytest.skip("another kind's")
    said: dict[str, Any] = {"columns": ["id", "name", "zip"], "rename": {"name": "title"}}
    store = loaded(lab, **said)
    change = schema(LATER, 4)
    lab.log.put(change)
    given = store.log.holding("public.people").batch(change)
    with armed(point), pytest.raises((OSError, StoreError)):
        store.sink.apply(given)
    store = HeldStore(lab, **said)
    store.sink.apply(given)
    store.commit(4)
    assert names(store.sink) == ("id", "title")
    store.expect(LATER, [{**{name: row.get(name) for name in LATER.names}, "full_name": row["name"]} for row in ROWS])


def test_exclude_lets_new_columns_in_and_keeps_a_renamed_one_out(lab: Lab) -> None:
    store = loaded(lab, exclude=["name", "zip"])
    assert names(store.sink) == ("id", "city", "cost", "more")
    store.expect(TABLE, ROWS)
    store.feed(schema(LATER, 4))
    store.commit(4)
    assert names(store.sink) == ("id", "city", "cost", "more", "added")
    rows: list[Row] = [{**{name: row.get(name) for name in LATER.names}, "full_name": row["name"]} for row in ROWS]
    more: Row = {**rows[0], "id": "9", "added": "new"}
    store.feed(upserts(LATER, 5, [more]))
    store.commit(5)
    store.expect(LATER, [*rows, more])


def test_objects_and_a_key_that_only_names_the_row(lab: Lab) -> None:
    if lab.kind == "iceberg":
        with pytest.raises(ValueError, match="has columns, not objects"):
            HeldStore(lab, rename=ADDRESS)
    if lab.kind not in OBJECTS:
        return
    said: dict[str, Any] = {"columns": ["name", "city", "zip", "more"], "rename": ADDRESS}
    probe = lab.sink(tables={"public.people": said})._options if lab.kind != "console" else None
    if probe is None or not probe.keys_apart:
        with pytest.raises(ConfigError, match="id cannot be left out"):
            loaded(lab, **said)
        said["columns"] = ["id", *said["columns"]]
        store = HeldStore(lab, **said)
    else:
        store = HeldStore(lab, **said)
    lab.log.put(upserts(TABLE, 1, ROWS))
    store.prepare(TABLE)
    store.feed(upserts(TABLE, 1, ROWS))
    store.commit(3)
    store.expect(TABLE, ROWS)
    store.feed(batch(TABLE, [(Op.DELETE, 4, ROWS[1])]))
    store.commit(4)
    store.expect(TABLE, [ROWS[0], ROWS[2]])
    # One member goes, another is renamed at the source: the object stays what it is to be.
    store.feed(schema(LATER, 5))
    store.commit(5)
    rows: list[Row] = [{**{name: row.get(name) for name in LATER.names}, "full_name": row["name"]} for row in (ROWS[0], ROWS[2])]
    store.expect(LATER, rows)
    store.feed(batch(LATER, [(Op.TRUNCATE, 6, {})]))
    store.commit(6)
    store.expect(LATER, [])


def test_another_choice_is_refused_until_the_store_is_built_again(lab: Lab) -> None:
    if not lab.readable:
        pytest.skip("keeps nothing")
    store = loaded(lab, exclude=["cost"])
    store.sink.close()
    for said in (
        {},
        {"exclude": ["zip"]},
        {"columns": ["id", "name", "city", "zip", "more"]},
        {"exclude": ["cost"], "rename": {"zip": "code"}},
    ):
        with pytest.raises(ConfigError, match=r"holds other columns of public\.people than cdc\.toml says") as refused:
            HeldStore(lab, **said)
        assert "--rebuild" in (refused.value.hint or "")
    lab.sink().erase()
    other = HeldStore(lab, exclude=["zip"])
    assert other.sink.shape("public.people") is None
    other.prepare(TABLE)
    other.feed(upserts(TABLE, 1, ROWS))
    other.commit(3)
    other.expect(TABLE, ROWS)


def test_a_document_is_what_a_reader_would_write() -> None:
    """What stands in Redis, as text."""
    from sinks.render.jsonrows import plain_documents

    options = options_model("redis").model_validate(
        {
            "kind": "redis",
            "url": "redis://127.0.0.1:1",
            "tables": {"public.people": {"columns": ["name", *ADDRESS], "rename": ADDRESS}},
        }
    )
    from sinks.holding import bound

    holding = bound("s", options, TopicSchema.of(TABLE))
    changes = holding.batch(upserts(TABLE, 1, ROWS))
    written = plain_documents(changes, holding.held(TopicSchema.of(TABLE))).to_array().to_pylist()
    assert json.loads(written[0]) == {"name": "Ada", "address": {"city": NASTY, "zip": "50667", "more": {"a": [1.5]}}}
