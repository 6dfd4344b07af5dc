"""Tables of rows compared, as the kernel asks: NULL is equal to NULL, and 0 and -0 are two values. Pure but for the engine.

A query of the engine costs a millisecond or more, whatever its size: few rows are compared without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.views.cells import Row, conformed, rows_of
from cdc.views.enginesql import quoted
from cdc.views.hashes import HashRun, Places, agreeing, columns_of, hashed
from cdc.views.state import KernelState, Replacement
from cdc.views.syntax import JoinKind

FEW: Final = 5_000
"""Rows that are compared one by one."""
_NOBODY: Final = -1


def distinct(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """These columns without what is there twice."""
    found = rows.select(names)
    if len(found) <= FEW:
        first = {row: place for place, row in reversed(list(enumerate(_tuples(found, names))))}
        return found if len(first) == len(found) else found.take(pa.array(sorted(first.values())))
    return conformed(found.group_by(list(names)).aggregate([]), found.schema)


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
    pairs = _few_pairs if left.num_rows + right.num_rows <= FEW else _many_pairs
    mine, theirs = pairs(left.select([a for a, _ in on]), right.select([b for _, b in on]))
    lefts, rights = [mine], [theirs]
    if kind in ("left", "full"):
        alone = _lacking(left.num_rows, mine)
        lefts, rights = [*lefts, alone], [*rights, np.full(len(alone), _NOBODY)]
    if kind in ("right", "full"):
        alone = _lacking(right.num_rows, theirs)
        lefts, rights = [*lefts, np.full(len(alone), _NOBODY)], [*rights, alone]
    columns = [*taken(left, np.concatenate(lefts)).columns, *taken(right, np.concatenate(rights)).columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*left.schema, *right.schema]))


def beside(rows: pa.Table, which: Places, partners: pa.Table, outer: bool) -> pa.Table:
    """The rows at the places ``which``, each with its partner; if ``outer``, also those without one, beside NULL."""
    if outer and len(alone := _lacking(rows.num_rows, which)):
        nobody = pa.Table.from_arrays([pa.nulls(len(alone), one.type) for one in partners.schema], schema=partners.schema)
        which, partners = np.concatenate([which, alone]), pa.concat_tables([partners, nobody])
    schema = pa.schema([*rows.schema, *partners.schema])
    return pa.Table.from_arrays([*taken(rows, which).columns, *partners.columns], schema=schema)


def taken(rows: pa.Table, places: Places) -> pa.Table:
    """The rows at these places; NULL for ``_NOBODY``."""
    if len(places) == rows.num_rows and np.array_equal(places, np.arange(len(places))):
        return rows
    return rows.take(pa.array(places, mask=places == _NOBODY))


def _lacking(rows: int, paired: Places) -> Places:
    """The places that are not among those paired."""
    alone = np.ones(rows, np.bool_)
    alone[paired] = False
    return np.flatnonzero(alone)


def _few_pairs(left: pa.Table, right: pa.Table) -> tuple[Places, Places]:
    """The places of rows that agree, one by one."""
    places: dict[Row, list[int]] = {}
    for place, value in enumerate(rows_of(right, right.column_names)):
        if None not in value:
            places.setdefault(value, []).append(place)
    lefts = rows_of(left, left.column_names)
    found = [(place, other) for place, value in enumerate(lefts) for other in places.get(value, ())]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _many_pairs(left: pa.Table, right: pa.Table) -> tuple[Places, Places]:
    """The same, by hashes."""
    lefts, rights = present(left), present(right)
    mine, theirs = columns_of(taken(left, lefts), left.column_names), columns_of(taken(right, rights), right.column_names)
    run = HashRun.of(hashed(theirs, len(rights)))
    which, places = agreeing([run], mine, len(lefts), lambda some: [one.take(pa.array(some)) for one in theirs])
    return lefts[which], rights[places]


def present(rows: pa.Table) -> Places:
    """The places of rows without a NULL."""
    there = np.ones(rows.num_rows, np.bool_)
    for column in rows.columns:
        if column.null_count:
            there &= column.is_valid().to_numpy()
    return np.flatnonzero(there)
