"""The whitelist's arithmetic and comparisons of numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cdc.expressions import decimals
from cdc.expressions.entry import DIVISION_BY_ZERO, HELD, OUT_OF_RANGE, WhitelistEntry, missing, within
from cdc.expressions.pgtype import BOOL, FLOAT4, FLOAT8, FLOATS, INT2, INT4, INT8, INTEGERS, NUMBERS, NUMERIC, PgType

COMPARED: Final = ("=", "<>", "<", ">", "<=", ">=")


def promoted(left: PgType, right: PgType) -> PgType:
    """The type in which two numbers meet: Postgres has integer operators across widths, and prefers double precision where one side is a float."""
    if left in FLOATS or right in FLOATS:
        return FLOAT4 if left == right == FLOAT4 else FLOAT8
    if NUMERIC in (left, right):
        return NUMERIC
    return max(left, right, key=INTEGERS.index)


def entries() -> Iterator[WhitelistEntry]:
    for left in NUMBERS:
        for right in NUMBERS:
            yield from _pair(left, right)
    for kind in NUMBERS:
        yield from _single(kind)
    yield from _rounding()


def _pair(left: PgType, right: PgType) -> Iterator[WhitelistEntry]:
    common = promoted(left, right)
    both = (left, right)
    if common is NUMERIC:
        for sign in COMPARED:
            yield WhitelistEntry(sign, both, BOOL, kernel=decimals.COMPARISONS[sign])
        for sign, kernel in decimals.ARITHMETIC.items():
            yield WhitelistEntry(sign, both, NUMERIC, kernel=kernel)
        return
    if NUMERIC in both:
        return  # met as double precision: the numeric is cast first
    held = HELD[common.name]
    for sign in COMPARED:
        yield WhitelistEntry(sign, both, BOOL, f"CAST({{0}} AS {held}) {sign} CAST({{1}} AS {held})")
    yield from _float_arithmetic(both, common) if common in FLOATS else _integer_arithmetic(both, common)


def _integer_arithmetic(both: tuple[PgType, PgType], common: PgType) -> Iterator[WhitelistEntry]:
    wide = "HUGEINT" if common is INT8 else "BIGINT"
    a, b = (f"CAST({{{number}}} AS {wide})" for number in (0, 1))
    overflow = (missing(2), OUT_OF_RANGE)
    for sign in "+-*":
        yield WhitelistEntry(sign, both, common, within(f"({a} {sign} {b})", common.name), (overflow,))
    divisor = f"CASE WHEN {{1}} <> 0 THEN {b} END"
    by_zero = ("{1} = 0", DIVISION_BY_ZERO)
    yield WhitelistEntry("/", both, common, within(f"({a} // ({divisor}))", common.name), (by_zero, overflow))
    yield WhitelistEntry("%", both, common, within(f"({a} % ({divisor}))", common.name), (by_zero,))


def _float_arithmetic(both: tuple[PgType, PgType], common: PgType) -> Iterator[WhitelistEntry]:
    a, b = (f"CAST({{{number}}} AS {HELD[common.name]})" for number in (0, 1))
    overflow = ("isinf({v}) AND NOT isinf({0}) AND NOT isinf({1})", OUT_OF_RANGE)
    underflow = ("{v} = 0 AND {0} <> 0 AND {1} <> 0", OUT_OF_RANGE)
    for sign in "+-":
        yield WhitelistEntry(sign, both, common, f"{a} {sign} {b}", (overflow,))
    yield WhitelistEntry("*", both, common, f"{a} * {b}", (overflow, underflow))
    by_zero = ("{1} = 0 AND NOT isnan({0})", DIVISION_BY_ZERO)
    lost = ("{v} = 0 AND {0} <> 0 AND NOT isinf({1})", OUT_OF_RANGE)
    too_large = ("isinf({v}) AND NOT isinf({0})", OUT_OF_RANGE)
    yield WhitelistEntry("/", both, common, f"{a} / {b}", (by_zero, too_large, lost))


def _single(kind: PgType) -> Iterator[WhitelistEntry]:
    one = (kind,)
    if kind is NUMERIC:
        yield WhitelistEntry("unary -", one, kind, kernel=decimals.negated)
        yield WhitelistEntry("unary +", one, kind, kernel=decimals.same)
        yield WhitelistEntry("abs", one, kind, kernel=decimals.absolute)
        return
    yield WhitelistEntry("unary +", one, kind, "{0}")
    if kind in FLOATS:
        yield WhitelistEntry("unary -", one, kind, "-{0}")
        yield WhitelistEntry("abs", one, kind, "abs({0})")
        return
    wide = f"CAST({{0}} AS {'HUGEINT' if kind is INT8 else 'BIGINT'})"
    overflow = ((missing(1), OUT_OF_RANGE),)
    yield WhitelistEntry("unary -", one, kind, within(f"(-{wide})", kind.name), overflow)
    yield WhitelistEntry("abs", one, kind, within(f"abs({wide})", kind.name), overflow)


def _rounding() -> Iterator[WhitelistEntry]:
    for kind in (INT2, INT4, INT8, FLOAT8, FLOAT4):
        value = "CAST({0} AS DOUBLE)"
        yield WhitelistEntry("round", (kind,), FLOAT8, f"round_even({value}, 0)")
        yield WhitelistEntry("floor", (kind,), FLOAT8, f"floor({value})")
        yield WhitelistEntry("ceil", (kind,), FLOAT8, f"ceil({value})")
        yield WhitelistEntry("ceiling", (kind,), FLOAT8, f"ceil({value})")
        yield WhitelistEntry("trunc", (kind,), FLOAT8, f"trunc({value})")
    for name, kernel in decimals.ROUNDING.items():
        yield WhitelistEntry(name, (NUMERIC,), NUMERIC, kernel=kernel)
    for name, kernel in (("round", decimals.rounded), ("trunc", decimals.truncated)):
        for kind in (NUMERIC, *INTEGERS):
            for digits in (INT2, INT4):
                yield WhitelistEntry(name, (kind, digits), NUMERIC, kernel=kernel, constants=(1,), given=_digits)


def _digits(constants: object) -> str | None:
    digits = constants[1]  # type: ignore[index]
    if digits is not None and not -decimals.MOST_DIGITS <= digits <= decimals.MOST_DIGITS:
        return f"the number of digits has to be from -{decimals.MOST_DIGITS} to {decimals.MOST_DIGITS}"
    return None
