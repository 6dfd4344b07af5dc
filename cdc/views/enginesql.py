"""Names and types in the engine's SQL. Pure."""

from __future__ import annotations

from typing import Final

import pyarrow as pa


def quoted(name: str) -> str:
    """A name in the engine's SQL."""
    return '"' + name.replace('"', '""') + '"'


_ENGINE: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.binary(): "BLOB",
    pa.utf8(): "VARCHAR",
}


def engine_type(kind: pa.DataType) -> str:
    """The engine's type that holds this Arrow type's values. Raises KeyError."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _ENGINE[kind]
