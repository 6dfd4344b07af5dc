"""Postgres's text of arrays, composites, ranges, hstore, points and intervals, taken apart. Pure; raises ValueError on anything else.

Formats: manual, "Array Input and Output Syntax", "Constructing Composite Values", "Range Input/Output", hstore's page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

Elements = list["str | Elements | None"]
"""An array's elements: texts, None for NULL, or the arrays of the next dimension."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range that is not empty; a bound is None where the range has no end. ``kinds``: such as ``[)``."""

    lower: str | None
    upper: str | None
    kinds: str


_BACKSLASHED: Final = re.compile(r"\\(.)", re.DOTALL)
_DOUBLED: Final = re.compile(r'\\(.)|"(")', re.DOTALL)
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_QUOTED_OR_DOUBLED: Final = r'(?:"(?:[^"\\]|\\.|"")*")'


def array_elements(text: str, delimiter: str = ",") -> Elements:
    """Parses an array whose dimensions begin at 1. One with other lower bounds is a ValueError, as it is not a list."""
    token = re.compile(rf"(\{{)|(\}})|({re.escape(delimiter)})|({_QUOTED})|([^{{}}\"\\{re.escape(delimiter)}]+)", re.DOTALL)
    open_lists: list[Elements] = [[]]
    at, expecting = 0, True
    while at < len(text):
        found = token.match(text, at)
        if found is None or (at and len(open_lists) == 1):
            raise ValueError("not an array")
        at = found.end()
        opens, closes, separates, quoted, plain = found.groups()
        if opens:
            inner: Elements = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif closes:
            if len(open_lists) == 1 or (expecting and open_lists[-1]):
                raise ValueError("not an array")
            open_lists.pop()
        elif separates:
            if expecting:
                raise ValueError("not an array")
        elif len(open_lists) == 1:
            raise ValueError("not an array")
        elif quoted is not None:
            open_lists[-1].append(_BACKSLASHED.sub(r"\1", quoted[1:-1]))
        else:
            open_lists[-1].append(None if plain == "NULL" else plain)
        expecting = bool(opens or separates)
    (top,) = open_lists[0] if len(open_lists) == 1 and len(open_lists[0]) == 1 else [None]
    if not isinstance(top, list):
        raise ValueError("not an array")
    return top


_FIELD: Final = re.compile(rf"((?:{_QUOTED_OR_DOUBLED}|\\.|[^,()\"\\])*)([,)])", re.DOTALL)


def composite_fields(text: str) -> list[str | None]:
    """The attributes' texts in order, None for NULL; ``()`` has one that is NULL."""
    if not text.startswith("("):
        raise ValueError("not a composite")
    fields: list[str | None] = []
    at, ended = 1, False
    while not ended:
        found = _FIELD.match(text, at)
        if found is None:
            raise ValueError("not a composite")
        fields.append(_unquoted(found[1]) if found[1] else None)
        at, ended = found.end(), found[2] == ")"
    if at != len(text):
        raise ValueError("not a composite")
    return fields


_RANGE: Final = re.compile(
    rf"([\[(])((?:{_QUOTED_OR_DOUBLED}|\\.|[^,()\[\]\"\\])*),((?:{_QUOTED_OR_DOUBLED}|\\.|[^,()\[\]\"\\])*)([\])])", re.DOTALL
)


def range_bounds(text: str) -> Bounds | None:
    """None for the empty range."""
    if text == "empty":
        return None
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError("not a range")
    return _bounds(found)


def ranges(text: str) -> list[Bounds]:
    """The ranges of a multirange."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("not a multirange")
    found, at, end = [], 1, len(text) - 1
    while at < end:
        one = _RANGE.match(text, at, end)
        if one is None:
            raise ValueError("not a multirange")
        found.append(_bounds(one))
        at = one.end()
        if at < end:
            if text[at] != "," or at + 1 == end:
                raise ValueError("not a multirange")
            at += 1
    return found


def _bounds(found: re.Match[str]) -> Bounds:
    lower, upper = (_unquoted(text) if text else None for text in (found[2], found[3]))
    return Bounds(lower, upper, found[1] + found[4])


def _unquoted(text: str) -> str:
    """What a composite's attribute or a range's bound says: a quote or backslash inside quotes is doubled, or has a backslash before it."""
    if '"' not in text and "\\" not in text:
        return text
    return "".join(
        _DOUBLED.sub(r"\1\2", piece[1:-1] if piece.startswith('"') else piece)
        for piece in re.findall(rf"{_QUOTED_OR_DOUBLED}|[^\"]+", text, re.DOTALL)
    )


_PAIR: Final = re.compile(rf"({_QUOTED})=>(NULL|{_QUOTED})(, |$)", re.DOTALL)


def hstore_pairs(text: str) -> Iterator[tuple[str, str | None]]:
    """(key, value) in the text's order; a value is None where it is NULL."""
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None or (found[3] and found.end() == len(text)):
            raise ValueError("not an hstore")
        key, value = found[1], found[2]
        yield (
            _BACKSLASHED.sub(r"\1", key[1:-1]),
            None if value == "NULL" else _BACKSLASHED.sub(r"\1", value[1:-1]),
        )
        at = found.end()


_POINT: Final = re.compile(r"\(([^(),]+),([^(),]+)\)")


def point_coordinates(text: str) -> tuple[str, str]:
    """x and y, as Postgres wrote them."""
    found = _POINT.fullmatch(text)
    if found is None:
        raise ValueError("not a point")
    return found[1], found[2]


_INTERVAL: Final = re.compile(
    r"(?:([+-]?\d+) years?(?: |$))?(?:([+-]?\d+) mons?(?: |$))?(?:([+-]?\d+) days?(?: |$))?"
    r"(?:([+-])?(\d+):(\d\d):(\d\d)(\.\d+)?)?"
)


def interval_iso(text: str) -> str:
    """An interval in Postgres's own style as ISO 8601, which is what Postgres writes under ``intervalstyle = iso_8601``."""
    found = _INTERVAL.fullmatch(text)
    if found is None or not text:
        raise ValueError("not an interval")
    years, months, days, sign, hours, minutes, seconds, fraction = found.groups()
    date = "".join(f"{int(number)}{unit}" for number, unit in ((years, "Y"), (months, "M"), (days, "D")) if number)
    minus = "-" if sign == "-" else ""
    clock = "".join(f"{minus}{int(number)}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number and int(number))
    if seconds is not None and (int(seconds) or fraction):
        clock += f"{minus}{int(seconds)}{fraction or ''}S"
    if not date and not clock:
        return "PT0S"
    return f"P{date}" + (f"T{clock}" if clock else "")
