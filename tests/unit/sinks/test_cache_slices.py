"""How much of a batch the cache makes ready at once."""

from __future__ import annotations

import pyarrow as pa

from cdc.model.batch import POSITION
from sinks.cache.rowwriter import FIRST_ROWS, GROWTH, SLICE_BYTES, SLICE_ROWS, _slices
from tests.contract.rows import ORDERS, order, upserts


def slices(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(_slices([batch]))


def test_small_rows_go_by_thousands() -> None:
    count = FIRST_ROWS * 5 + SLICE_ROWS * 3 + 5
    batch = upserts(ORDERS, 1, [order(key) for key in range(count)])
    found = slices(batch)
    # The server waits for the first one, and works on each while the next is made.
    assert [len(piece) for piece in found] == [FIRST_ROWS, FIRST_ROWS * GROWTH, SLICE_ROWS, SLICE_ROWS, SLICE_ROWS, 5]
    assert pa.Table.from_batches(found).column(POSITION).to_pylist() == list(range(1, count + 1))


def test_a_little_more_than_a_slice_is_not_worth_two() -> None:
    batch = upserts(ORDERS, 1, [order(key) for key in range(2 * FIRST_ROWS + 1)])
    assert [len(piece) for piece in slices(batch.slice(1))] == [2 * FIRST_ROWS]
    assert [len(piece) for piece in slices(batch)] == [FIRST_ROWS, FIRST_ROWS + 1]


def test_large_rows_go_by_so_many_bytes_and_the_largest_alone() -> None:
    large = "x" * (SLICE_BYTES // 3 - 1000)
    assert [len(piece) for piece in slices(upserts(ORDERS, 1, [order(key, note=large) for key in range(7)]))] == [3, 3, 1]
    assert [len(piece) for piece in slices(upserts(ORDERS, 1, [order(key, note=large * 4) for key in range(3)]))] == [1, 1, 1]


def test_what_is_of_one_position_is_never_parted() -> None:
    batch = upserts(ORDERS, 1, [order(key) for key in range(3 * FIRST_ROWS)])
    positions = pa.array([*range(1, FIRST_ROWS + 1), FIRST_ROWS, *range(FIRST_ROWS + 1, 3 * FIRST_ROWS)], pa.int64())
    twice = batch.set_column(0, batch.schema.field(0), positions)
    assert [len(piece) for piece in slices(twice)] == [FIRST_ROWS + 1, 2 * FIRST_ROWS - 1]
