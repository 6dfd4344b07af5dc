"""Arrow's values ↔ those of SQLite's cells. Pure.

Each value has one form, so that equal cells are equal values: whole numbers are themselves, texts and bytes too, moments and dates are numbers, a decimal is its
sixteen bytes and a floating number its bits (SQLite's own have no NaN, and no -0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

Row = tuple[Any, ...]

_DECIMAL: Final = pa.binary(16)
_CAST: Final[dict[pa.DataType, pa.DataType]] = {pa.bool_(): pa.int8()}
_SEEN_AS: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint64(): pa.int64(),
    pa.float32(): pa.int32(),
    pa.float64(): pa.int64(),
    pa.date32(): pa.int32(),
    pa.time64("us"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", tz="UTC"): pa.int64(),
}
_OWN: Final = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.utf8(), pa.binary()})


def rows_of(table: pa.Table, names: Sequence[str]) -> list[Row]:
    """The table's rows in these columns. Without any column there are none."""
    return list(zip(*(_cells(table.column(name)) for name in names), strict=True))


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """The table of these rows, whose cells are the schema's columns in order."""
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays([_values(cells, one.type) for cells, one in zip(columns, schema, strict=True)], schema=schema)


def refuse_unknown(kind: pa.DataType) -> None:
    """Raises KeyError for a type that has no form here."""
    if kind not in _OWN and kind not in _CAST:
        _form(kind)


def _form(kind: pa.DataType) -> pa.DataType:
    return _DECIMAL if pa.types.is_decimal128(kind) else _SEEN_AS[kind]


def _cells(column: pa.ChunkedArray) -> list[Any]:
    kind, values = column.type, column.combine_chunks()
    if kind in _CAST:
        values = values.cast(_CAST[kind])
    elif kind not in _OWN:
        values = values.view(_form(kind))
    found: list[Any] = values.to_pylist()
    return found


def _values(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind in _CAST:
        return pa.array(cells, _CAST[kind]).cast(kind)
    return pa.array(cells, kind) if kind in _OWN else pa.array(cells, _form(kind)).view(kind)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's columns of this schema, in its types. Raises KeyError for a missing column, and Arrow's error for a value that has no room."""
    if table.schema.equals(schema):
        return table
    columns = [
        table.column(one.name) if table.schema.field(one.name).type == one.type else table.column(one.name).cast(one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
