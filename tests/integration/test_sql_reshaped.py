"""Changes of a definition under the tables that a SQL store keeps beside the current rows, in Postgres and in DuckDB: names and keys that meet former ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc.model.batch import Op
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.table import Column, Table
from tests.contract.labs import Lab
from tests.contract.rows import batch, schema, upserts
from tests.contract.test_marks import step
from tests.contract.test_sinks import held
from tests.integration.test_sql_history import KEPT, Ask, ask, lab

__all__ = ["ask", "lab"]
ID = Column("id", INT8, key=True, attnum=1)
LONG = "n" * 63


def orders(*columns: Column) -> Table:
    return Table(16409, "public", "orders", columns)


@pytest.mark.parametrize("names", [("note", "Note"), (LONG, LONG)], ids=["case", "long"])
def test_an_old_versions_column_gives_way_to_a_new_one_of_its_name(lab: Lab, ask: Ask, names: tuple[str, str]) -> None:
    before, after = names
    sink, both = lab.opened(**KEPT), {"id": "1", before: "x", f"b{before[1:]}": "y"}
    step(lab, sink, upserts(orders(ID, *(Column(name, TEXT, attnum=at) for at, name in enumerate(both, 1) if at > 1)), 1, [both]))
    again = {"id": "1", after: "z", f"b{after[1:]}": "z"}
    table = orders(ID, *(Column(name, TEXT, attnum=at) for at, name in enumerate(again, 3) if at > 3))
    step(lab, sink, schema(table, 2), upserts(table, 3, [again]))
    values = ask("select * from public.orders_history order by valid_from_position")
    assert [[one for one in row if one in ("x", "y", "z")] for row in values] == [["x", "y"], ["z", "z"]]
    assert held(sink, table) == [again]


def test_rows_that_are_gone_stand_in_no_new_keys_way(lab: Lab, ask: Ask) -> None:
    code = Column("code", TEXT, attnum=2)
    table, sink = orders(ID, code), lab.opened(deleted="is_deleted")
    step(lab, sink, upserts(table, 1, [{"id": "1", "code": "x"}, {"id": "2", "code": None}, {"id": "3", "code": "y"}]))
    step(
        lab,
        sink,
        batch(table, [(Op.DELETE, 4, {"id": "1"}), (Op.DELETE, 5, {"id": "2"}), (Op.INSERT, 6, {"id": "4", "code": "x"})]),
    )
    by_code = orders(replace(ID, key=False), replace(code, key=True))
    step(lab, sink, schema(by_code, 7), batch(by_code, [(Op.UPDATE, 8, {"id": "9", "code": "x"}), (Op.DELETE, 9, {"code": "y"})]))
    assert held(sink, by_code) == [{"id": "9", "code": "x"}]
    assert ask("select id, code, is_deleted from public.orders order by id") == [(3, "y", True), (9, "x", False)]


def test_of_rows_that_nothing_tells_apart_any_more_the_one_that_is_there_stays(lab: Lab) -> None:
    columns = Column("a", TEXT, key=True, attnum=1), Column("b", TEXT, key=True, attnum=2)
    table, sink = replace(orders(*columns), identity="f"), lab.opened(deleted="is_deleted")
    rows: list[Any] = [{"a": "1", "b": "x"}, {"a": "1", "b": "y"}, {"a": None, "b": "y"}]
    step(lab, sink, upserts(table, 1, rows))
    step(lab, sink, batch(table, [(Op.DELETE, 4, rows[0])]))
    narrow = replace(table, columns=columns[:1])
    step(lab, sink, schema(narrow, 5), upserts(narrow, 6, [{"a": "9"}]))
    assert sorted(str(row["a"]) for row in held(sink, narrow)) == ["1", "9", "None"]
