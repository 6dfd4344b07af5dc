"""A table's strict mapping: every column is a field of the type that fits, and nothing else may enter. Pure.

The document itself (``_source``) is exact; a field is what is searched and may be coarser: a numeric is a double there, a timestamp
has milliseconds, and what a field cannot hold (NaN, infinity, years before 1) is left out of it (``ignore_malformed``). Our own fields
are indexed and stand in no ``_source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.model.batch import POSITION
from cdc.model.structure import ArrayOf, MultirangeOf, RangeOf, Scalar, ScalarType, Structure
from cdc.model.topic import TopicField, TopicSchema
from sinks.render.jsonrows import DELETED, Style, place_of
from sinks.render.kinds import Leaf, kind_of, leaf_of
from sinks.search import wishes
from sinks.search.fields import UNINDEXED, Field, field_of
from sinks.search.wishes import Wish

KEYWORD_CHARACTERS_MAX: Final = 8191
"""Lucene takes terms of up to 32,766 bytes, a character has up to 4."""
TEXT_KEYWORD_CHARACTERS_MAX: Final = 1024
FIELDS_DEFAULT_MAX: Final = 1000
"""``index.mapping.total_fields.limit`` as it is when nobody sets it."""

_FULL_TEXT: Final = frozenset((ScalarType.TEXT, ScalarType.VARCHAR, ScalarType.BPCHAR, ScalarType.NAME, ScalarType.XML))
_WHOLE: Final = frozenset((ScalarType.INT2, ScalarType.INT4, ScalarType.INT8, ScalarType.OID))
_FRACTIONS: Final = frozenset((ScalarType.NUMERIC, ScalarType.FLOAT8, ScalarType.FLOAT4))
_OWN_FIELDS: Final[Mapping[str, Any]] = {
    POSITION: {"type": "long"},
    DELETED: {"type": "boolean", "store": True},  # stored, as it is asked of single documents
    UNINDEXED: {"type": "object", "enabled": False},
}
_KEYWORD: Final[Mapping[str, Any]] = {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS_MAX}
_DATE: Final[Mapping[str, Any]] = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
_DOUBLE: Final[Mapping[str, Any]] = {"type": "double", "ignore_malformed": True}
_GEO_POINT: Final[Mapping[str, Any]] = {"type": wishes.GEO_POINT, **wishes.GUARDS[wishes.GEO_POINT]}
_FULL: Final[Mapping[str, Any]] = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": TEXT_KEYWORD_CHARACTERS_MAX}},
}


def mappings(schema: TopicSchema, style: Style) -> dict[str, Any]:
    """The whole of a new index's ``mappings``."""
    return {"dynamic": "strict", "_source": {"excludes": [POSITION, DELETED]}, "properties": properties(schema, style)}


def properties(schema: TopicSchema, style: Style) -> dict[str, Any]:
    """Field → its mapping, our own fields among them."""
    fields: dict[str, Any] = {**_OWN_FIELDS}
    said = wishes.of(schema)
    for column in schema.fields:
        if column.shown:
            *way, name = place_of(column, style)
            wish = said.get(column.name, wishes.NONE)
            if wish.coordinate:
                *way, name = way
            inner = fields
            for outer in way:
                inner = inner.setdefault(outer, {"properties": {}})["properties"]
            inner[name] = {**_GEO_POINT} if wish.coordinate else _wished_field(_field(column, style), wish, column)
    return fields


def wished(schema: TopicSchema, style: Style) -> dict[str, Any]:
    """Those of them of which the configuration says something."""
    fields, said = properties(schema, style), wishes.of(schema)
    return {name: fields[name] for name in dict.fromkeys(place_of(one, style)[0] for one in schema.fields if one.name in said)}


def fields_limit(schema: TopicSchema) -> int:
    """Room for every column with its members, and as much again for columns to come."""
    return max(FIELDS_DEFAULT_MAX, 10 * len(schema.fields))


def missing(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an index lacks; of an object that it has, those inside."""
    lacks = {name: field for name, field in wanted.items() if name not in held}
    for name in wanted.keys() & held.keys():
        if inner := missing(wanted[name].get("properties", {}), held[name].get("properties", {})):
            lacks[name] = {"properties": inner}
    return lacks


def contradicted(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    """The fields that an index has with another type; a field's type never changes."""
    return sorted(name for name, field in wanted.items() if name in held and _contradicts(field, held[name]))


def _contradicts(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> bool:
    if wanted.get("type", "object") != held.get("type", "object") or wanted.get("meta") != held.get("meta"):
        return True
    if wanted.get(wishes.DIMENSION) != held.get(wishes.DIMENSION):
        return True  # of a vector: another number of numbers is another field
    return bool(contradicted(wanted.get("properties", {}), held.get("properties", {})))


def _wished_field(own: Mapping[str, Any], wish: Wish, column: TopicField) -> dict[str, Any]:
    """``own``: the field that the column's type makes."""
    if wish.fragment is None:
        return {**own}
    usual = str(own.get("type", "object"))
    wanted = str(wish.fragment.get("type", usual))
    if wanted == usual:
        return {**own, **wish.fragment}
    if wanted in ("object", "nested"):
        # What nobody has named does not make a dead letter: it is indexed as it comes or, beside named fields, kept and not searched.
        return {"dynamic": "properties" not in wish.fragment, **wish.fragment}
    if wanted == wishes.VECTOR and (dimension := wishes.dimension_of(column)) is not None:
        return {**wish.fragment, wishes.DIMENSION: dimension}
    return {**wishes.GUARDS.get(wanted, {}), **wish.fragment}


def _field(column: TopicField, style: Style) -> dict[str, Any]:
    as_ = style.as_.get(column.name)
    if as_ == "text":
        # Noted, for not every text is another field than what stands for it otherwise (an interval).
        return {**(_FULL if _is_full_text(column) else _KEYWORD), "meta": {"as": "text"}}
    if field_of(kind_of(column, as_)) in (Field.FLAT, Field.FLAT_JSON):
        return {"type": "flat_object"}
    return _typed(column.structure)


def _is_full_text(column: TopicField) -> bool:
    """Not of a type that the database defines: shown as text, its values are words of their own, as an enum's labels."""
    return not column.defined and isinstance(column.structure, Scalar) and column.structure.type in _FULL_TEXT


def _typed(structure: Structure) -> dict[str, Any]:
    match structure:
        case ArrayOf(element):
            return _typed(element)
        case RangeOf(bound) | MultirangeOf(bound):
            ends = {"lower": _bound(bound), "upper": _bound(bound)}
            return {"properties": {**ends, "bounds": {"type": "keyword"}, "empty": {"type": "boolean"}}}
        case Scalar(kind):
            return _scalar(kind)
    return {**_KEYWORD}


def _bound(structure: Structure) -> dict[str, Any]:
    """A range over something that is not a single value is kept, and searched by nothing."""
    return _typed(structure) if isinstance(structure, Scalar) else {"type": "object", "enabled": False}


def _scalar(kind: ScalarType) -> dict[str, Any]:
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
    if kind in _FULL_TEXT:
        return {**_FULL}
    return {**_KEYWORD}
