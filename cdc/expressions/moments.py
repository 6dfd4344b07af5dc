"""The whitelist's functions of dates and times. Pure.

To the engine a date is its days since 1970 and a time its microseconds, with infinity at the ends of the range. What depends on the session's time zone is not
here: a timestamptz becomes a timestamp by AT TIME ZONE 'UTC'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cdc.expressions.entry import MOMENT_OUT_OF_RANGE, WhitelistEntry, missing
from cdc.expressions.numbers import COMPARED
from cdc.expressions.pgtype import BOOL, DATE, INT2, INT4, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ

DATE_ENDS: Final = (-(2**31), 2**31 - 1)
TIME_ENDS: Final = (-(2**63), 2**63 - 1)
"""-infinity and infinity."""
FIRST_DATE, LAST_DATE = -2_440_588, 2_145_042_905
"""4714-11-24 BC and 5874897-12-31."""
FIRST_TIME: Final = FIRST_DATE * 86_400_000_000
DAY: Final = 86_400_000_000
_UNITS: Final = {
    "day": DAY,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "milliseconds": 1000,
    "microseconds": 1,
}

_ENDLESS_DATE: Final = "{0} IN (-2147483648, 2147483647)"
_ENDLESS_TIME: Final = "{0} IN (CAST('-9223372036854775808' AS BIGINT), 9223372036854775807)"
_DAYS_OF_DATE: Final = f"CASE WHEN NOT ({_ENDLESS_DATE}) THEN {{0}} END"
_OWN_TIME: Final = f"CASE WHEN NOT ({_ENDLESS_TIME}) THEN {{0}} END"


def _floored(value: str, unit: int) -> str:
    """Whole units, rounded down."""
    return f"(({value} - ((({value} % {unit}) + {unit}) % {unit})) // {unit})"


_DAYS_OF_TIME: Final = f"CAST({_floored(_OWN_TIME, DAY)} AS INTEGER)"
_TIME_OF_DAY: Final = f"(((({_OWN_TIME}) % {DAY}) + {DAY}) % {DAY})"


def entries() -> Iterator[WhitelistEntry]:
    for sign in COMPARED:
        for kind in (BOOL, DATE, TIMESTAMP, TIMESTAMPTZ):
            yield WhitelistEntry(sign, (kind, kind), BOOL, f"{{0}} {sign} {{1}}")
    yield from _date_arithmetic()
    yield WhitelistEntry("timezone", (TEXT, TIMESTAMPTZ), TIMESTAMP, "{1}", word="UTC")
    yield WhitelistEntry("timezone", (TEXT, TIMESTAMP), TIMESTAMPTZ, "{1}", word="UTC")
    for kind in (DATE, TIMESTAMP, TIMESTAMPTZ):
        endless = _ENDLESS_DATE if kind is DATE else _ENDLESS_TIME
        yield WhitelistEntry("isfinite", (kind,), BOOL, f"NOT ({endless})")
    yield from _truncation()
    yield from _fields()


def _date_arithmetic() -> Iterator[WhitelistEntry]:
    failed = ((missing(2), MOMENT_OUT_OF_RANGE),)
    for kind in (INT2, INT4):
        for sign in "+-":
            yield WhitelistEntry(sign, (DATE, kind), DATE, _moved("{0}", sign, "{1}"), failed, lenient=True)
        yield WhitelistEntry("+", (kind, DATE), DATE, _moved("{1}", "+", "{0}"), failed, lenient=True)
    either = f"{_ENDLESS_DATE} OR {_ENDLESS_DATE.replace('{0}', '{1}')}"
    days = f"CAST(CASE WHEN NOT ({either}) THEN CAST({{0}} AS BIGINT) - CAST({{1}} AS BIGINT) END AS INTEGER)"
    yield WhitelistEntry("-", (DATE, DATE), INT4, days, ((either, MOMENT_OUT_OF_RANGE),))


def _moved(date: str, sign: str, days: str) -> str:
    moved = f"(CAST({date} AS BIGINT) {sign} CAST({days} AS BIGINT))"
    near = f"CASE WHEN {moved} BETWEEN {FIRST_DATE} AND {LAST_DATE} THEN {moved} END"
    return f"CAST(CASE WHEN {_ENDLESS_DATE.replace('{0}', date)} THEN {date} ELSE {near} END AS INTEGER)"


def _truncation() -> Iterator[WhitelistEntry]:
    for unit, length in _UNITS.items():
        sql = f"CASE WHEN {_ENDLESS_TIME} THEN {{1}} ELSE {_floored('{1}', length)} * {length} END".replace("{0}", "{1}")
        yield WhitelistEntry("date_trunc", (TEXT, TIMESTAMP), TIMESTAMP, sql, word=unit)
    days = _DAYS_OF_TIME.replace("{0}", "{1}")
    for unit in ("week", "month", "quarter", "year"):
        first = f"(CAST(date_trunc('{unit}', DATE '1970-01-01' + {days}) AS DATE) - DATE '1970-01-01')"
        sql = f"CASE WHEN {_ENDLESS_TIME.replace('{0}', '{1}')} THEN {{1}} ELSE CAST({first} AS BIGINT) * {DAY} END"
        low = (f"{{v}} < {FIRST_TIME} AND NOT ({_ENDLESS_TIME.replace('{0}', '{1}')})", MOMENT_OUT_OF_RANGE)
        yield WhitelistEntry("date_trunc", (TEXT, TIMESTAMP), TIMESTAMP, sql, (low,), word=unit)


def _fields() -> Iterator[WhitelistEntry]:
    """Numbers, which is text to the engine. Of infinity a field that rises for ever is infinite, and any other NULL."""
    for kind, days, endless in ((DATE, _DAYS_OF_DATE, _ENDLESS_DATE), (TIMESTAMP, _DAYS_OF_TIME, _ENDLESS_TIME)):
        moved = [one.replace("{0}", "{1}") for one in (days, endless)]
        date = f"(DATE '1970-01-01' + {moved[0]})"
        ends = f"CASE WHEN {moved[1]} THEN CASE WHEN {{1}} < 0 THEN '-Infinity' ELSE 'Infinity' END"
        for name in ("year", "isoyear"):
            year = f"extract('{name}' FROM {date})"
            # No year is 0: 1 BC is -1.
            yield _extract(name, kind, f"{ends} ELSE CAST(CASE WHEN {year} > 0 THEN {year} ELSE {year} - 1 END AS VARCHAR) END")
        for name in ("quarter", "month", "week", "day", "doy", "dow", "isodow"):
            yield _extract(name, kind, f"CAST(extract('{name}' FROM {date}) AS VARCHAR)")
        if kind is DATE:
            yield _extract("epoch", kind, f"{ends} ELSE CAST(CAST({{1}} AS BIGINT) * 86400 AS VARCHAR) END")
    time = _TIME_OF_DAY.replace("{0}", "{1}")
    yield _extract("hour", TIMESTAMP, f"CAST({time} // 3600000000 AS VARCHAR)")
    yield _extract("minute", TIMESTAMP, f"CAST({time} // 60000000 % 60 AS VARCHAR)")
    yield _extract("second", TIMESTAMP, _six_digits(f"({time} % 60000000)"))
    ends = f"CASE WHEN {_ENDLESS_TIME} THEN CASE WHEN {{0}} < 0 THEN '-Infinity' ELSE 'Infinity' END".replace("{0}", "{1}")
    sign = "CASE WHEN {1} < 0 THEN '-' ELSE '' END"
    own = _OWN_TIME.replace("{0}", "{1}")
    yield _extract("epoch", TIMESTAMP, f"{ends} ELSE {sign} || {_six_digits(f'abs({own})')} END")


def _six_digits(microseconds: str) -> str:
    return f"CAST({microseconds} // 1000000 AS VARCHAR) || '.' || lpad(CAST({microseconds} % 1000000 AS VARCHAR), 6, '0')"


def _extract(field: str, kind: object, sql: str) -> WhitelistEntry:
    return WhitelistEntry("extract", (TEXT, kind), NUMERIC, sql, word=field)  # type: ignore[arg-type]
