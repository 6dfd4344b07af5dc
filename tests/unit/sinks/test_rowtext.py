"""Keys as text: few rows and many rows are put together by different code, to the same keys."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from sinks.rowtext import FEW_ROWS, join_key

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
