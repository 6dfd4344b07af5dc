"""Tables of rows compared, as the kernel asks: NULL is equal to NULL, and 0 and -0 are two values. Pure but for the engine.

A query of the engine costs a millisecond or more, whatever its size: few rows are compared without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from cdc.views.cells import Row, rows_of
from cdc.views.state import KernelState, Replacement, conformed, quoted
from cdc.views.syntax import JoinKind

FEW: Final = 5_000
"""Rows that are compared one by one."""


def distinct(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """These columns without what is there twice."""
    found = rows.select(names)
    return found if len(found) < 2 else conformed(found.group_by(list(names)).aggregate([]), found.schema)


def in_order(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """By these columns, NULL last."""
    return rows if rows.num_rows < 2 else rows.sort_by([(name, "ascending") for name in names])


def without(state: KernelState, rows: pa.Table, others: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows that agree with none of ``others`` in these columns."""
    if not (rows.num_rows and others.num_rows):
        return rows
    if rows.num_rows + others.num_rows <= FEW:
        there = set(_tuples(others, names))
        return _kept(rows, [one not in there for one in _tuples(rows, names)])
    same = " AND ".join(_equal(rows.schema.field(one)) for one in names) or "true"
    return conformed(
        state.queried(f"SELECT r.* FROM rows_ r ANTI JOIN others a ON {same}", {"rows_": rows, "others": others}), rows.schema
    )


def netted(state: KernelState, change: Replacement) -> Replacement:
    """Without the rows that are equal before and after."""
    names = change.before.schema.names
    return Replacement(without(state, change.before, change.after, names), without(state, change.after, change.before, names))


def _kept(rows: pa.Table, wanted: Sequence[bool]) -> pa.Table:
    return rows if all(wanted) else rows.filter(pa.array(wanted, pa.bool_()))


def _tuples(rows: pa.Table, names: Sequence[str]) -> list[Row]:
    return rows_of(rows, names) if names else [()] * rows.num_rows


def _equal(field: pa.Field) -> str:
    name = quoted(field.name)
    if pa.types.is_floating(field.type):
        return f"CAST(r.{name} AS VARCHAR) IS NOT DISTINCT FROM CAST(a.{name} AS VARCHAR)"
    return f"r.{name} IS NOT DISTINCT FROM a.{name}"


def joined(kind: JoinKind, left: pa.Table, right: pa.Table, on: Sequence[tuple[str, str]]) -> pa.Table:
    """The columns of both, for each pair of rows that agree in ``on``, where NULL agrees with nothing; beside rows without a partner there is NULL."""
    lefts, rights = rows_of(left, [a for a, _ in on]), rows_of(right, [b for _, b in on])
    places: dict[Row, list[int]] = {}
    for place, value in enumerate(rights):
        if None not in value:
            places.setdefault(value, []).append(place)
    pairs: list[tuple[int | None, int | None]] = []
    alone: list[int | None] = [None] if kind in ("left", "full") else []
    for place, value in enumerate(lefts):
        pairs += [(place, other) for other in places.get(value, alone)]
    if kind in ("right", "full"):
        there = set(lefts)
        pairs += [(None, place) for place, value in enumerate(rights) if value not in there or None in value]
    takes = [pa.array([pair[side] for pair in pairs], pa.int64()) for side in (0, 1)]
    columns = [*left.take(takes[0]).columns, *right.take(takes[1]).columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*left.schema, *right.schema]))
