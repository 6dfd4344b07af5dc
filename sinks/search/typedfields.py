"""The field that fits a type of Postgres, as OpenSearch's mapping says it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.model.structure import ArrayOf, MultirangeOf, RangeOf, Scalar, ScalarType, Structure
from sinks.render.kinds import Leaf, leaf_of

KEYWORD_CHARACTERS_MAX: Final = 8191
"""Lucene takes terms of up to 32,766 bytes, a character has up to 4."""
TEXT_KEYWORD_CHARACTERS_MAX: Final = 1024

FULL_TEXT: Final = frozenset((ScalarType.TEXT, ScalarType.VARCHAR, ScalarType.BPCHAR, ScalarType.NAME, ScalarType.XML))
_WHOLE: Final = frozenset((ScalarType.INT2, ScalarType.INT4, ScalarType.INT8, ScalarType.OID))
_FRACTIONS: Final = frozenset((ScalarType.NUMERIC, ScalarType.FLOAT8, ScalarType.FLOAT4))
KEYWORD: Final[Mapping[str, Any]] = {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS_MAX}
_DATE: Final[Mapping[str, Any]] = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
_DOUBLE: Final[Mapping[str, Any]] = {"type": "double", "ignore_malformed": True}
FULL: Final[Mapping[str, Any]] = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": TEXT_KEYWORD_CHARACTERS_MAX}},
}


def typed(structure: Structure) -> dict[str, Any]:
    """That of values of this structure."""
    match structure:
        case ArrayOf(element):
            return typed(element)
        case RangeOf(bound) | MultirangeOf(bound):
            ends = {"lower": _bound(bound), "upper": _bound(bound)}
            return {"properties": {**ends, "bounds": {"type": "keyword"}, "empty": {"type": "boolean"}}}
        case Scalar(kind):
            return scalar(kind)
    return {**KEYWORD}


def _bound(structure: Structure) -> dict[str, Any]:
    """A range over something that is not a single value is kept, and searched by nothing."""
    return typed(structure) if isinstance(structure, Scalar) else {"type": "object", "enabled": False}


def scalar(kind: ScalarType) -> dict[str, Any]:
    """That of single values."""
    leaf = leaf_of(kind)
    if kind in _WHOLE:
        return {"type": "long", "ignore_malformed": True}
    if kind in _FRACTIONS:
        return {"type": "float", "ignore_malformed": True} if kind is ScalarType.FLOAT4 else {**_DOUBLE}
    if leaf is Leaf.BOOL:
        return {"type": "boolean"}
    if kind is ScalarType.DATE or leaf is Leaf.MOMENT:
        return {**_DATE}
    if leaf is Leaf.BYTES:
        return {"type": "binary"}
    if leaf is Leaf.POINT:
        return {"properties": {"x": {**_DOUBLE}, "y": {**_DOUBLE}}}
    if kind in FULL_TEXT:
        return {**FULL}
    return {**KEYWORD}
