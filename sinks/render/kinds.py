"""The kinds of JSON that columns' values become. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from cdc.model.display import As
from cdc.model.structure import ArrayOf, Composite, Hstore, MultirangeOf, RangeOf, Scalar, ScalarType, Structure
from cdc.model.topic import TopicField


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
    GEO_POINT = '{"lon": …, "lat": …}: a point whose x is the longitude'


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

POINTS: Final = frozenset((Leaf.POINT, Leaf.GEO_POINT))
JSON_KINDS: Final = frozenset((Leaf.JSON, Leaf.JSONB, Leaf.LOOSE_JSON))

_NUMBERS: Final = (
    ScalarType.INT2,
    ScalarType.INT4,
    ScalarType.INT8,
    ScalarType.OID,
    ScalarType.NUMERIC,
    ScalarType.FLOAT4,
    ScalarType.FLOAT8,
)
_LEAVES: Final[Mapping[ScalarType, Leaf]] = {
    **dict.fromkeys(_NUMBERS, Leaf.NUMBER),
    **dict.fromkeys((ScalarType.TIMESTAMP, ScalarType.TIMESTAMPTZ), Leaf.MOMENT),
    ScalarType.JSON: Leaf.JSON,
    ScalarType.JSONB: Leaf.JSONB,
    ScalarType.BOOL: Leaf.BOOL,
    ScalarType.BYTEA: Leaf.BYTES,
    ScalarType.INTERVAL: Leaf.INTERVAL,
    ScalarType.POINT: Leaf.POINT,
}


@lru_cache(maxsize=4096)
def kind_of(column: TopicField, as_: As | None = None) -> Kind:
    """``as_``: what the store's configuration says of the column."""
    if as_ == "text":
        return Leaf.TEXT
    return Leaf.LOOSE_JSON if as_ == "json" else _kind(column.structure)


def leaf_of(kind: ScalarType) -> Leaf:
    """How a single value stands in JSON."""
    return _LEAVES.get(kind, Leaf.TEXT)


def _kind(structure: Structure) -> Kind:
    match structure:
        case Scalar(kind):
            return leaf_of(kind)
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
