"""Dates and times as text, in compiled loops: ISO 8601, of which Postgres's own text is one spelling. A text column is as ``digits`` has it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.civil import date_of
from cdc.kernels.digits import MINUS, POINT, ZERO, put_padded
from cdc.kernels.jit import kernel

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""The first microsecond of the year 1 and the last one of 9999, since 1970: the kernels' texts of these and what is between them are right."""
_DAY_US: Final = 86_400_000_000
_COLON: Final = ord(":")


@kernel
def _put_date(out: Any, at: int, days: Any) -> int:
    """YYYY-MM-DD of the days since 1970-01-01, years 0001 to 9999."""
    date = date_of(days)
    at = put_padded(out, at, date.year, 4)
    out[at] = MINUS
    at = put_padded(out, at + 1, date.month, 2)
    out[at] = MINUS
    return put_padded(out, at + 1, date.day, 2)


@kernel
def _put_clock(out: Any, at: int, micros: int) -> int:
    """HH:MM:SS[.ffffff] without the fraction's trailing zeros."""
    seconds = micros // 1_000_000
    fraction = micros - seconds * 1_000_000
    at = put_padded(out, at, seconds // 3600, 2)
    out[at] = _COLON
    at = put_padded(out, at + 1, seconds // 60 % 60, 2)
    out[at] = _COLON
    at = put_padded(out, at + 1, seconds % 60, 2)
    if fraction > 0:
        out[at] = POINT
        at = put_padded(out, at + 1, fraction, 6)
        while out[at - 1] == ZERO:
            at -= 1
    return at


@kernel
def date_text(days: Any) -> Any:
    """int32 days since 1970-01-01 → text column "YYYY-MM-DD"."""
    count = len(days)
    data = np.empty(count * 10, np.uint8)
    offsets = np.arange(count + 1) * 10
    for i in range(count):
        _put_date(data, i * 10, np.int64(days[i]))
    return data, offsets


@kernel
def time_text(micros: Any) -> Any:
    """int64 microseconds of the day → text column "HH:MM:SS[.ffffff]"."""
    count = len(micros)
    data = np.empty(count * 15, np.uint8)
    offsets = np.empty(count + 1, np.int64)
    at = 0
    offsets[0] = 0
    for i in range(count):
        at = _put_clock(data, at, micros[i])
        offsets[i + 1] = at
    return data[:at], offsets


@kernel
def timestamp_text(micros: Any, between: int, zone: Any) -> Any:
    """int64 microseconds since 1970-01-01 → text column "YYYY-MM-DDTHH:MM:SS[.ffffff][Z]". between: the character for T; zone: the bytes for Z."""
    count = len(micros)
    data = np.empty(count * (26 + len(zone)), np.uint8)
    offsets = np.empty(count + 1, np.int64)
    at = 0
    offsets[0] = 0
    for i in range(count):
        days = micros[i] // _DAY_US
        at = _put_date(data, at, days)
        data[at] = between
        at = _put_clock(data, at + 1, micros[i] - days * _DAY_US)
        for byte in zone:
            data[at] = byte
            at += 1
        offsets[i + 1] = at
    return data[:at], offsets
