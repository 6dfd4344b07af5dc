"""Columns that a warehouse adds to its tables: which rows are deleted, and when a row was written. Read back by Spark."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.errors import ConfigError
from cdc.model.batch import Op
from cdc.model.pgtypes import TEXT
from cdc.model.table import Column
from cdc.model.topic import TopicSchema
from tests.contract.labs import Lab
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, batch, order, schema, upserts
from tests.contract.test_marks import step
from tests.contract.test_rebuild import rebuild
from tests.integration.spark.warehouselab import Ask, ask, lab

__all__ = ["ask", "lab"]

OWN = {"deleted": "is_deleted", "loaded_at": "loaded_at"}
STATE = ("id", "status", "is_deleted")


def test_a_deleted_row_stays_marked_until_it_comes_back_and_no_audit_sees_it(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    changes = [(Op.DELETE, 4, order(2)), (Op.UPDATE, 5, order(3, "paid")), (Op.INSERT, 6, order(4)), (Op.DELETE, 7, order(4))]
    step(lab, sink, batch(ORDERS, [*changes, (Op.DELETE, 8, order(9))]))
    assert ask(*STATE) == [(1, "new", False), (2, "new", True), (3, "paid", False), (4, "new", True)]
    assert ask("id", "_cdc_position", where="is_deleted") == [(2, 4), (4, 7)]
    assert _held(sink) == [order(1), order(3, "paid")]
    step(lab, sink, batch(ORDERS, [(Op.INSERT, 9, order(2, "back")), (Op.DELETE, 10, order(4)), (Op.DELETE, 11, order(1))]))
    assert ask(*STATE) == [(1, "new", True), (2, "back", False), (3, "paid", False), (4, "new", True)]
    assert ask("id", "_cdc_position", where="is_deleted") == [(1, 11), (4, 7)], "marked once"
    step(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 12, {})]), upserts(ORDERS, 13, [order(3, "again")]))
    assert ask(*STATE) == [(1, "new", True), (2, "back", True), (3, "again", False), (4, "new", True)]
    assert ask("id", "_cdc_position", where="is_deleted") == [(1, 11), (2, 12), (4, 7)]
    assert _held(sink) == [order(3, "again")]
    assert sink.fetch(TopicSchema.of(ORDERS), _keys(1, 3)).to_pylist() == [order(3, "again")]
    before = ask(*STATE)
    rebuilt = rebuild(lab, **OWN)
    assert ask(*STATE) == before, "built again over what is there"
    assert _held(rebuilt) == [order(3, "again")]


def test_a_rebuild_says_which_file_it_could_not_read(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2)]), batch(ORDERS, [(Op.DELETE, 3, order(2))]))
    step(lab, sink, upserts(ORDERS, 4, [order(3), order(4)]), batch(ORDERS, [(Op.DELETE, 5, order(4))]))
    place = sink._opened()[2].places[ORDERS.qualified]  # type: ignore[attr-defined]
    damaged = next(path for path in place.live() if 4 in place._read(path, place.iceberg.fields).column("id").to_pylist())
    Path(damaged).write_bytes(b"no longer Parquet")
    with capture_logs() as logged:
        rebuild(lab, **OWN)
    assert [(one["log_level"], one["facts"]["file"]) for one in logged if "cannot be read" in one["event"]] == [
        ("warning", Path(damaged).name)
    ]
    assert ask(*STATE) == [(1, "new", False), (2, "new", True), (3, "new", False)]


def test_what_is_read_again_as_it_is_changes_nothing(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]), batch(ORDERS, [(Op.DELETE, 4, order(3))]))
    times = dict(ask("id", "loaded_at"))
    assert abs((times[1].astimezone(dt.UTC) - dt.datetime.now(dt.UTC)).total_seconds()) < 600
    reads = [(Op.READ, 5, order(1)), (Op.READ, 6, order(2, "other")), (Op.READ, 7, order(3))]
    step(lab, sink, batch(ORDERS, reads))
    now = dict(ask("id", "loaded_at"))
    assert [now[key] > times[key] for key in (1, 2, 3)] == [False, True, True]
    assert ask("id", "_cdc_position", "is_deleted") == [(1, 1, False), (2, 6, False), (3, 7, False)]
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 8, order(1)), (Op.DELETE, 9, order(2))]))
    assert [dict(ask("id", "loaded_at"))[key] > now[key] for key in (1, 2)] == [True, True], "of the deletion, too"


def test_a_change_of_definition_keeps_them_and_another_key_lets_them_go(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(NUMBERED, 1, [order(1), order(2)]), batch(NUMBERED, [(Op.DELETE, 3, order(2))]))
    renamed = replace(NUMBERED, columns=tuple(replace(c, name="state") if c.name == "status" else c for c in NUMBERED.columns))
    step(lab, sink, schema(renamed, 4), upserts(renamed, 5, [{**order(3), "state": "new"}]))
    assert ask("id", "state", "is_deleted") == [(1, "new", False), (2, "new", True), (3, "new", False)]
    keyed = replace(renamed, columns=tuple(replace(c, key=c.name in ("id", "state")) for c in renamed.columns))
    step(lab, sink, schema(keyed, 6), upserts(keyed, 7, [{**order(3), "state": "old"}]))
    assert ask("id", "state", "is_deleted") == [(1, "new", False), (3, "new", False), (3, "old", False)]


def test_it_may_come_later_and_takes_its_name_from_a_column_that_is_gone(lab: Lab, ask: Ask) -> None:
    had = replace(ORDERS, columns=(*ORDERS.columns, Column("loaded_at", TEXT)))
    sink = lab.opened()
    step(lab, sink, upserts(had, 1, [order(1, loaded_at="mine")]), schema(ORDERS, 2))
    sink = lab.opened(loaded_at="loaded_at")
    step(lab, sink, upserts(ORDERS, 3, [order(2)]))
    assert ask("id", "loaded_at is null") == [(1, True), (2, False)]
    gone = next(field.name for field in sink._opened()[2].places[ORDERS.qualified].iceberg.fields if "loaded_at__" in field.name)  # type: ignore[attr-defined]
    assert ask("id", gone) == [(1, "mine"), (2, None)]
    with pytest.raises(ConfigError, match=r"public\.orders has a column loaded_at itself"):
        sink.prepare(TopicSchema.of(had))


def test_a_column_of_the_source_of_that_name_is_refused_and_a_changed_name_is_another_shape(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"public\.orders has a column status itself"):
        lab.sink(deleted="status").foresee([TopicSchema.of(ORDERS)])
    topic = TopicSchema.of(ORDERS)
    shaping = [lab.sink(**options).options.shaping_of(topic) for options in ({}, OWN, {"deleted": "gone"})]  # type: ignore[attr-defined]
    assert shaping == [{}, {"deleted": "is_deleted"}, {"deleted": "gone"}]
    assert lab.sink(loaded_at="loaded_at").options.shaping_of(topic) == {}  # type: ignore[attr-defined]


def test_random_changes_mark_what_a_model_says(lab: Lab, ask: Ask, seed: int) -> None:
    chance = random.Random(seed)
    options = {"deleted": "gone", "tables": {"public.orders": {"loaded_at": "written"}}, "compact_files": 3}
    sink, position = lab.opened(**options), 0
    model: dict[Any, dict[Any, tuple[dict[str, Any], bool]]] = {ORDERS: {}, PAIRS: {}}
    for _ in range(7):
        batches = []
        for table in (ORDERS, PAIRS):
            changes: list[Any] = []
            for _ in range(chance.randrange(1, 15)):
                position += 1
                key = chance.randrange(12)
                op = chance.choice([Op.INSERT, Op.UPDATE, Op.READ, Op.DELETE, Op.DELETE])
                value = f"v{chance.randrange(3)}"
                row = order(key, value) if table is ORDERS else {"a": str(key % 3), "b": str(key // 3), "v": value}
                changes.append((op, position, row))
                if op != Op.DELETE:
                    model[table][key] = row, False
                elif key in model[table]:
                    model[table][key] = model[table][key][0], True
            batches.append(batch(table, changes))
            if chance.random() < 0.2:
                position += 1
                batches.append(batch(table, [(Op.TRUNCATE, position, {})]))
                model[table] = {key: (row, True) for key, (row, _) in model[table].items()}
        step(lab, sink, *batches)
        if chance.random() < 0.3:
            sink = lab.opened(**options)
    orders = sorted(((int(key), row["status"], gone) for key, (row, gone) in model[ORDERS].items()), key=repr)
    assert ask("id", "status", "gone") == orders
    pairs = sorted(((row["a"], row["b"], row["v"], gone) for row, gone in model[PAIRS].values()), key=repr)
    assert ask("a", "b", "v", "gone", table="public/pairs") == pairs
    for table, rows in model.items():
        live = sorted((row for row, gone in rows.values() if not gone), key=repr)
        assert sorted(_held(sink, table), key=repr) == live
    assert rebuild(lab, **options).applied() == lab.log.head
    assert ask("id", "status", "gone") == orders


def _held(sink: Any, table: Any = ORDERS) -> list[dict[str, Any]]:
    return sorted((row for part in sink.scan(TopicSchema.of(table)) for row in part.to_pylist()), key=repr)


def _keys(*keys: int) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([{"id": str(key)} for key in keys], pa.schema([pa.field("id", pa.utf8())]))
