"""One value's text as a JSON literal: the rules. Pure, and slow; ``columns`` comes to the same for whole columns.

``doubles`` says that a store writes documents again and reads numbers as doubles on the way (OpenSearch does, as soon as anything is
kept out of ``_source``). There a number with a fraction or an exponent that a double does not hold exactly is text, and so is one of
more digits than such a store reads. Whole numbers are exact in both.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, assert_never

from sinks.render import pgtext
from sinks.render.kinds import JSON_KINDS, Kind, Leaf, List, Object, Pairs, Span
from sinks.render.pgtext import Bounds, Elements

DEPTH_MAX: Final = 100
"""JSON that is nested deeper is text. (Readers give up at 500 to 1000 levels; OpenSearch loses a thread at about 600.)"""
NAME_BYTES_MAX: Final = 32_766
"""JSON with a longer name in it is text: OpenSearch refuses the document from 50,000 on."""
DIGITS_MAX: Final = 1000
"""A longer number is text where a store parses numbers (the limit of Jackson, which OpenSearch reads JSON with)."""

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")|(-?\d[\d.eE+-]*)|[ \t\n\r]+', re.DOTALL | re.ASCII)
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(\+00)?", re.ASCII)


def literal(kind: Kind, text: str, *, doubles: bool = False) -> str:
    """The value as JSON on one line: of its own kind where that holds it exactly, else as the string of its text."""
    try:
        return _literal(kind, text, doubles)
    except ValueError:
        return quoted(text)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _literal(kind: Kind, text: str, doubles: bool) -> str:
    match kind:
        case Leaf():
            return _LEAVES[kind](text, doubles)
        case List(element, delimiter):
            return _list(pgtext.array_elements(text, delimiter), element, doubles)
        case Object(attributes):
            fields = pgtext.composite_fields(text) if attributes or text != "()" else []
            if len(fields) != len(attributes):
                raise ValueError("another version of the type")
            parts = [
                f"{quoted(name)}:{_or_null(inner, field, doubles)}"
                for (name, inner), field in zip(attributes, fields, strict=True)
                # As in a row: JSON's null is null, so SQL's is left out.
                if field is not None or inner not in JSON_KINDS
            ]
            return "{" + ",".join(parts) + "}"
        case Pairs():
            pairs = pgtext.hstore_pairs(text)
            return "{" + ",".join(f"{quoted(key)}:{'null' if value is None else quoted(value)}" for key, value in pairs) + "}"
        case Span(bound, many):
            if many:
                return "[" + ",".join(_span(bounds, bound, doubles) for bounds in pgtext.ranges(text)) + "]"
            return _span(pgtext.range_bounds(text), bound, doubles)
    assert_never(kind)


def _list(elements: Elements, kind: Kind, doubles: bool) -> str:
    parts = []
    for element in elements:
        if isinstance(element, list):
            parts.append(_list(element, kind, doubles))
            continue
        if kind in JSON_KINDS and element is not None and element.strip(_SPACE) == "null":
            raise ValueError("JSON's null beside SQL's")
        parts.append(_or_null(kind, element, doubles))
    return "[" + ",".join(parts) + "]"


def _span(bounds: Bounds | None, kind: Kind, doubles: bool) -> str:
    if bounds is None:
        return '{"empty":true}'
    lower, upper = _or_null(kind, bounds.lower, doubles), _or_null(kind, bounds.upper, doubles)
    return f'{{"lower":{lower},"upper":{upper},"bounds":"{bounds.kinds}"}}'


def _or_null(kind: Kind, text: str | None, doubles: bool) -> str:
    return "null" if text is None else literal(kind, text, doubles=doubles)


# --- numbers -----------------------------------------------------------------------------------------------------------------


def _number(text: str, doubles: bool) -> str:
    if not is_number(text) or (doubles and not survives(text)):
        return quoted(text)
    return "-0.0" if text == "-0" else text  # many readers take -0 for a whole number and lose its sign


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def survives(number: str) -> bool:
    """Whether a number in JSON comes back as the same number from a store that reads it as a whole number, or else as a double."""
    if sum(map(str.isdigit, number)) > DIGITS_MAX:
        return False
    if not any(sign in number for sign in ".eE"):
        return True
    double = float(number)
    return math.isfinite(double) and Decimal(repr(double)) == Decimal(number)


# --- documents ---------------------------------------------------------------------------------------------------------------

_SPACE: Final = " \t\n\r"


def _json(text: str, doubles: bool) -> str:
    check(text)

    def written(token: re.Match[str]) -> str:
        string, number = token.groups()
        if string is not None:
            return str(string)
        return "" if number is None else number if not doubles or survives(number) else f'"{number}"'

    return _TOKEN.sub(written, text)


def check(text: str) -> None:
    """Raises ValueError for what is not JSON, and for JSON that a reader would not get whole: a name twice in one object, nested too deep,
    a name that is too long or half a character."""
    if depth(text) > DEPTH_MAX:
        raise ValueError("nested too deep")
    json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str, parse_constant=_refused)


def depth(text: str) -> int:
    """How many arrays and objects stand inside each other at most; brackets in strings do not count."""
    found = deepest = 0
    for bracket in re.sub(r'"(?:[^"\\]|\\.)*"|[^\[\]{}]', "", text, flags=re.DOTALL):
        found += 1 if bracket in "[{" else -1
        deepest = max(deepest, found)
    return deepest


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a name twice in one object")
    for name in names:
        if len(name.encode()) > NAME_BYTES_MAX:  # UnicodeEncodeError, for half a surrogate pair, is a ValueError
            raise ValueError("a name that is too long")


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# --- the others --------------------------------------------------------------------------------------------------------------


def _bool(text: str, _: bool) -> str:
    if text not in ("t", "f"):
        raise ValueError("not a boolean")
    return "true" if text == "t" else "false"


def _moment(text: str, _: bool) -> str:
    found = _MOMENT.fullmatch(text)
    return quoted(text) if found is None else f'"{found[1]}T{found[2]}{"Z" if found[3] else ""}"'


def _bytes(text: str, _: bool) -> str:
    if not text.startswith("\\x"):
        raise ValueError("not bytes")
    return f'"{base64.b64encode(bytes.fromhex(text[2:])).decode()}"'


def _interval(text: str, _: bool) -> str:
    return f'"{pgtext.interval_iso(text)}"'


def _point(text: str, doubles: bool) -> str:
    x, y = pgtext.point_coordinates(text)
    return f'{{"x":{_number(x, doubles)},"y":{_number(y, doubles)}}}'


def _geo_point(text: str, doubles: bool) -> str:
    x, y = pgtext.point_coordinates(text)
    return f'{{"lon":{_number(x, doubles)},"lat":{_number(y, doubles)}}}'


_LEAVES: Final[dict[Leaf, Callable[[str, bool], str]]] = {
    Leaf.TEXT: lambda text, _: quoted(text),
    Leaf.NUMBER: _number,
    Leaf.BOOL: _bool,
    Leaf.MOMENT: _moment,
    Leaf.BYTES: _bytes,
    Leaf.INTERVAL: _interval,
    Leaf.JSON: _json,
    Leaf.JSONB: _json,
    Leaf.LOOSE_JSON: _json,
    Leaf.POINT: _point,
    Leaf.GEO_POINT: _geo_point,
}
