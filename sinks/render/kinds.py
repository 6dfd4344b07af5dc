"""The kinds of JSON that columns' values become. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from cdc.model.display import As
from cdc.model.pgtypes import (
    BOOL,
    BYTEA,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    OID,
    POINT,
    TIMESTAMP,
    TIMESTAMPTZ,
)
from cdc.model.structure import ArrayOf, Composite, Hstore, MultirangeOf, RangeOf, Scalar, Structure, structure_of
from cdc.model.table import Column


class Leaf(Enum):
    """One value."""

    TEXT = "a string of Postgres's text"
    NUMBER = "a number; NaN and infinities as strings"
    BOOL = "true or false"
    MOMENT = "a string in ISO 8601; infinities, years before 1 and beyond 9999 as Postgres's text"
    BYTES = "a string in base64"
    INTERVAL = "a string in ISO 8601"
    JSON = "itself"
    JSONB = "itself, and no name comes twice in an object"
    LOOSE_JSON = "itself where it is JSON, else a string"
    POINT = '{"x": …, "y": …}'


@dataclass(frozen=True, slots=True)
class List:
    """An array, of any number of dimensions."""

    element: Kind
    delimiter: str


@dataclass(frozen=True, slots=True)
class Object:
    """A composite: an object of its attributes."""

    attributes: tuple[tuple[str, Kind], ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """hstore: an object of strings and nulls."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range: ``{"lower": …, "upper": …, "bounds": "[)"}`` or ``{"empty": true}``. ``many``: a multirange, an array of them."""

    bound: Kind
    many: bool = False


Kind = Leaf | List | Object | Pairs | Span

JSON_KINDS: Final = frozenset((Leaf.JSON, Leaf.JSONB, Leaf.LOOSE_JSON))

_LEAVES: Final[Mapping[int, Leaf]] = {
    **dict.fromkeys((INT2, INT4, INT8, OID, NUMERIC, FLOAT4, FLOAT8), Leaf.NUMBER),
    **dict.fromkeys((TIMESTAMP, TIMESTAMPTZ), Leaf.MOMENT),
    JSON: Leaf.JSON,
    JSONB: Leaf.JSONB,
    BOOL: Leaf.BOOL,
    BYTEA: Leaf.BYTES,
    INTERVAL: Leaf.INTERVAL,
    POINT: Leaf.POINT,
}


@lru_cache(maxsize=4096)
def kind_of(column: Column, as_: As | None = None) -> Kind:
    """``as_``: what the store's configuration says of the column."""
    if as_ == "text":
        return Leaf.TEXT
    return Leaf.LOOSE_JSON if as_ == "json" else _kind(structure_of(column))


def _kind(structure: Structure) -> Kind:
    match structure:
        case Scalar(oid):
            return _LEAVES.get(oid, Leaf.TEXT)
        case Hstore():
            return Pairs()
        case ArrayOf(element, delimiter):
            return List(_kind(element), delimiter)
        case Composite(attributes):
            return Object(tuple((name, _kind(attribute)) for name, attribute in attributes))
        case RangeOf(bound):
            return Span(_kind(bound))
        case MultirangeOf(bound):
            return Span(_kind(bound), many=True)
