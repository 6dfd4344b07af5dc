"""Checks of texts that a group brings as arrays: that a store's Postgres would take each. Pure; no message holds a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cdc.model.structure import ScalarType
from sinks.render.pgtext import Elements, array_elements

_BOUNDS: Final = re.compile(r"(?:\[-?\d{1,10}:-?\d{1,10}\])+=")
_MOMENT: Final = r"-?infinity|\d{4,6}-\d\d-\d\d%s( BC)?"
_TIME: Final = r" \d\d:\d\d:\d\d(\.\d{1,6})?"
_FLOAT: Final = r"-?(Infinity|\d+(\.\d+)?(e[+-]?\d+)?)|NaN"


def check_arrays(texts: Iterable[str | None], element: ScalarType) -> None:
    """Raises ValueError for a text that is not an array of such elements, as Postgres prints them."""
    is_element = _IS_ELEMENT[element]
    for text in texts:
        if text is not None:
            try:
                _check(array_elements(_BOUNDS.sub("", text, count=1)), is_element)
            except RecursionError:
                raise ValueError("nested too deeply") from None


def _check(elements: Elements, is_element: Callable[[str], bool]) -> tuple[int, ...]:
    """The lengths of the array's dimensions."""
    shapes = set()
    for one in elements:
        shapes.add(_check(one, is_element) if isinstance(one, list) else ())
        if isinstance(one, str) and not is_element(one):
            raise ValueError("not an element")
    if len(shapes) > 1 or (0,) in shapes:
        raise ValueError("of different dimensions")
    return (len(elements), *(shapes.pop() if shapes else ()))


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


def _whole(bits: int) -> Callable[[str], bool]:
    written = _matches(r"-?\d{1,19}")
    return lambda text: written(text) and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_not_json, parse_int=str)
    except ValueError:
        return False
    return True


def _not_json(_: str) -> None:
    raise ValueError("not a number of JSON")


_IS_ELEMENT: Final[Mapping[ScalarType, Callable[[str], bool]]] = {
    ScalarType.BOOL: _matches("[tf]"),
    ScalarType.INT2: _whole(16),
    ScalarType.INT4: _whole(32),
    ScalarType.INT8: _whole(64),
    ScalarType.FLOAT4: _matches(_FLOAT),
    ScalarType.FLOAT8: _matches(_FLOAT),
    ScalarType.NUMERIC: _matches(r"-?(Infinity|\d{1,131072}(\.\d{1,16383})?)|NaN"),
    ScalarType.DATE: _matches(_MOMENT % ""),
    ScalarType.TIMESTAMP: _matches(_MOMENT % _TIME),
    ScalarType.TIMESTAMPTZ: _matches(_MOMENT % (_TIME + r"\+00")),
    ScalarType.UUID: _matches("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ScalarType.TEXT: lambda text: "\0" not in text,
    ScalarType.JSONB: _is_json,
}

ELEMENTS: Final = tuple(_IS_ELEMENT)
"""The types of which there are arrays."""
