"""A topic's fields as Postgres's types: the source's own where every value comes back as the same text, text elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc.model.structure import ArrayOf, MultirangeOf, RangeOf, Scalar, ScalarType, Structure
from cdc.model.topic import TopicField

TEXT: Final = "text"

_SCALARS: Final[Mapping[ScalarType, str]] = {
    ScalarType.BOOL: "boolean",
    ScalarType.BYTEA: "bytea",
    ScalarType.DATE: "date",
    ScalarType.FLOAT4: "real",
    ScalarType.FLOAT8: "double precision",
    ScalarType.INT2: "smallint",
    ScalarType.INT4: "integer",
    ScalarType.INT8: "bigint",
    ScalarType.INTERVAL: "interval",
    ScalarType.JSON: "json",
    ScalarType.JSONB: "jsonb",
    ScalarType.NUMERIC: "numeric",
    ScalarType.OID: "oid",
    ScalarType.POINT: "point",
    ScalarType.TIMESTAMP: "timestamp without time zone",
    ScalarType.TIMESTAMPTZ: "timestamp with time zone",
    ScalarType.UUID: "uuid",
}
"""numeric without bounds: it keeps each value's own scale, and a change of bounds at the source changes nothing here. char(n) is padded and so text;
so is xml, which a server may have been built without."""
_OTHERS: Final[Mapping[int, str]] = {
    650: "cidr", 774: "macaddr8", 829: "macaddr", 869: "inet", 1083: "time without time zone", 1266: "time with time zone",
    1562: "bit varying", 3220: "pg_lsn", 3614: "tsvector", 3615: "tsquery", 4072: "jsonpath",
}  # fmt: skip
"""Types of the server's own by their OIDs, which are the same in every database. Not money, whose text depends on the server's locale."""
_RANGES: Final[Mapping[ScalarType, str]] = {
    ScalarType.INT4: "int4range",
    ScalarType.INT8: "int8range",
    ScalarType.NUMERIC: "numrange",
    ScalarType.DATE: "daterange",
    ScalarType.TIMESTAMP: "tsrange",
    ScalarType.TIMESTAMPTZ: "tstzrange",
}


def column_type(field: TopicField) -> str:
    """The type's name as ``format_type`` gives it."""
    if field.protected:
        return TEXT  # a digest or a ciphertext
    if field.computed and not isinstance(field.structure, Scalar):
        return TEXT
    return _type_of(field.structure, defined=field.defined) or TEXT


def _type_of(structure: Structure, *, defined: bool) -> str | None:
    """``defined``: the source's database defines the type, so a range over integers may be another than the server's own."""
    match structure:
        case Scalar(ScalarType.OTHER, which):
            return None if defined else _OTHERS.get(which)
        case Scalar(kind):
            return _SCALARS.get(kind)
        case ArrayOf(Scalar(ScalarType.TEXT | ScalarType.VARCHAR), ",") if not defined:
            return f"{TEXT}[]"
        case ArrayOf(element, ",") if not defined:
            of = _type_of(element, defined=False)
            return None if of is None else f"{of}[]"
        case RangeOf(Scalar(kind)) if not defined:
            return _RANGES.get(kind)
        case MultirangeOf(Scalar(kind)) if not defined and kind in _RANGES:
            return _RANGES[kind].replace("range", "multirange")
        case _:
            return None
