"""A table's strict mapping: every column is a field of the type that fits, and nothing else may enter. Pure.

The document itself (``_source``) is exact; a field is what is searched and may be coarser: a numeric is a double there, a timestamp
has milliseconds, and what a field cannot hold (NaN, infinity, years before 1) is left out of it (``ignore_malformed``). Our own fields
are indexed and stand in no ``_source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.model.batch import POSITION
from cdc.model.structure import Scalar
from cdc.model.topic import TopicField, TopicSchema
from sinks.render.jsonrows import DELETED, Style, place_of
from sinks.render.kinds import kind_of
from sinks.search import wishes
from sinks.search.fields import UNINDEXED, Field, field_of
from sinks.search.outlines import fields_in, nested_in
from sinks.search.typedfields import FULL, FULL_TEXT, KEYWORD, typed
from sinks.search.wishes import Wish

FIELDS_DEFAULT_MAX: Final = 1000
_DEFAULT_LIMITS: Final[Mapping[str, int]] = {"total_fields": FIELDS_DEFAULT_MAX, "nested_fields": 50}
"""``index.mapping.….limit`` as they are when nobody sets them."""

_OWN_FIELDS: Final[Mapping[str, Any]] = {
    POSITION: {"type": "long"},
    DELETED: {"type": "boolean", "store": True},  # stored, as it is asked of single documents
    UNINDEXED: {"type": "object", "enabled": False},
}
_GEO_POINT: Final[Mapping[str, Any]] = {"type": wishes.GEO_POINT, **wishes.GUARDS[wishes.GEO_POINT]}


def mappings(schema: TopicSchema, style: Style) -> dict[str, Any]:
    """The whole of a new index's ``mappings``."""
    return {"dynamic": "strict", "_source": {"excludes": [POSITION, DELETED]}, "properties": properties(schema, style)}


def properties(schema: TopicSchema, style: Style) -> dict[str, Any]:
    """Field → its mapping, our own fields among them."""
    fields: dict[str, Any] = {**_OWN_FIELDS}
    said = wishes.of_documents(schema, style)
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
    """Those of them of which the configuration, or the view that makes them, says something."""
    fields, said = properties(schema, style), wishes.of_documents(schema, style)
    return {name: fields[name] for name in dict.fromkeys(place_of(one, style)[0] for one in schema.fields if one.name in said)}


def limits(schema: TopicSchema, style: Style, held: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The index's settings of how many fields its mapping may have, where they have to be higher. ``held``: what it has below ``index.mapping``; ``there``: its fields,
    of which none ever goes. There is room for all of them and the columns with their members, and as much again for columns to come."""
    has_fields, wanted = there or {}, properties(schema, style)
    fields = [*has_fields.values(), *missing(wanted, has_fields).values()]
    total = max(FIELDS_DEFAULT_MAX, 10 * len(schema.fields), 2 * sum(map(fields_in, fields)))
    needed = {"total_fields": total, "nested_fields": sum(map(nested_in, fields))}
    has = {name: int(held.get(name, {}).get("limit", usual)) for name, usual in _DEFAULT_LIMITS.items()}
    return {f"mapping.{name}.limit": limit for name, limit in needed.items() if limit > has[name]}


def missing(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an index lacks; of an object that it has, those inside."""
    lacks = {name: field for name, field in wanted.items() if name not in held}
    for name in wanted.keys() & held.keys():
        if inner := missing(wanted[name].get("properties", {}), held[name].get("properties", {})):
            lacks[name] = {**({"type": "nested"} if wanted[name].get("type") == "nested" else {}), "properties": inner}
    return lacks


def contradicted(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    """The fields that an index has with another type; a field's type never changes."""
    return sorted(name for name, field in wanted.items() if name in held and _contradicts(field, held[name]))


def _contradicts(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> bool:
    if wanted.get("type", "object") != held.get("type", "object") or wanted.get("meta") != held.get("meta"):
        return True
    if wanted.get("enabled", True) != held.get("enabled", True):
        return True  # what is not looked into has no fields
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
        return {**(FULL if _is_full_text(column) else KEYWORD), "meta": {"as": "text"}}
    if field_of(kind_of(column, as_)) in (Field.FLAT, Field.FLAT_JSON):
        return {"type": "flat_object"}
    return typed(column.structure)


def _is_full_text(column: TopicField) -> bool:
    """Not of a type that the database defines: shown as text, its values are words of their own, as an enum's labels."""
    return not column.defined and isinstance(column.structure, Scalar) and column.structure.type in FULL_TEXT
