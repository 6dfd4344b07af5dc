"""Columns that a SQL store adds to its tables, in Postgres and in DuckDB: which rows are deleted, and when a row was written."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from cdc.errors import ConfigError
from cdc.model.batch import Op
from cdc.model.topic import TopicSchema
from tests.contract.labs import Lab
from tests.contract.rows import ORDERS, batch, order, schema, upserts
from tests.contract.test_marks import bring, step
from tests.contract.test_rebuild import rebuild
from tests.contract.test_sinks import held
from tests.integration.sqllabs import Ask, ask, lab

__all__ = ["ask", "lab"]

OWN = {"deleted": "is_deleted", "loaded_at": "loaded at"}


STATE = "select id, is_deleted from public.orders order by id"


def test_a_deleted_row_stays_marked_until_it_comes_back_and_no_audit_sees_it(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    step(lab, sink, batch(ORDERS, [(Op.DELETE, 4, order(2)), (Op.UPDATE, 5, order(3, "paid"))]))
    assert ask(STATE) == [(1, False), (2, True), (3, False)]
    assert held(sink, ORDERS) == [order(1), order(3, "paid")]
    keys = [row["id"] for row in held(sink, ORDERS)]
    assert keys == ["1", "3"]
    step(lab, sink, batch(ORDERS, [(Op.INSERT, 6, order(2, "back")), (Op.DELETE, 7, order(9)), (Op.DELETE, 8, order(1))]))
    assert ask(STATE) == [(1, True), (2, False), (3, False)]
    assert held(sink, ORDERS) == [order(2, "back"), order(3, "paid")]
    step(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 9, {})]), upserts(ORDERS, 10, [order(3, "again")]))
    assert ask(STATE) == [(1, True), (2, True), (3, False)]
    assert held(sink, ORDERS) == [order(3, "again")]
    rebuild(lab, **OWN).close()
    assert ask(STATE) == [(1, True), (2, True), (3, False)], "built again over what is there"


def test_the_time_of_loading_is_when_it_was_written(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2)]))
    times = 'select id, "loaded at" from public.orders order by id'
    first = dict(ask(times))
    assert abs((first[1] - dt.datetime.now(dt.UTC)).total_seconds()) < 600
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 3, order(1, "paid")), (Op.DELETE, 4, order(2))]))
    assert all(later > first[key] for key, later in ask(times)), "of the deletion, too"


def test_a_change_of_definition_keeps_them(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2)]))
    step(lab, sink, batch(ORDERS, [(Op.DELETE, 3, order(2))]))
    renamed = replace(ORDERS, columns=tuple(replace(c, name="state") if c.name == "status" else c for c in ORDERS.columns))
    step(lab, sink, schema(renamed, 4), upserts(renamed, 5, [{**order(3), "state": "new"}]))
    assert ask(STATE) == [(1, False), (2, True), (3, False)]
    assert len(held(sink, renamed)) == 2


def test_a_column_of_the_source_of_that_name_is_refused_and_a_changed_name_is_another_shape(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"public\.orders has a column status itself"):
        lab.sink(deleted="status").foresee([TopicSchema.of(ORDERS)])
    topic = TopicSchema.of(ORDERS)
    assert lab.sink(**OWN).options.shaping_of(topic) != lab.sink().options.shaping_of(topic)


def test_one_table_may_have_other_names(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**OWN, tables={"public.orders": {"deleted": "gone"}})
    bring(lab, sink)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2)]))
    step(lab, sink, batch(ORDERS, [(Op.DELETE, 3, order(2))]))
    assert ask("select id, gone from public.orders order by id") == [(1, False), (2, True)]
