"""Columns of a batch ↔ what the engine computes with. Pure.

A batch holds what Arrow's types cannot hold as exact text beside it (``cdc.model.batch``): infinity, years before 1 and after 9999, NaN of a numeric with a scale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.entry import NOT_HELD
from cdc.expressions.moments import DATE_ENDS, DAY, TIME_ENDS
from cdc.expressions.pgtype import PgType
from cdc.model.pgtypes import canonical_text

_MOMENT: Final = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")
_FIRST_PLAIN, _LAST_PLAIN = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31: the log writes other dates as exact text."""


def given(kind: PgType, column: pa.Array, exact: Mapping[int, str]) -> tuple[pa.Array, pa.Array | None]:
    """The column for the engine, and the SQLSTATEs of rows whose value it does not hold. ``exact``: row → text."""
    if kind.name in ("opaque", "own") and not pa.types.is_string(column.type):
        there = column.is_valid()
        if exact:
            there = pc.or_(there, pa.array([row in exact for row in range(len(column))]))
        return pc.if_else(there, pa.scalar(True), pa.scalar(None, pa.bool_())), None
    if kind.name in ("date", "timestamp", "timestamptz"):
        held = pa.int32() if kind.name == "date" else pa.int64()
        naive = column if kind.name == "date" or column.type.tz is None else column.view(pa.timestamp("us"))
        return _replaced(naive.view(held), exact, lambda text: _moment(text, kind.name == "date"))
    if kind.name == "numeric" and exact:
        return _replaced(canonical_text(column), exact, str)
    if not exact:
        return column, None
    return _replaced(column, exact, str)


def _replaced(column: pa.Array, exact: Mapping[int, str], read: Any) -> tuple[pa.Array, pa.Array | None]:
    if not exact:
        return column, None
    values = {row: read(text) for row, text in exact.items()}
    mask = pa.array([row in values for row in range(len(column))])
    ordered = pa.array([values[row] for row in sorted(values)], column.type)
    unheld = pa.array([NOT_HELD if row in values and values[row] is None else None for row in range(len(column))], pa.utf8())
    return pc.replace_with_mask(column, mask, ordered), unheld if unheld.null_count < len(unheld) else None


def _moment(text: str, is_date: bool) -> int | None:
    """Days or microseconds since 1970; None where they have no room."""
    ends = DATE_ENDS if is_date else TIME_ENDS
    if text in ("infinity", "-infinity"):
        return ends[text == "infinity"]
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day = (int(found[number]) for number in (1, 2, 3))
    days = _days(1 - year if found[8] else year, month, day)
    if is_date:
        return days
    hours, minutes, seconds = (int(found[number] or 0) for number in (4, 5, 6))
    moment = days * DAY + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    return moment if TIME_ENDS[0] < moment < TIME_ENDS[1] else None


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the Gregorian calendar, for ever; year 0 is 1 BC. (Howard Hinnant, "days_from_civil".)"""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    era, of_era = divmod(days + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    month = (shifted + 2) % 12 + 1
    return year_of_era + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def handed_out(kind: PgType, value: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """The result in its own Arrow type, and the exact texts of what that cannot hold."""
    if kind.name in ("date", "timestamp", "timestamptz"):
        return _moments(kind, value)
    if kind.name == "numeric" and not pa.types.is_decimal(kind.arrow):
        return _number_text(value), None
    if kind.name == "numeric" and pa.types.is_string(value.type):
        odd = pc.equal(value, "NaN")
        texts = pc.if_else(odd, value, pa.scalar(None, pa.utf8()))
        plain = pc.if_else(odd, pa.scalar(None, pa.utf8()), value).cast(kind.arrow)
        return plain, texts if texts.null_count < len(texts) else None
    return value.cast(kind.arrow), None


def engine_arrow(kind: PgType) -> pa.DataType:
    """The Arrow type of a type's values in the engine's form: dates are days and times microseconds since 1970, as ``given`` makes them."""
    if kind.name == "date":
        return pa.int32()
    return pa.int64() if kind.name in ("timestamp", "timestamptz") else kind.arrow


def in_engine(kind: PgType, value: pa.Array) -> pa.Array:
    """A value that was computed, in the engine's form. Raises ValueError for NaN where the type has a scale."""
    if kind.name == "numeric" and not pa.types.is_decimal(kind.arrow):
        return _number_text(value)
    try:
        return value.cast(engine_arrow(kind))
    except pa.ArrowInvalid:
        raise ValueError(f"a value of {kind} is NaN") from None


def _number_text(value: pa.Array) -> pa.Array:
    if pa.types.is_string(value.type):
        return value
    if value.type.scale <= 6:  # only what has more digits behind the point does Arrow write in scientific notation
        return value.cast(pa.utf8())
    return canonical_text(value)


def _moments(kind: PgType, value: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    is_date = kind.name == "date"
    unit = 1 if is_date else DAY
    held = pa.int32() if is_date else pa.int64()
    value = value.cast(held)
    plain = pc.and_(pc.greater_equal(value, _FIRST_PLAIN * unit), pc.less(value, (_LAST_PLAIN + 1) * unit))
    found = pc.if_else(plain, value, pa.scalar(None, held)).view(kind.arrow if is_date else pa.timestamp("us"))
    typed = found if kind.name != "timestamptz" else found.view(kind.arrow)
    if pc.all(plain, min_count=0).as_py() is not False:
        return typed, None
    texts = [
        None if number is None or usual else _text(kind, number)
        for number, usual in zip(value.to_pylist(), plain.to_pylist(), strict=True)
    ]
    return typed, pa.array(texts, pa.utf8())


def _text(kind: PgType, number: int) -> str:
    ends = DATE_ENDS if kind.name == "date" else TIME_ENDS
    if number in ends:
        return "infinity" if number > 0 else "-infinity"
    days, time = (number, 0) if kind.name == "date" else divmod(number, DAY)
    year, month, day = _civil(days)
    text = f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}"
    if kind.name != "date":
        seconds, micro = divmod(time, 1_000_000)
        fraction = f".{micro:06d}".rstrip("0") if micro else ""
        text += f" {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}" + (
            "+00" if kind.name == "timestamptz" else ""
        )
    return text if year > 0 else f"{text} BC"
