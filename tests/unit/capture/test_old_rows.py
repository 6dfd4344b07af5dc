"""Old rows under REPLICA IDENTITY FULL, from the wire to the batch's column of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.capture.definitions import Definitions
from cdc.errors import ProtocolError
from cdc.model.batch import BEFORE, OP, POSITION, table_of
from cdc.model.facts import FactColumn, Facts
from cdc.model.table import Table
from tests.contract.rows import TYPES
from tests.unit.capture import wire
from tests.unit.capture.test_decoder import ORDERS, Run

LONG = "x" * 3_000


def full(table: Table) -> Table:
    """As the stream describes it: each column is part of the identity."""
    return replace(table, identity="f", columns=tuple(replace(column, key=True) for column in table.columns))


FULL = full(ORDERS)


def keyed(table: Table = ORDERS, *, partitioned: bool = False) -> Run:
    """A capture whose catalog knows the table, and that its first column is the key."""
    columns = tuple(FactColumn(n, c.name, c.type_oid, c.typmod, "", "", False, "1") for n, c in enumerate(table.columns, 1))
    facts = Facts(table.oid, table.schema, table.name, partitioned, "f", columns, (1,), {})
    return Run(definitions=Definitions(lambda _: facts, facts={table.oid: facts}))


def transaction(*messages: bytes, at: int = 100) -> bytes:
    return wire.begin(1, at) + b"".join(messages) + wire.commit(at, at + 10)


def batches(run: Run) -> list[pa.RecordBatch]:
    return [batch for group in run.groups for batch in group.batches]


def replaced(run: Run) -> list[tuple[str, Mapping[str, Any] | None]]:
    """(operation, old row) of each change, in position order."""
    found = {}
    for batch in batches(run):
        for row in batch.to_pylist():
            old = row.get(BEFORE) or [None]
            assert len(old) == 1
            found[row[POSITION]] = chr(row[OP]), None if old[0] is None else {n: v for n, v in old[0].items() if n != "_cdc_exact"}
    return [found[position] for position in sorted(found)]


def test_updates_and_deletes_bring_the_row_that_they_replaced() -> None:
    run = keyed()
    run.feed(
        transaction(
            wire.relation(FULL),
            wire.insert(FULL.oid, ["1", "new"]),
            wire.update(FULL.oid, ["1", "paid"], old=["1", "new"]),
            wire.update(FULL.oid, ["1", None], old=["1", "paid"]),
            wire.delete(FULL.oid, old=["1", None]),
        )
    )
    assert replaced(run) == [
        ("c", None),
        ("u", {"id": 1, "status": "new"}),
        ("u", {"id": 1, "status": "paid"}),
        ("d", {"id": 1, "status": None}),
    ]


def test_of_a_changed_key_the_delete_has_the_old_row() -> None:
    run = keyed()
    run.feed(transaction(wire.relation(FULL), wire.update(FULL.oid, ["2", "paid"], old=["1", "new"])))
    assert replaced(run) == [("d", {"id": 1, "status": "new"}), ("u", None)]


def test_unchanged_toast_stands_in_the_old_row_whole() -> None:
    run = keyed()
    run.feed(
        transaction(
            wire.relation(FULL),
            wire.update(FULL.oid, ["1", wire.UNCHANGED], old=["1", LONG]),
            wire.update(FULL.oid, ["1", "short"], old=["1", LONG]),
        )
    )
    assert replaced(run) == [("u", {"id": 1, "status": LONG})] * 2
    assert [row[3] for row in run.rows] == [(1, LONG), (1, "short")]


def test_an_old_row_with_a_value_left_out_is_not_known() -> None:
    run = keyed()
    run.feed(
        transaction(
            wire.relation(FULL),
            wire.update(FULL.oid, ["1", "a"], old=["1", wire.UNCHANGED]),
            wire.update(FULL.oid, ["1", "b"], old=["1", "a"]),
            wire.delete(FULL.oid, key=["1", None]),
        )
    )
    assert replaced(run) == [("u", None), ("u", {"id": 1, "status": "a"}), ("d", None)]


def test_of_a_partitioned_table_nobody_knows_whether_an_old_row_is_whole() -> None:
    run = keyed(partitioned=True)
    run.feed(
        transaction(wire.relation(FULL), wire.update(FULL.oid, ["2", "a"], old=["1", None]), wire.delete(FULL.oid, old=["2", None]))
    )
    assert replaced(run) == [("d", None), ("u", None), ("d", None)]


def test_a_table_that_is_described_anew_keeps_old_rows_from_there() -> None:
    run = keyed()
    run.feed(transaction(wire.relation(FULL), wire.update(FULL.oid, ["1", "b"], old=["1", "a"])))
    run.feed(
        transaction(wire.relation(ORDERS), wire.update(ORDERS.oid, ["1", "c"]), wire.delete(ORDERS.oid, key=["1", None]), at=200)
    )
    run.feed(transaction(wire.relation(FULL), wire.insert(FULL.oid, ["1", "d"]), wire.delete(FULL.oid, old=["1", "d"]), at=300))
    assert replaced(run) == [
        ("u", {"id": 1, "status": "a"}),
        ("s", None),
        ("u", None),
        ("d", None),
        ("s", None),
        ("c", None),
        ("d", {"id": 1, "status": "d"}),
    ]
    with_column = [(table_of(batch.schema).identity, BEFORE in batch.schema.names) for batch in batches(run) if len(batch) > 1]
    assert with_column == [("d", False), ("f", True)]


@pytest.mark.parametrize("table", [ORDERS, FULL], ids=["default", "full without a key"])
def test_where_the_key_is_all_that_came_nothing_is_added(table: Table) -> None:
    run = Run()
    gone = wire.delete(table.oid, key=["1", None]) if table is ORDERS else wire.delete(table.oid, old=["1", "a"])
    run.feed(transaction(wire.relation(table), wire.insert(table.oid, ["1", "a"]), gone))
    assert all(BEFORE not in batch.schema.names for batch in batches(run))


def test_old_values_of_every_kind_are_what_new_ones_are() -> None:
    texts = ["a", "1", "2", "3", "t", "0.5", "Infinity", "1.10", "2.5", "1e400", "infinity", "12:00:00", "2000-01-01 00:00:00.5"]
    texts += ["2000-01-01 00:00:00+00 BC", "\\x00ff", "{}", '{"a": 1}', "a" * 8, "{a,b}", 'é "quoted"', "_"]
    run = keyed(TYPES)
    described = full(replace(TYPES, columns=tuple(replace(column, type_name="") for column in TYPES.columns)))
    nothing: list[wire.Value] = ["a", *[None] * (len(texts) - 1)]
    run.feed(
        transaction(
            wire.relation(described),
            wire.insert(TYPES.oid, texts),
            wire.update(TYPES.oid, nothing, old=texts),
            wire.update(TYPES.oid, texts, old=nothing),
        )
    )
    (batch,) = batches(run)
    inserted, emptied, filled = batch.to_pylist()
    own = ["_cdc_exact", *TYPES.names]
    assert emptied[BEFORE] == [{name: inserted[name] for name in own}]
    assert {"day", "at utc"} <= dict(inserted["_cdc_exact"]).keys(), "some that no Arrow type holds"
    assert filled[BEFORE] == [{name: emptied[name] for name in own}]


def test_an_old_row_that_is_torn_is_our_error() -> None:
    for cut in range(1, 12):
        message = wire.update(FULL.oid, ["1", "b"], old=["1", "a"])
        body = message[5:-cut]
        with pytest.raises(ProtocolError):
            keyed().feed(wire.begin(1, 100) + wire.relation(FULL) + wire.frame(body) + wire.commit(100, 110))
