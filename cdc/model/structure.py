"""The structure of a column's type: elements, attributes, bounds. Pure.

Of the server's own types the OID says it. Of every other type the catalog does, and ``Column.structure`` keeps it as JSON
(``cdc.model.typefacts`` makes it):

==========================  ======================================================
``23``                      the server's own type with this OID
``"hstore"``                an extension's type that is known by its name
``{"array": …, "by": ";"}`` an array of it; ``by`` is left out where it is the comma
``{"row": [["a", …], …]}``  a composite type: its attributes by name, in order
``{"range": …}``            a range over it; ``{"multirange": …}``
==========================  ======================================================

An empty text is a type whose values are plain text to us (an enum, citext, geometry …), or one of which nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from cdc.model import pgtypes
from cdc.model.table import Column

FIRST_OWN_TYPE: Final = 10_000
"""FirstGenbkiObjectId: types below it are the server's own, the same in every database; pgoutput names every other in a TYPE message
before it is used."""
HSTORE: Final = "hstore"


class ScalarType(StrEnum):
    """Types of single values. TEXT for all that is plain text to us and that the database defines."""

    BOOL = "bool"
    BPCHAR = "bpchar"
    BYTEA = "bytea"
    DATE = "date"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    INTERVAL = "interval"
    JSON = "json"
    JSONB = "jsonb"
    NAME = "name"
    NUMERIC = "numeric"
    OID = "oid"
    POINT = "point"
    TEXT = "text"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    VARCHAR = "varchar"
    XML = "xml"
    OTHER = "other"
    """One of the server's own that nobody treats in a way of its own."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. ``which``: of the OTHER types, as two of them are two."""

    type: ScalarType
    which: int = 0


@dataclass(frozen=True, slots=True)
class Hstore:
    """Text to text, or to nothing."""


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array of any number of dimensions. ``delimiter``: between its elements (pg_type.typdelim)."""

    element: Structure
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Composite:
    """A row type: its attributes' names and structures, in order."""

    attributes: tuple[tuple[str, Structure], ...]


@dataclass(frozen=True, slots=True)
class RangeOf:
    """A range between two bounds."""

    bound: Structure


@dataclass(frozen=True, slots=True)
class MultirangeOf:
    """A set of ranges."""

    bound: Structure


Structure = Scalar | Hstore | ArrayOf | Composite | RangeOf | MultirangeOf

_TEXT: Final = Scalar(ScalarType.TEXT)

_SCALARS: Final[Mapping[int, ScalarType]] = {
    getattr(pgtypes, known.name): known for known in ScalarType if known is not ScalarType.OTHER
}
_OIDS: Final[Mapping[ScalarType, int]] = {known: oid for oid, known in _SCALARS.items()}
_NAMED: Final[Mapping[str, ScalarType]] = {str(known): known for known in _SCALARS.values()}

# Array type → element type, of the server's own (pg_type.typarray).
_ARRAYS: Final[Mapping[int, int]] = {
    143: 142, 199: 114, 271: 5069, 629: 628, 651: 650, 719: 718, 775: 774, 791: 790, 1000: 16, 1001: 17, 1002: 18, 1003: 19, 1005: 21,
    1006: 22, 1007: 23, 1008: 24, 1009: 25, 1010: 27, 1011: 28, 1012: 29, 1013: 30, 1014: 1042, 1015: 1043, 1016: 20, 1017: 600,
    1018: 601, 1019: 602, 1020: 603, 1021: 700, 1022: 701, 1027: 604, 1028: 26, 1034: 1033, 1040: 829, 1041: 869, 1115: 1114,
    1182: 1082, 1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700, 1270: 1266, 1561: 1560, 1563: 1562, 2201: 1790, 2207: 2202, 2208: 2203,
    2209: 2204, 2210: 2205, 2211: 2206, 2949: 2970, 2951: 2950, 3221: 3220, 3643: 3614, 3645: 3615, 3735: 3734, 3770: 3769, 3807: 3802,
    3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 4073: 4072, 4090: 4089, 4097: 4096, 4192: 4191, 5039: 5038,
    6150: 4451, 6151: 4532, 6152: 4533, 6153: 4534, 6155: 4535, 6157: 4536,
}  # fmt: skip
_OF_ELEMENTS: Final[Mapping[int, int]] = {element: array for array, element in _ARRAYS.items()}
_RANGES: Final[Mapping[int, int]] = {3904: 23, 3906: 1700, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20}
_MULTIRANGES: Final[Mapping[int, int]] = {4451: 23, 4532: 1700, 4533: 1114, 4534: 1184, 4535: 1082, 4536: 20}
_BOX_ARRAY: Final = 1020
"""The one of them whose elements are not separated by commas."""


def array_oid(element: ScalarType) -> int:
    """The type number of the server's own arrays of these values. Raises KeyError for one of OTHER types."""
    return _OF_ELEMENTS[_OIDS[element]]


def structure_of(column: Column) -> Structure:
    """The structure of the column's type."""
    return _decoded(column.structure) if column.structure else of_oid(column.type_oid)


def of_oid(oid: int) -> Structure:
    """The structure of one of the server's own types; plain text for any other."""
    if oid in _ARRAYS:
        return ArrayOf(of_oid(_ARRAYS[oid]), ";" if oid == _BOX_ARRAY else ",")
    if oid in _RANGES:
        return RangeOf(of_oid(_RANGES[oid]))
    if oid in _MULTIRANGES:
        return MultirangeOf(of_oid(_MULTIRANGES[oid]))
    if oid in _SCALARS:
        return Scalar(_SCALARS[oid])
    return Scalar(ScalarType.OTHER, oid) if oid < FIRST_OWN_TYPE else _TEXT


@lru_cache(maxsize=4096)
def _decoded(text: str) -> Structure:
    return decoded(json.loads(text))


def encoded(structure: Structure) -> Any:
    """The structure for JSON, without type numbers but those of OTHER types; ``decoded`` reads it."""
    match structure:
        case Scalar(ScalarType.OTHER, which):
            return which
        case Scalar(known):
            return str(known)
        case Hstore():
            return HSTORE
        case ArrayOf(element, delimiter):
            return {"array": encoded(element)} | ({} if delimiter == "," else {"by": delimiter})
        case Composite(attributes):
            return {"row": [[name, encoded(attribute)] for name, attribute in attributes]}
        case RangeOf(bound):
            return {"range": encoded(bound)}
        case MultirangeOf(bound):
            return {"multirange": encoded(bound)}


def decoded(raw: Any) -> Structure:
    """The structure that ``encoded``, or a column's text (see the module's), has in this JSON; plain text for anything else."""
    match raw:
        case int():
            return of_oid(raw)
        case {"array": element, **rest}:
            return ArrayOf(decoded(element), str(rest.get("by", ",")))
        case {"row": attributes}:
            return Composite(tuple((name, decoded(attribute)) for name, attribute in attributes))
        case {"range": bound}:
            return RangeOf(decoded(bound))
        case {"multirange": bound}:
            return MultirangeOf(decoded(bound))
        case "hstore":
            return Hstore()
        case str() if raw in _NAMED:
            return Scalar(_NAMED[raw])
    return _TEXT
