"""Checks of the rows that a group brings: operations, keys, and values that a topic cannot hold.
Pure; no message holds a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from cdc.inbox.arraychecks import check_arrays
from cdc.inbox.definition import type_name
from cdc.model import pgtypes
from cdc.model.batch import OP
from cdc.model.structure import ArrayOf, Scalar, of_oid
from cdc.model.table import Column, Table

UPSERT: Final = "u"
"""The row as it is from here on."""
DELETE: Final = "d"
"""The row is gone; its key's columns only."""

_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()
_LAST_US: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 10**6 + _DAY_US - 1
_BOUNDS: Final = {
    pgtypes.DATE: (pa.int32(), _FIRST_DAY, _LAST_DAY),
    pgtypes.TIME: (pa.int64(), 0, _DAY_US - 1),
    pgtypes.TIMESTAMP: (pa.int64(), _FIRST_DAY * _DAY_US, _LAST_US),
    pgtypes.TIMESTAMPTZ: (pa.int64(), _FIRST_DAY * _DAY_US, _LAST_US),
}


def check_rows(table: Table, batches: Sequence[pa.RecordBatch]) -> None:
    """Raises ValueError, naming the column and what is wrong with it."""
    for batch in batches:
        ops = batch.column(OP)
        if ops.null_count or pc.any(pc.invert(pc.is_in(ops, pa.array([UPSERT, DELETE])))).as_py():
            raise ValueError(f"{OP} is {UPSERT} or {DELETE} in every row")
        deleted = pc.equal(ops, DELETE)
        for column in table.columns:
            values = batch.column(column.name)
            if column.key:
                if values.null_count:
                    raise ValueError(f"column {column.name} of the key is NULL")
            elif pc.any(pc.and_(values.is_valid(), deleted)).as_py():
                raise ValueError(f"a deleted row carries column {column.name}, which is not in the key")
            _check_values(column, values)
    if batches:
        _check_unique(table, batches)


def _check_unique(table: Table, batches: Sequence[pa.RecordBatch]) -> None:
    keys = pa.Table.from_batches(batches).select([column.name for column in table.key])
    if keys.num_columns == 1 and _ascend(keys.column(0).combine_chunks()):
        return  # each of them once, as a view hands its rows over
    if len(keys.group_by(keys.column_names).aggregate([])) != len(keys):
        raise ValueError("a key stands in two rows; a group is one cut, in which each key changes once")


def _ascend(values: pa.Array) -> bool:
    """Whether each is greater than the one before it."""
    return bool(pc.all(pc.less(values[:-1], values[1:])).as_py())


def _check_values(column: Column, values: pa.Array) -> None:
    if column.type_oid == pgtypes.JSONB:
        try:
            check_json(values.to_pylist())
        except ValueError:
            raise ValueError(f"column {column.name} holds a text that is not JSON") from None
    structure = of_oid(column.type_oid)
    if isinstance(structure, ArrayOf) and isinstance(structure.element, Scalar):
        try:
            check_arrays(values.to_pylist(), structure.element.type)
        except ValueError:
            raise ValueError(f"column {column.name} holds a text that is not {type_name(column.type_oid)}") from None
    bounds = _BOUNDS.get(column.type_oid)
    if bounds is not None and len(values) > values.null_count:
        number, least, most = bounds
        found = pc.min_max(values.view(number))
        if found["min"].as_py() < least or found["max"].as_py() > most:
            raise ValueError(f"column {column.name} holds a time outside the years 1 to 9999")


def check_json(texts: Iterable[str | None]) -> None:
    """Raises ValueError for a text that is not JSON."""
    for text in texts:
        if text is not None:
            try:
                json.loads(text, parse_constant=_not_json, parse_int=str)
            except RecursionError:
                raise ValueError("nested too deeply") from None


def _not_json(_: str) -> NoReturn:
    raise ValueError("not a number of JSON")
