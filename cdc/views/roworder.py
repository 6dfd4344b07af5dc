"""Rows in the order of some columns, such as a key's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def in_order(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """By these columns, NULL last."""
    if rows.num_rows < 2 or not names or _is_in_order([rows.column(one).combine_chunks() for one in names]):
        return rows
    return rows.sort_by([(name, "ascending") for name in names])


def _is_in_order(columns: Sequence[pa.Array]) -> bool:
    """Whether the rows of these columns come in their order. Those with a NULL are said not to."""
    if any(one.null_count for one in columns):
        return False
    follows = None
    for column in reversed(columns):
        one, next_one = column[:-1], column[1:]
        if follows is None:
            follows = pc.less_equal(one, next_one)
        else:
            follows = pc.or_(pc.less(one, next_one), pc.and_(pc.equal(one, next_one), follows))
    return bool(pc.all(follows).as_py())
