"""The fields of a column of JSON whose documents a view makes: a list of objects is ``nested``, so that each object is searched by itself. Pure.

What is inside is a field as a table's column of its type is one. JSON of which nobody knows more is kept there, and searched by nothing: it could be anything,
and only at the top of a document is it wrapped (``sinks.search.fields``).
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
        case ObjectOutline(members) if members:
            return {"type": "object", "properties": _properties(members)}
        case Items(ObjectOutline(members)) if members:
            return {"type": "nested", "properties": _properties(members)}
        case Items(ScalarType() as kind):
            return scalar(kind)
    return None


def fields_in(fragment: Mapping[str, Any]) -> int:
    """The number of fields that it makes, itself among them."""
    return 1 + sum(fields_in(one) for inside in ("properties", "fields") for one in fragment.get(inside, {}).values())


def nested_in(fragment: Mapping[str, Any]) -> int:
    """How many of them are ``nested``."""
    return (fragment.get("type") == "nested") + sum(map(nested_in, fragment.get("properties", {}).values()))


def _properties(members: Mapping[str, Outline]) -> dict[str, Any]:
    return {name: scalar(one) if isinstance(one, ScalarType) else fragment_of(one) or {**_KEPT} for name, one in members.items()}
