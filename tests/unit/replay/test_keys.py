"""What a change of a table's key means for net changes and for `--key`."""

from __future__ import annotations

import dataclasses

from cdc.log.memory import MemoryReader
from cdc.model.batch import OP, Op, topic_schema
from cdc.model.pgtypes import INT4
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.replay.netchange import net_changes
from sinks.render.rowtext import row_text
from tests.contract.rows import Row, batch, schema
from tests.unit.sinks.test_past import logged

A = Column("a", INT4, -1, "int4", key=True, attnum=1)
B = Column("b", INT4, -1, "int4", attnum=2)
BY_A = Table(900, "public", "pairs", (A, B))
BY_B = dataclasses.replace(BY_A, columns=(dataclasses.replace(A, key=False), dataclasses.replace(B, key=True)))
RENAMED = dataclasses.replace(BY_A, columns=(dataclasses.replace(A, name="number"), B))


def nets(log: MemoryReader, after: int, upto: int) -> list[tuple[str, Row]]:
    return [
        (chr(op), row)
        for one in net_changes(log, "public.pairs", Position(after), Position(upto))
        for op, row in zip(
            one.changes.column(OP).to_pylist(), row_text(one.changes, topic_schema(one.changes.schema)).to_pylist(), strict=True
        )
    ]


def test_a_row_that_came_back_under_its_keys_new_name_is_not_gone() -> None:
    log = logged(
        batch(BY_A, [(Op.INSERT, 1, {"a": "1", "b": "2"})]),
        batch(BY_A, [(Op.DELETE, 2, {"a": "1"})]),
        schema(RENAMED, 3),
        batch(RENAMED, [(Op.INSERT, 4, {"number": "1", "b": "3"})]),
    )
    assert nets(log, 1, 4) == [("u", {"number": "1", "b": "3"})]


def test_a_key_that_was_another_one_in_between() -> None:
    log = logged(
        batch(BY_A, [(Op.INSERT, 1, {"a": "3", "b": "5"}), (Op.INSERT, 2, {"a": "5", "b": "9"})]),
        schema(BY_B, 3),
        batch(BY_B, [(Op.DELETE, 4, {"b": "5"})]),
        schema(BY_A, 5),
    )
    assert nets(log, 2, 5) == [("d", {"a": "3", "b": "5"})], "and not the row whose a is 5"
