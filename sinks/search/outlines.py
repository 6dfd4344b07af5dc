"""The fields of a column of JSON whose documents a view makes: a list of objects is ``nested``, so that each object is searched by itself. Pure.

What is inside is a field as a table's column of its type is one. JSON of which nobody knows more is kept there, and searched by nothing: it could be anything,
and only at the top of a document is it wrapped (``sinks.search.fields``).

To OpenSearch a name with a dot is the way to a member of an object, and one of which a part has no letters is an error, in a mapping as in a document that it looks
into. So ``a.b`` is the field ``b`` of an object ``a``; and an object is one of which nobody knows more, where a name cannot be that or two names would be one field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.model.outline import Items, ObjectOutline, Outline
from cdc.model.structure import ScalarType
from sinks.search.typedfields import scalar

_KEPT: Final[Mapping[str, Any]] = {"type": "object", "enabled": False}


def fragment_of(outline: Outline) -> Mapping[str, Any] | None:
    """The field of a column; None where it is that of JSON of which nothing is known."""
    match outline:
        case ObjectOutline(members) if fields := _properties(members):
            return {"type": "object", "properties": fields}
        case Items(ObjectOutline(members)) if fields := _properties(members):
            return {"type": "nested", "properties": fields}
        case Items(ScalarType() as kind):
            return scalar(kind)
    return None


def fields_in(fragment: Mapping[str, Any]) -> int:
    """The number of fields that it makes, itself among them."""
    return 1 + sum(fields_in(one) for inside in ("properties", "fields") for one in fragment.get(inside, {}).values())


def nested_in(fragment: Mapping[str, Any]) -> int:
    """How many of them are ``nested``."""
    return (fragment.get("type") == "nested") + sum(map(nested_in, fragment.get("properties", {}).values()))


def _properties(members: Mapping[str, Outline]) -> dict[str, Any] | None:
    """None where they cannot be the fields of one object."""
    made: dict[str, Any] = {}
    for name, outline in members.items():
        *way, last = name.split(".")
        inner = made
        for outer in way:
            around = inner.setdefault(outer, {"properties": {}})
            if around.keys() != {"properties"}:
                return None
            inner = around["properties"]
        if last in inner or not all(part.strip() for part in (*way, last)):
            return None
        inner[last] = scalar(outline) if isinstance(outline, ScalarType) else fragment_of(outline) or {**_KEPT}
    return made
