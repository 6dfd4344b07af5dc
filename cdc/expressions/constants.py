"""Constants of an expression: what Postgres reads from a quoted one, the engine's SQL for it and its Arrow scalar. Pure.

Only forms that mean the same on every server are read: a date is 2024-12-31 and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from cdc.expressions import decimals
from cdc.expressions.entry import HELD
from cdc.expressions.moments import DATE_ENDS, TIME_ENDS
from cdc.expressions.pgtype import INTEGERS, PgType

_EPOCH: Final = date(1970, 1, 1)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,25}")
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?))?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BITS: Final = {"int2": 15, "int4": 31, "int8": 63}


def read(kind: PgType, text: str) -> Any:
    """The value of a quoted constant. Raises ValueError, whose text says which form it has to have."""
    reader = _READERS.get(kind.name)
    if reader is None:
        raise ValueError(f"constants of type {kind} are not possible")
    return reader(text)


def whole(kind: PgType, text: str) -> int:
    """Raises ValueError for a number that has no room."""
    bits = _BITS[kind.name]
    if not _WHOLE.fullmatch(text) or not -(2**bits) <= int(text) < 2**bits:
        raise ValueError(f"a constant of type {kind} is a whole number within its range")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "t", "f"):
        raise ValueError("a boolean constant is true or false")
    return text.lower().startswith("t")


def _numeric(text: str) -> Decimal:
    try:
        return decimals.read(text)
    except ValueError:
        raise ValueError("a numeric constant is written with decimal digits, as 12.50") from None


def _float(text: str) -> float:
    if text.lower() in ("nan", "infinity", "-infinity"):
        return float(text)
    number = float(text) if _FLOAT.fullmatch(text) else math.nan
    if not math.isfinite(number) or (number == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise ValueError("a constant of type double precision is written with decimal digits, as 1.5 or 1e6, or is NaN or Infinity")
    return number


def _single(_text: str) -> float:
    raise ValueError(
        "constants of type real are not possible: write the number without quotes, or cast the column to double precision"
    )


def _date(text: str) -> int:
    if text.lower() in ("infinity", "-infinity"):
        return DATE_ENDS[not text.startswith("-")]
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise ValueError("a date is written '2024-12-31', or is 'infinity' or '-infinity'") from None


def _moment(text: str, zoned: bool) -> int:
    if text.lower() in ("infinity", "-infinity"):
        return TIME_ENDS[not text.startswith("-")]
    found = _TIME.fullmatch(text)
    try:
        if found is None or bool(found[3]) != zoned:
            raise ValueError
        moment = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{found[3] or '+00'}")
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        form = "'2024-12-31 23:59:59+00', with its offset from UTC" if zoned else "'2024-12-31 23:59:59', without an offset"
        raise ValueError(f"a {'timestamptz' if zoned else 'timestamp'} is written {form}") from None


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text.lower()):
        raise ValueError("a uuid is written '01234567-89ab-cdef-0123-456789abcdef'")
    return text.lower()


def _empty_jsonb(text: str) -> str:
    if text not in ("[]", "{}"):
        raise ValueError("a constant of type jsonb is '[]' or '{}'")
    return text


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "bool": _truth,
    **{kind.name: lambda text, kind=kind: whole(kind, text) for kind in INTEGERS},  # type: ignore[misc]
    "numeric": _numeric,
    "float4": _single,
    "float8": _float,
    "text": str,
    "enum": str,
    "uuid": _uuid,
    "jsonb": _empty_jsonb,
    "date": _date,
    "timestamp": lambda text: _moment(text, False),
    "timestamptz": lambda text: _moment(text, True),
}


def quoted(text: str) -> str:
    """The text between the engine's quotes."""
    return "'" + text.replace("'", "''") + "'"


def sql(kind: PgType, value: Any) -> str:
    """The constant for the engine."""
    held = HELD.get(kind.name, "VARCHAR")
    if value is None:
        return f"CAST(NULL AS {held})"
    if kind.name == "bool":
        return "true" if value else "false"
    if kind.name == "numeric":
        return quoted(decimals.text_of(value))
    if held == "VARCHAR":
        return quoted(value)
    return f"CAST({quoted(repr(value))} AS {held})"


def scalar(kind: PgType, value: Any) -> pa.Scalar:
    """The constant for a kernel."""
    if kind.name == "numeric":
        if value is None or not value.is_finite():
            return pa.scalar(None if value is None else decimals.text_of(value), pa.utf8())
        number = abs(value) if value.is_zero() else value
        scale = max(-int(number.as_tuple().exponent), 0)
        precision = max(number.adjusted() + 1, 0) + scale
        return (
            pa.scalar(number, pa.decimal128(max(precision, 1), scale))
            if precision <= 38
            else pa.scalar(decimals.text_of(number), pa.utf8())
        )
    arrow = {"date": pa.int32(), "timestamp": pa.int64(), "timestamptz": pa.int64()}.get(kind.name, kind.arrow)
    return pa.scalar(value, arrow)
