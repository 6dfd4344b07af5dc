"""How much of a batch the cache makes ready at once."""

from __future__ import annotations

import pyarrow as pa

from cdc.model.batch import POSITION, last_position
from sinks.cache.keytemplate import bind
from sinks.cache.ledger import Projection
from sinks.cache.values import form_of
from sinks.cache.writing import FIRST_ROWS, GROWTH, SLICE_BYTES, SLICE_ROWS, _Making, _slices
from tests.contract.rows import ORDERS, order, upserts


def slices(batch: pa.RecordBatch) -> list[tuple[int | None, pa.RecordBatch]]:
    making = _Making(bind("order:{id}", ORDERS), form_of(Projection("order:{id}", "json")), 0)
    return [(one.after, piece) for one, piece in _slices(making, [batch])]


def test_small_rows_go_by_thousands_and_each_slice_says_what_came_before() -> None:
    count = FIRST_ROWS * 5 + SLICE_ROWS * 3 + 5
    batch = upserts(ORDERS, 1, [order(key) for key in range(count)])
    found = slices(batch)
    # The server waits for the first one, and works on each while the next is made.
    assert [len(piece) for _, piece in found] == [FIRST_ROWS, FIRST_ROWS * GROWTH, SLICE_ROWS, SLICE_ROWS, SLICE_ROWS, 5]
    assert [after for after, _ in found] == [0, *(last_position(piece) for _, piece in found[:-1])]
    assert pa.Table.from_batches([piece for _, piece in found]).column(POSITION).to_pylist() == list(range(1, count + 1))


def test_a_little_more_than_a_slice_is_not_worth_two() -> None:
    batch = upserts(ORDERS, 1, [order(key) for key in range(2 * FIRST_ROWS + 1)])
    assert [len(piece) for _, piece in slices(batch.slice(1))] == [2 * FIRST_ROWS]
    assert [len(piece) for _, piece in slices(batch)] == [FIRST_ROWS, FIRST_ROWS + 1]


def test_large_rows_go_by_so_many_bytes_and_the_largest_alone() -> None:
    large = "x" * (SLICE_BYTES // 3 - 1000)
    assert [len(piece) for _, piece in slices(upserts(ORDERS, 1, [order(key, note=large) for key in range(7)]))] == [3, 3, 1]
    assert [len(piece) for _, piece in slices(upserts(ORDERS, 1, [order(key, note=large * 4) for key in range(3)]))] == [1, 1, 1]
