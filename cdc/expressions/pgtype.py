"""The types that an expression's values can have: Postgres's, as far as their semantics are held exactly here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from cdc.model.pgtypes import MAX_DECIMAL_PRECISION
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField


@dataclass(frozen=True, slots=True)
class PgType:
    """A type by Postgres's own short name. ``bounds``: precision and scale of numeric(p,s).

    ``enum`` stands for every enum. ``opaque`` is every type whose values can only be tested for NULL here; ``label`` is then its name, for people.
    """

    name: str
    bounds: tuple[int, int] | None = None
    label: str = ""

    def __str__(self) -> str:
        if self.label:
            return self.label
        bounds = f"({self.bounds[0]},{self.bounds[1]})" if self.bounds else ""
        return SPELLED.get(self.name, self.name) + bounds

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a result, as the log holds such a column."""
        if self.name == "numeric":
            precision, scale = self.bounds or (0, 0)
            return pa.decimal128(precision, scale) if 0 <= scale <= precision <= MAX_DECIMAL_PRECISION and precision else pa.utf8()
        return _ARROW.get(self.name, pa.utf8())


BOOL: Final = PgType("bool")
INT2: Final = PgType("int2")
INT4: Final = PgType("int4")
INT8: Final = PgType("int8")
FLOAT4: Final = PgType("float4")
FLOAT8: Final = PgType("float8")
NUMERIC: Final = PgType("numeric")
TEXT: Final = PgType("text")
UUID: Final = PgType("uuid")
DATE: Final = PgType("date")
TIMESTAMP: Final = PgType("timestamp")
TIMESTAMPTZ: Final = PgType("timestamptz")
JSONB: Final = PgType("jsonb")
ENUM: Final = PgType("enum")
UNKNOWN: Final = PgType("unknown")
"""A quoted constant, or NULL, whose type is not decided yet."""

INTEGERS: Final = (INT2, INT4, INT8)
FLOATS: Final = (FLOAT4, FLOAT8)
NUMBERS: Final = (*INTEGERS, NUMERIC, *FLOATS)

SPELLED: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
}
"""What a type is called in SQL, where that is another word."""

NAMES: Final = {
    **{name: PgType(name) for name in ("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "uuid", "date")},
    **{name: PgType(name) for name in ("timestamp", "timestamptz", "jsonb")},
    "boolean": BOOL,
    "smallint": INT2,
    "integer": INT4,
    "int": INT4,
    "bigint": INT8,
    "real": FLOAT4,
    "double precision": FLOAT8,
    "float": FLOAT8,
    "decimal": NUMERIC,
    "dec": NUMERIC,
    "varchar": TEXT,
    "character varying": TEXT,
    "timestamp without time zone": TIMESTAMP,
    "timestamp with time zone": TIMESTAMPTZ,
}
"""The types that a cast may name."""

_ARROW: Final = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}

_OF_SCALARS: Final = {
    ScalarType.BOOL: BOOL,
    ScalarType.INT2: INT2,
    ScalarType.INT4: INT4,
    ScalarType.INT8: INT8,
    ScalarType.FLOAT4: FLOAT4,
    ScalarType.FLOAT8: FLOAT8,
    ScalarType.NUMERIC: NUMERIC,
    ScalarType.TEXT: TEXT,
    ScalarType.VARCHAR: TEXT,
    ScalarType.UUID: UUID,
    ScalarType.DATE: DATE,
    ScalarType.TIMESTAMP: TIMESTAMP,
    ScalarType.TIMESTAMPTZ: TIMESTAMPTZ,
    ScalarType.JSONB: JSONB,
}
_SCALARS: Final = {kind.name: known for known, kind in reversed(_OF_SCALARS.items())}


def scalar_of(kind: PgType) -> ScalarType:
    """The meaning of values of a result's type. Raises KeyError for a type that no result has."""
    return _SCALARS[kind.name]


def opaque(label: str) -> PgType:
    """A type of which only NULL is known here."""
    return PgType("opaque", label=label)


def type_of(field: TopicField) -> PgType:
    """The type of a topic's field. A type that the database defines is ``own``: enums and citext look alike in the log, and compare differently.

    Such values are text to an expression only once it says ``::text``, which is the same text for both.
    """
    name = field.type_name or "a type that is not known"
    if not isinstance(field.structure, Scalar):
        return opaque(name)
    if field.defined and field.structure.type in (ScalarType.TEXT, ScalarType.OTHER):
        return PgType("own", label=name)
    found = _OF_SCALARS.get(field.structure.type)
    if found is None:
        return opaque(name)
    if found is NUMERIC and pa.types.is_decimal(field.type):
        return PgType("numeric", (field.type.precision, field.type.scale))
    return found
