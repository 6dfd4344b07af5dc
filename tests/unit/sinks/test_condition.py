"""A condition on changes: what it sees of them and of the rows before, and what it is refused for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cdc.errors import ConfigError, StoreError
from cdc.expressions import ExpressionRefused, compile, type_of
from cdc.model.batch import Op
from cdc.model.oldrows import taken_apart, with_old_rows
from cdc.model.topic import TopicSchema
from sinks.condition import Condition, ReplacedRows, check, seen
from tests.contract.rows import NUMBERED, ORDERS, TYPES, batch, order

SCHEMA = TopicSchema.of(ORDERS)
CHANGES = batch(
    ORDERS,
    [
        (Op.INSERT, 1, order(1, "new")),
        (Op.UPDATE, 2, order(1, "paid")),
        (Op.UPDATE, 3, order(2, None)),
        (Op.UPDATE, 4, order(3, "new")),
        (Op.DELETE, 5, {"id": "4"}),
        (Op.READ, 6, order(5, "new")),
    ],
)
BEFORE = batch(
    ORDERS,
    [
        (Op.READ, 1, order(1, "new")),
        (Op.READ, 1, order(2, "new")),
        (Op.READ, 1, order(4, "gone", amount="9.00")),
    ],
)
REPLACED = ReplacedRows(np.array([False, True, True, False, True, False]), BEFORE)
"""Of the fourth change nobody knows the row before."""


@pytest.mark.parametrize(
    ("when", "true"),
    [
        ("op = 'update'", [2, 3, 4]),
        ("op IN ('insert', 'read')", [1, 6]),
        ("changed(status)", [2, 3]),
        ("changed(note, status)", [2, 3]),
        ("changed(amount)", []),
        ("NOT changed(amount)", [2, 3]),
        ("old.status = 'new'", [2, 3]),
        ("op = 'delete' AND old.amount > 5", [5]),
        ("status IS DISTINCT FROM old.status", [1, 2, 3, 4, 5, 6]),
        ("old.\"status\" = 'new' AND status = 'paid'", [2]),
        ("status = 'new' OR NULL", [1, 4, 6]),
    ],
)
def test_what_it_is_true_of(when: str, true: Sequence[int]) -> None:
    found = Condition.of("bus", when, SCHEMA).true_of(CHANGES, REPLACED)
    assert (np.flatnonzero(found) + 1).tolist() == true


def test_a_truncate_has_no_columns() -> None:
    alone = batch(ORDERS, [(Op.TRUNCATE, 1, {})])
    nothing = ReplacedRows(np.zeros(1, np.bool_))
    assert Condition.of("bus", "op = 'truncate' AND status IS NULL", SCHEMA).true_of(alone, nothing).all()
    assert not Condition.of("bus", "status = 'new' OR changed(status)", SCHEMA).true_of(alone, nothing).any()


def test_values_that_their_types_do_not_hold_are_compared_too() -> None:
    schema = TopicSchema.of(TYPES)
    rows = [{"id": "1", "day": "infinity"}, {"id": "2", "day": "0044-03-15 BC"}]
    changes = batch(TYPES, [(Op.UPDATE, at + 1, row) for at, row in enumerate(rows)])
    before = batch(TYPES, [(Op.READ, 1, row | {"day": "infinity"}) for row in rows])
    found = Condition.of("bus", "changed(day) AND old.day = 'infinity'", schema).true_of(
        changes, ReplacedRows(np.ones(2, np.bool_), before)
    )
    assert found.tolist() == [False, True]


def test_a_column_that_is_renamed_is_still_the_one_that_was_meant() -> None:
    numbered = TopicSchema.of(NUMBERED)
    condition = Condition.of("bus", "changed(status) AND old.status = 'new'", numbered)
    renamed = replace(
        NUMBERED, columns=tuple(replace(one, name="state") if one.name == "status" else one for one in NUMBERED.columns)
    )
    condition.refuse_unmet(TopicSchema.of(renamed))
    row = {name: text for name, text in order(1, "paid").items() if name != "status"}
    changes = batch(renamed, [(Op.UPDATE, 2, {**row, "state": "paid"})])
    before = batch(renamed, [(Op.READ, 1, {**row, "state": "new"})])
    assert condition.true_of(changes, ReplacedRows(np.ones(1, np.bool_), before)).all()
    without = replace(NUMBERED, columns=tuple(one for one in NUMBERED.columns if one.name != "status"))
    with pytest.raises(ConfigError, match=r"when uses changed\.status, which public\.orders no longer has"):
        condition.refuse_unmet(TopicSchema.of(without))


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("changed()", "changed takes the names of columns"),
        ("changed(old.status)", "changed takes the names of columns"),
        ("older.status = 'x'", "an expression sees one row's columns"),
        ("old.stat = 'x'", r"column old\.stat does not exist"),
        ("id", "a condition is boolean"),
    ],
)
def test_what_is_not_a_condition_is_refused(when: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check("bus", when, SCHEMA)


def test_rows_before_need_a_key() -> None:
    keyless = replace(ORDERS, identity="n", columns=tuple(replace(one, key=False) for one in ORDERS.columns))
    check("bus", "status = 'new'", TopicSchema.of(keyless))
    with pytest.raises(ConfigError, match="has no key that tells which row"):
        check("bus", "changed(status)", TopicSchema.of(keyless))


def test_a_change_of_which_it_has_no_value_is_named() -> None:
    with pytest.raises(StoreError, match=r"no value of the change public\.orders@1 \(22012\)") as failed:
        Condition.of("bus", "1 / (customer_id - 7) > 0", SCHEMA).true_of(CHANGES, REPLACED)
    assert not failed.value.retryable


def test_elsewhere_there_is_no_row_before() -> None:
    columns = {one.name: type_of(one) for one in SCHEMA.fields}
    for text in ("old.status = 'x'", "changed(status)"):
        with pytest.raises(ExpressionRefused, match="there is no row before here"):
            compile(text, columns)


def test_old_rows_go_with_their_changes_and_come_back() -> None:
    whole = with_old_rows(CHANGES, REPLACED.has, BEFORE)
    changes, has, old = taken_apart(whole)
    assert changes.equals(CHANGES)
    assert has.tolist() == REPLACED.has.tolist()
    assert old is not None
    assert old.column("status").to_pylist() == ["new", "new", "gone"]
    nothing, none, rows = taken_apart(with_old_rows(CHANGES, np.zeros(6, np.bool_), None))
    assert (len(nothing), none.any(), rows) == (6, False, None)
    assert {one.name for one in seen(SCHEMA).fields} >= {"op", "old.status", "changed.status"}
