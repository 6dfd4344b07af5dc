"""Keys as text: few rows and many rows are put together by different code, to the same keys."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.batch import EXACT, EXACT_TYPE
from cdc.model.pgtypes import FEW_ROWS as FEW_FIELDS
from cdc.pgvalues.columns import exact_of
from sinks.render.rowtext import FEW_ROWS, exact_values, join_key

PARTS = (None, "", "a", ":", "\\", "a:b", "\\:", "\\N", "\\E", "é😀", "a\\", ":a")


@pytest.mark.parametrize("width", [1, 2])
def test_a_key_is_the_same_among_few_rows_and_many(width: int) -> None:
    rows = list(product(PARTS, repeat=width))
    rows *= -(-(FEW_ROWS + 1) // len(rows))
    columns = [pa.array(column, pa.utf8()) for column in zip(*rows, strict=True)]
    separator = ":" if width > 1 else ""
    together = join_key(columns, separator)
    alone = [key for at in range(len(rows)) for key in join_key([column.slice(at, 1) for column in columns], separator).to_pylist()]
    assert len(rows) > FEW_ROWS
    assert together.type == pa.utf8()
    assert together.to_pylist() == alone
    assert len(set(alone)) == len(set(rows))


@pytest.mark.parametrize("rows", [3, FEW_ROWS, FEW_ROWS + 1, FEW_FIELDS, FEW_FIELDS + 1, 100])
def test_exact_values_are_the_same_among_few_rows_and_many(rows: int) -> None:
    """What does not fit its column is put into a map per row, and found in it again; also in a slice."""
    second = np.array([row for row in range(rows) if row % 3 == 1])
    inexact = [
        ("a", np.array([0, rows - 1]), pa.array(["NaN", ""])),
        ("é", second, pa.array([f"infinity {row}" for row in second])),
    ]
    given = {name: dict(zip(where.tolist(), texts.to_pylist(), strict=True)) for name, where, texts in inexact}
    maps = exact_of(inexact, rows)
    assert maps.type == EXACT_TYPE
    assert maps.to_pylist() == [[(name, of[row]) for name, of in given.items() if row in of] or None for row in range(rows)]
    batch = pa.RecordBatch.from_arrays([maps], names=[EXACT])
    for begin in (0, 1):
        found = exact_values(batch.slice(begin))
        texts = {name: dict(zip((one.rows + begin).tolist(), one.texts.to_pylist(), strict=True)) for name, one in found.items()}
        assert texts == {name: {row: text for row, text in of.items() if row >= begin} for name, of in given.items()}
