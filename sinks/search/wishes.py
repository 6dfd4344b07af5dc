"""A user's wishes for the fields of a search index: ``mapping`` and ``geo``, and whether a column's values can be that. Pure.

A wish stands in the schema that the store holds (``sinks.holding.wishes_of``), so it follows a column that the source renames, and is part of the shape that
the index's rows have. As JSON it is ``{"mapping": {…}}``, the fragment as it was written, or ``{"geo_point": "lat"}`` for a column that is one of a
point's coordinates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cdc.errors import ConfigError
from cdc.model.outline import outline_of
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from sinks.holding import decoded, wishes_of
from sinks.render.jsonrows import Style
from sinks.render.kinds import JSON_KINDS, Kind, Leaf, List, Object, Pairs, Span
from sinks.search.outlines import fragment_of

GEO_POINT: Final = "geo_point"
LAT: Final = "lat"
LON: Final = "lon"
VECTOR: Final = "knn_vector"
DIMENSION: Final = "dimension"

_WORDS: Final = frozenset(("text", "keyword", "wildcard", "match_only_text", "search_as_you_type", "constant_keyword", "token_count", "completion"))  # fmt: skip
_NUMBERS: Final = frozenset(("long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long"))
_DATES: Final = frozenset(("date", "date_nanos"))
_PLACES: Final = frozenset((GEO_POINT, "geo_shape", "xy_point", "xy_shape"))
_OBJECTS: Final = frozenset(("object", "nested", "flat_object"))
_OTHERS: Final = frozenset(("boolean", "binary", "ip", "integer_range", "long_range", "float_range", "double_range", "date_range", "ip_range"))  # fmt: skip
_KNOWN: Final = _WORDS | _NUMBERS | _DATES | _PLACES | _OBJECTS | _OTHERS
HOLD_OBJECTS: Final = (_OBJECTS | _PLACES) - {"flat_object"}
_NEVER: Final = frozenset(("alias", "derived", "join", "percolator"))
"""Types of fields that hold no column's value."""

GUARDS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{name: {"ignore_malformed": True} for name in (*_NUMBERS, *_DATES, "ip", GEO_POINT)},
    **{name: {"ignore_above": 8191} for name in ("keyword", "wildcard")},
}
"""What a field of such a type says where the fragment does not: a value that it cannot index is left out of it, and the document stays."""


def of_mapping(fragment: Mapping[str, Any], as_: str | None) -> str:
    """The wish for a field. ``as_``: how the same table's ``as`` shows it."""
    return json.dumps({"mapping": fragment} | ({} if as_ is None else {"as": as_}), sort_keys=True, ensure_ascii=False)


def of_coordinate(which: str) -> str:
    """``which``: LAT or LON."""
    return json.dumps({GEO_POINT: which})


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish for one field. ``fragment``: what ``mapping`` says; ``coordinate``: the field is a point's latitude or longitude: its last name is,
    and what is around it the point."""

    fragment: Mapping[str, Any] | None = None
    coordinate: bool = False

    @property
    def type(self) -> str | None:
        """The type of field that is wished for."""
        return None if self.fragment is None else self.fragment.get("type")


NONE: Final = Wish()


@lru_cache(maxsize=1024)
def of(schema: TopicSchema) -> Mapping[str, Wish]:
    """Field → what is said of it, where anything is. ``schema``: as the store holds it."""
    read = {name: json.loads(wish) for name, wish in wishes_of(schema).items()}
    return {name: Wish(wish.get("mapping"), GEO_POINT in wish) for name, wish in read.items()}


def of_documents(schema: TopicSchema, style: Style) -> Mapping[str, Wish]:
    """The same, and for a column of JSON of which nothing is said, but known what a view makes of it, the fields that fit."""
    made = {name: wish for name, wish in _outlined(schema).items() if style.as_.get(name) != "text"}
    return {**made, **of(schema)}


@lru_cache(maxsize=1024)
def _outlined(schema: TopicSchema) -> Mapping[str, Wish]:
    if decoded(schema.holding).transform is not None:
        return {}  # nobody knows what it makes of a document
    plain = {one.name: fragment_of(outline_of(one.outline)) for one in schema.fields if one.outline and not one.protected}
    return {name: Wish(fragment) for name, fragment in plain.items() if fragment is not None}


def is_vector(column: TopicField) -> bool:
    """Whether it is a column of pgvector's type ``vector``, whose text is a JSON array of numbers."""
    return column.defined and column.type_name.rpartition(".")[2] == "vector" and column.structure == Scalar(ScalarType.TEXT)


def dimension_of(column: TopicField) -> int | None:
    """That of a column of type ``vector``; None where its type does not say it."""
    modifier = column.source_type.rpartition(".")[2]
    return int(modifier) if is_vector(column) and modifier.isdecimal() and int(modifier) else None


def check_fragment(fragment: Mapping[str, Any]) -> None:
    """Checks what can be seen without the column. Raises ValueError."""
    kind = fragment.get("type")
    if "copy_to" in fragment:
        raise ValueError("copy_to would fill a field that no column has")
    if kind in _NEVER:
        raise ValueError(f"a field of type {kind} holds no column's value")
    if kind is not None and not isinstance(kind, str):
        raise ValueError("type is not a text")
    json.dumps(fragment, allow_nan=False)


def check(store: str, schema: TopicSchema, kinds: Mapping[str, Kind]) -> None:
    """``kinds``: of the columns' values. Raises ConfigError where a column's values can never be what is wished for."""
    where = f'stores.{store}.tables."{schema.topic}"'
    said = of(schema)
    for column in (one for one in schema.fields if one.name in said):
        wish = said[column.name]
        if wish.coordinate:
            if kinds[column.name] is not Leaf.NUMBER:
                raise ConfigError(f"{where}.geo: {column.column_name} is not a number", hint="name a column with degrees")
            beside = [one for one in schema.fields if _inside(one, column.path[:-1]) and not said.get(one.name, NONE).coordinate]
            if beside:
                name = ".".join(column.path[:-1])
                raise ConfigError(
                    f"{where}.geo: {beside[0].column_name} cannot stand in {name}, which is a point", hint="rename it otherwise"
                )
        elif wish.type == VECTOR and (why := _no_vector(column, kinds[column.name], wish.fragment or {})):
            raise ConfigError(
                f"{where}.mapping: {column.name} {why}",
                hint=f'for example {column.name} = {{ type = "{VECTOR}", {DIMENSION} = {dimension_of(column) or 384} }}',
            )
        elif wish.fragment is not None and (why := _unfit(column, kinds[column.name], wish.fragment)):
            raise ConfigError(
                f"{where}.mapping: {column.name} {why}", hint="leave `type` out, or choose one that its values can be"
            )


def _inside(column: TopicField, around: tuple[str, ...]) -> bool:
    return column.path[: len(around)] == around


def _no_vector(column: TopicField, kind: Kind, fragment: Mapping[str, Any]) -> str:
    numbers = isinstance(kind, List) and kind.element is Leaf.NUMBER
    if not numbers and kind not in JSON_KINDS:
        return f"is {_said(column)}, and never an array of numbers"
    said, own = fragment.get(DIMENSION), dimension_of(column)
    if own is None and said is None and "model_id" not in fragment:
        return f"has no {DIMENSION}: its type does not say how many numbers a vector has"
    return f"is {column.type_name}({own}), so {DIMENSION} = {said} fits no row" if own and said not in (None, own) else ""


def _unfit(column: TopicField, kind: Kind, fragment: Mapping[str, Any]) -> str:
    wanted = fragment.get("type")
    if isinstance(kind, Span):
        ok = fragment == {"type": "object", "enabled": False} or fragment == {"enabled": False}
        return "" if ok else "is a range, an object of its bounds: of its mapping only enabled = false can be chosen"
    if wanted is None or wanted not in _KNOWN:
        return ""  # the cluster knows
    return "" if wanted in _fit(column, kind) else f"is {_said(column)}, and never a value of type {wanted}"


def _fit(column: TopicField, kind: Kind) -> frozenset[str]:
    while isinstance(kind, List):
        kind = kind.element
    if kind in JSON_KINDS:
        return _OBJECTS | _PLACES | _WORDS | _NUMBERS | _DATES | {"ip"}
    if isinstance(kind, Object | Pairs):
        return _OBJECTS
    if kind is Leaf.POINT:
        return frozenset((GEO_POINT, "xy_point", "object"))
    if kind is Leaf.NUMBER:
        return _NUMBERS | _WORDS | _DATES
    if kind is Leaf.BOOL:
        return _WORDS | {"boolean"}
    if kind is Leaf.BYTES:
        return _WORDS | {"binary"}
    if kind is Leaf.MOMENT or column.structure == Scalar(ScalarType.DATE):
        return _WORDS | _DATES
    return _KNOWN - _OBJECTS


def _said(column: TopicField) -> str:
    return column.type_name or "of another type"
