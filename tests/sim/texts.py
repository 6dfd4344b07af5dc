"""Values of a batch as the text that Postgres gives for them: written apart from the product's own, which is to be checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa


def texts(column: pa.Array) -> list[str | None]:
    """As Postgres writes the values that a run has (``tests.sim.tables``)."""
    text = _text_of(column.type)
    if text is None:
        return column.to_pylist()  # type: ignore[no-any-return]
    if text is _time:
        column = column.view(_WITHOUT_ZONE)
    return [None if value is None else text(value) for value in column.to_pylist()]


@lru_cache(maxsize=64)
def _text_of(kind: pa.DataType) -> Callable[[Any], str] | None:
    """None: the values are texts."""
    if pa.types.is_string(kind):
        return None
    return next(text for is_kind, text in _TEXT_OF if is_kind(kind))


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time(value: datetime) -> str:
    text = value.isoformat(" ")
    return f"{text.rstrip('0') if value.microsecond else text}+00"


_WITHOUT_ZONE: Final = pa.timestamp("us")
_TEXT_OF: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...]] = (
    (pa.types.is_integer, str),
    (pa.types.is_boolean, "ft".__getitem__),
    (pa.types.is_decimal, "{:f}".format),
    (pa.types.is_float64, _float),
    (pa.types.is_binary, lambda value: f"\\x{value.hex()}"),
    (pa.types.is_timestamp, _time),
    (pa.types.is_date32, date.isoformat),
)
