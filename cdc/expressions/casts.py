"""The whitelist's casts, named after the type that they lead to. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cdc.expressions import decimals
from cdc.expressions.entry import HELD, MOMENT_OUT_OF_RANGE, NOT_A_VALUE, NOT_HELD, OUT_OF_RANGE, WhitelistEntry, missing, within
from cdc.expressions.moments import DAY
from cdc.expressions.pgtype import (
    BOOL,
    DATE,
    ENUM,
    FLOAT4,
    FLOAT8,
    FLOATS,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    JSONB,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    UUID,
    PgType,
)

OWN: Final = PgType("own", label="a type of the database's own")

IMPLICIT: Final = (
    *((INT2, kind) for kind in (INT4, INT8, NUMERIC, FLOAT4, FLOAT8)),
    *((INT4, kind) for kind in (INT8, NUMERIC, FLOAT4, FLOAT8)),
    *((INT8, kind) for kind in (NUMERIC, FLOAT4, FLOAT8)),
    *((NUMERIC, kind) for kind in FLOATS),
    (FLOAT4, FLOAT8),
)
"""Casts that Postgres makes by itself where types meet."""

_BLANK: Final = r" \t\n\v\f\r"
_TRIMMED: Final = "trim({0}, ' ' || chr(9) || chr(10) || chr(11) || chr(12) || chr(13))"


def entries() -> Iterator[WhitelistEntry]:
    yield from _between_numbers()
    yield from _to_text()
    yield from _from_text()
    yield WhitelistEntry("date", (TIMESTAMP,), DATE, _date_of_time())
    yield from _time_of_date()


def _between_numbers() -> Iterator[WhitelistEntry]:
    for source in INTEGERS:
        for target in INTEGERS:
            if target is not source:
                wide = f"CAST({{0}} AS {'HUGEINT' if target is INT8 else 'BIGINT'})"
                yield WhitelistEntry(target.name, (source,), target, within(wide, target.name), ((missing(1), OUT_OF_RANGE),))
        yield WhitelistEntry("numeric", (source,), NUMERIC, kernel=decimals.from_integer)
        for target in FLOATS:
            yield WhitelistEntry(target.name, (source,), target, f"CAST({{0}} AS {HELD[target.name]})")
    for target, bits in ((INT2, 16), (INT4, 32), (INT8, 64)):
        yield WhitelistEntry(target.name, (NUMERIC,), target, kernel=decimals.to_integer(bits))
        for source in FLOATS:
            whole = "round_even(CAST({0} AS DOUBLE), 0)"
            low, high = f"CAST({-(2 ** (bits - 1))} AS DOUBLE)", f"CAST({2 ** (bits - 1)} AS DOUBLE)"
            near = f"CASE WHEN {whole} >= {low} AND {whole} < {high} THEN {whole} END"
            yield WhitelistEntry(
                target.name, (source,), target, f"CAST({near} AS {HELD[target.name]})", ((missing(1), OUT_OF_RANGE),)
            )
    yield WhitelistEntry("float8", (NUMERIC,), FLOAT8, kernel=decimals.to_float(single=False))
    yield WhitelistEntry("float8", (FLOAT4,), FLOAT8, "CAST({0} AS DOUBLE)")
    yield WhitelistEntry("int4", (BOOL,), INT4, "CAST({0} AS INTEGER)")
    yield WhitelistEntry("bool", (INT4,), BOOL, "{0} <> 0")


def _to_text() -> Iterator[WhitelistEntry]:
    for source in (*INTEGERS, BOOL, NUMERIC):
        yield WhitelistEntry("text", (source,), TEXT, "CAST({0} AS VARCHAR)")
    for source in (UUID, ENUM, OWN, JSONB):
        yield WhitelistEntry("text", (source,), TEXT, "{0}")


def _from_text() -> Iterator[WhitelistEntry]:
    blank = f"[{_BLANK}]*"
    whole = f"{blank}[+-]?[0-9]+{blank}"
    for target in INTEGERS:
        matched = f"regexp_full_match({{0}}, '{whole}')"
        sql = f"TRY_CAST(CASE WHEN {matched} THEN {_TRIMMED} END AS {HELD[target.name]})"
        newer = f"regexp_full_match({{0}}, '{blank}[+-]?0[xXoObB].*|.*[0-9]_[0-9].*', 's')"
        yield WhitelistEntry(
            target.name,
            (TEXT,),
            target,
            sql,
            ((newer, NOT_HELD), (f"NOT {matched}", NOT_A_VALUE), ("{v} IS NULL AND {0} IS NOT NULL", OUT_OF_RANGE)),
        )
    words = {
        "true": ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"),
        "false": ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"),
    }
    low = f"translate({_TRIMMED}, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz')"
    cases = " ".join(f"WHEN {low} IN ({', '.join(repr(word) for word in of)}) THEN {truth}" for truth, of in words.items())
    yield WhitelistEntry("bool", (TEXT,), BOOL, f"CASE {cases} END", ((missing(1), NOT_A_VALUE),))
    yield WhitelistEntry("numeric", (TEXT,), NUMERIC, kernel=decimals.from_text)


def _date_of_time() -> str:
    days = f"(({{0}} - ((({{0}} % {DAY}) + {DAY}) % {DAY})) // {DAY})"
    ends = "CASE WHEN {0} = 9223372036854775807 THEN 2147483647 WHEN {0} = CAST('-9223372036854775808' AS BIGINT) THEN -2147483648"
    return f"CAST({ends} ELSE {days.replace('{0}', _finite())} END AS INTEGER)"


def _finite() -> str:
    return "(CASE WHEN abs(CAST({0} AS HUGEINT)) < 9223372036854775807 THEN {0} END)"


def _time_of_date() -> Iterator[WhitelistEntry]:
    """Postgres has dates up to the year 5874897 and times up to 294276, of which the last 30 years have no number of microseconds since 1970."""
    ends = "CASE WHEN {0} = 2147483647 THEN 9223372036854775807 WHEN {0} = -2147483648 THEN CAST('-9223372036854775808' AS BIGINT)"
    near = "(CASE WHEN {0} < 106751991 THEN CAST({0} AS BIGINT) END)"
    too_late = ("{0} >= 106762940 AND {0} < 2147483647", MOMENT_OUT_OF_RANGE)
    yield WhitelistEntry(
        "timestamp",
        (DATE,),
        TIMESTAMP,
        f"{ends} ELSE {near} * {DAY} END",
        (too_late, ("{0} >= 106751991 AND {0} < 2147483647", NOT_HELD)),
    )
