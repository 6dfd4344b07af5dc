"""Numbers of type numeric, exactly: with Arrow's decimals where a column has a scale, else one by one. Pure.

A numeric carries its scale: 1.10 and 1.1 are equal and print differently. A value with a scale of its own for each row is its text, as in the log.
A column of one scale is an Arrow decimal; a result that has no room in one becomes text.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.entry import DIVISION_BY_ZERO, NOT_A_VALUE, NOT_HELD, OUT_OF_RANGE, Kernel, Value

MOST_DIGITS: Final = 1000
"""To which round and trunc may be asked for: what lies beyond differs from one version of Postgres to the next."""
_ROOM: Final = 38
_WHOLE_DIGITS: Final = 131_072
"""Before the decimal point, at most."""
_FRACTION: Final = 16_383
"""Digits behind it, at most."""
_EXACT: Final = decimal.Context(
    prec=400_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[], rounding=decimal.ROUND_HALF_UP
)
_NAN: Final = Decimal("NaN")


class _Failed(Exception):
    """A row that Postgres refuses. ``args[0]``: the SQLSTATE."""


# --- values as Arrow's decimals and as Python's


def is_scaled(value: Value) -> bool:
    return bool(pa.types.is_decimal(value.type) or pa.types.is_integer(value.type))


def scaled(value: Value) -> Value:
    """Integers as decimals of scale 0."""
    if pa.types.is_integer(value.type):
        return value.cast(pa.decimal128({16: 5, 32: 10, 64: 19}[value.type.bit_width], 0))
    return value


def text_of(number: Decimal) -> str:
    """As Postgres prints it: never in scientific notation, and without a sign on zero."""
    if not number.is_finite():
        return "NaN" if number.is_nan() else ("-Infinity" if number < 0 else "Infinity")
    return format(abs(number) if number.is_zero() else number, "f")


def _rows(value: Value, length: int) -> list[Any]:
    """Each row's number, or None."""
    if isinstance(value, pa.Scalar):
        return [_number(value.as_py())] * length
    return [_number(one) for one in value.to_pylist()]


def _number(value: Any) -> Decimal | None:
    return None if value is None else value if isinstance(value, Decimal) else Decimal(value)


def _length(values: tuple[Value, ...]) -> int:
    return next((len(one) for one in values if not isinstance(one, pa.Scalar)), 1)


def one_by_one(function: Callable[..., Any], *values: Value, kind: pa.DataType | None = None) -> tuple[Value, Value | None]:
    """The function of each row's numbers. ``kind``: of the result; numeric's text without it."""
    length = _length(values)
    results: list[Any] = []
    failed: list[str | None] = [None] * length
    with decimal.localcontext(_EXACT):
        for row, numbers in enumerate(zip(*(_rows(value, length) for value in values), strict=True)):
            result = None
            if None not in numbers:
                try:
                    result = function(*numbers)
                except _Failed as error:
                    failed[row] = error.args[0]
            results.append(text_of(result) if kind is None and result is not None else result)
    states = pa.array(failed, pa.utf8()) if any(failed) else None
    found = pa.array(results, kind or pa.utf8())
    if all(isinstance(value, pa.Scalar) for value in values):
        return found[0], None if states is None else states[0]
    return found, states


def _fitting(number: Decimal) -> Decimal:
    if number.is_finite():
        if number.adjusted() >= _WHOLE_DIGITS and not number.is_zero():
            raise _Failed(OUT_OF_RANGE)
        if -int(number.as_tuple().exponent) > _FRACTION:
            return number.quantize(Decimal(1).scaleb(-_FRACTION))
    return number


# --- comparisons: NaN equals itself and is above all others


def _order(left: Decimal, right: Decimal) -> int:
    if left.is_nan() or right.is_nan():
        return int(left.is_nan()) - int(right.is_nan())
    return (left > right) - (left < right)


_SIGNS: Final[dict[str, tuple[Callable[..., Any], Callable[[int], bool]]]] = {
    "=": (pc.equal, lambda order: order == 0),
    "<>": (pc.not_equal, lambda order: order != 0),
    "<": (pc.less, lambda order: order < 0),
    ">": (pc.greater, lambda order: order > 0),
    "<=": (pc.less_equal, lambda order: order <= 0),
    ">=": (pc.greater_equal, lambda order: order >= 0),
}


def _comparison(sign: str) -> Kernel:
    columnar, decide = _SIGNS[sign]

    def compare(left: Value, right: Value) -> tuple[Value, Value | None]:
        near = _of_one_scale(left, right)
        if near is not None:
            return columnar(*near), None
        return one_by_one(lambda a, b: decide(_order(a, b)), left, right, kind=pa.bool_())

    return compare


def _of_one_scale(left: Value, right: Value) -> tuple[Value, Value] | None:
    """Both as decimals of one type, None where there is none: a text among them is tried with 18 digits behind the point."""
    scales = [one.type.scale if pa.types.is_decimal(one.type) else 18 for one in (scaled(left), scaled(right))]
    try:
        kind = pa.decimal128(_ROOM, max(scales))
        return scaled(left).cast(kind), scaled(right).cast(kind)
    except pa.ArrowInvalid:
        return None


COMPARISONS: Final[dict[str, Kernel]] = {sign: _comparison(sign) for sign in _SIGNS}


# --- arithmetic


def _sum(left: Value, right: Value, subtract: bool) -> tuple[Value, Value | None]:
    if is_scaled(left) and is_scaled(right):
        a, b = scaled(left), scaled(right)
        scale = max(a.type.scale, b.type.scale)
        whole = max(a.type.precision - a.type.scale, b.type.precision - b.type.scale)
        if whole + scale + 1 <= _ROOM:
            kind = pa.decimal128(whole + scale, scale)
            return (pc.subtract if subtract else pc.add)(a.cast(kind), b.cast(kind)), None
    if subtract:
        return one_by_one(lambda a, b: _fitting(a - b), left, right)
    return one_by_one(lambda a, b: _fitting(a + b), left, right)


def _product(left: Value, right: Value) -> tuple[Value, Value | None]:
    if is_scaled(left) and is_scaled(right):
        a, b = scaled(left), scaled(right)
        if a.type.precision + b.type.precision + 1 <= _ROOM:
            return pc.multiply(a, b), None
    return one_by_one(lambda a, b: _fitting(a * b), left, right)


def _top(number: Decimal) -> tuple[int, int]:
    """(weight, value) of the first digit to the base of 10,000, in which Postgres computes."""
    if number.is_zero():
        return 0, 0
    weight = number.adjusted() // 4
    return weight, int(abs(number).scaleb(-4 * weight))


def _quotient(left: Decimal, right: Decimal) -> Decimal:
    if left.is_nan() or right.is_nan():
        return _NAN
    if right.is_zero():
        raise _Failed(DIVISION_BY_ZERO)
    if left.is_infinite():
        return _NAN if right.is_infinite() else left.copy_sign(right) if left > 0 else left * (1 if right > 0 else -1)
    if right.is_infinite():
        return Decimal(0)
    (weight, first), (other_weight, other_first) = _top(left), _top(right)
    down = weight - other_weight - (first <= other_first)
    scales = (-int(one.as_tuple().exponent) for one in (left, right))
    scale = min(max(16 - 4 * down, *scales, 0), 1000)
    whole, rest = divmod(abs(left).scaleb(scale), abs(right))
    if 2 * rest >= abs(right):
        whole += 1
    return _fitting(
        whole.scaleb(-scale).copy_sign(Decimal(1 if (left < 0) == (right < 0) else -1)).quantize(Decimal(1).scaleb(-scale))
    )


def _remainder(left: Decimal, right: Decimal) -> Decimal:
    if left.is_nan() or right.is_nan():
        return _NAN
    if right.is_zero():
        raise _Failed(DIVISION_BY_ZERO)
    if left.is_infinite():
        return _NAN
    if right.is_infinite():
        return left
    scale = max(-int(one.as_tuple().exponent) for one in (left, right))
    return (left % right).quantize(Decimal(1).scaleb(-scale))


ARITHMETIC: Final[dict[str, Kernel]] = {
    "+": lambda left, right: _sum(left, right, False),
    "-": lambda left, right: _sum(left, right, True),
    "*": _product,
    "/": lambda left, right: one_by_one(_quotient, left, right),
    "%": lambda left, right: one_by_one(_remainder, left, right),
}


def same(value: Value) -> tuple[Value, None]:
    """The number itself."""
    return value, None


def negated(value: Value) -> tuple[Value, Value | None]:
    return (pc.negate(scaled(value)), None) if is_scaled(value) else one_by_one(lambda number: -number, value)


def absolute(value: Value) -> tuple[Value, Value | None]:
    return (pc.abs(scaled(value)), None) if is_scaled(value) else one_by_one(abs, value)


# --- rounding


def _to_digits(columnar: str, rounding: str, value: Value, digits: int) -> tuple[Value, Value | None]:
    scale = max(digits, 0)
    if is_scaled(value):
        near = scaled(value)
        room = near.type.precision - near.type.scale + 1 + max(scale, near.type.scale)
        if room <= _ROOM and digits > -_ROOM:
            near = near.cast(pa.decimal128(room, max(scale, near.type.scale)))
            near = pc.round(near, ndigits=digits, round_mode=columnar)
            return near.cast(pa.decimal128(room - max(0, near.type.scale - scale), scale)), None

    def change(number: Decimal) -> Decimal:
        if not number.is_finite():
            return number
        if digits >= 0:
            return _fitting(number.quantize(Decimal(1).scaleb(-digits), rounding=rounding))
        return _fitting(number.quantize(Decimal(1).scaleb(-digits), rounding=rounding).quantize(Decimal(1)))

    return one_by_one(change, value)


_HALF: Final = ("half_towards_infinity", decimal.ROUND_HALF_UP)
_ZERO: Final = ("towards_zero", decimal.ROUND_DOWN)


def _digits(constant: Value) -> int | None:
    found = constant.as_py()
    return None if found is None else int(found)


def rounded(value: Value, digits: Value) -> tuple[Value, Value | None]:
    """To so many digits, a constant; half away from zero."""
    number = _digits(digits)
    return (pa.scalar(None, pa.utf8()), None) if number is None else _to_digits(*_HALF, value, number)


def truncated(value: Value, digits: Value) -> tuple[Value, Value | None]:
    """To so many digits, a constant; towards zero."""
    number = _digits(digits)
    return (pa.scalar(None, pa.utf8()), None) if number is None else _to_digits(*_ZERO, value, number)


ROUNDING: Final[dict[str, Kernel]] = {
    "round": lambda value: _to_digits(*_HALF, value, 0),
    "trunc": lambda value: _to_digits(*_ZERO, value, 0),
    "floor": lambda value: _to_digits("down", decimal.ROUND_FLOOR, value, 0),
    "ceil": lambda value: _to_digits("up", decimal.ROUND_CEILING, value, 0),
    "ceiling": lambda value: _to_digits("up", decimal.ROUND_CEILING, value, 0),
}


# --- casts


def to_integer(bits: int) -> Kernel:
    """numeric → an integer, rounded half away from zero."""
    kind = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]

    def change(number: Decimal) -> int:
        if number.is_nan() or number.is_infinite():
            raise _Failed(NOT_HELD)  # the class that Postgres gives it, too
        if number.adjusted() > 20:
            raise _Failed(OUT_OF_RANGE)
        whole = int(number.quantize(Decimal(1), rounding=decimal.ROUND_HALF_UP))
        if not -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1):
            raise _Failed(OUT_OF_RANGE)
        return whole

    def cast(value: Value) -> tuple[Value, Value | None]:
        if is_scaled(value):
            near, _ = _to_digits(*_HALF, value, 0)
            if is_scaled(near):
                try:
                    return near.cast(kind), None
                except pa.ArrowInvalid:
                    pass
        return one_by_one(change, value, kind=kind)

    return cast


def to_float(single: bool) -> Kernel:
    """numeric → the nearest float."""

    def change(number: Decimal) -> float:
        found = float(number)
        if number.is_finite() and (found in (float("inf"), float("-inf")) or (found == 0 and not number.is_zero())):
            raise _Failed(OUT_OF_RANGE)
        return found

    return lambda value: one_by_one(change, value, kind=pa.float32() if single else pa.float64())


_NUMERIC: Final = re.compile(r"([+-]?)(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([+-]?\d+))?")
_NUMERIC_WORD: Final = re.compile(r"nan|[+-]?inf(?:inity)?", re.IGNORECASE)
_NEWER: Final = re.compile(r"[+-]?0[xXoObB].*|.*\d_\d.*", re.DOTALL)


def read(text: str) -> Decimal:
    """The number that Postgres reads from a text. Raises ValueError with the SQLSTATE."""
    text = text.strip(" \t\n\v\f\r")
    found = _NUMERIC.fullmatch(text) if text.isascii() else None
    if found is None:
        if text.isascii() and _NUMERIC_WORD.fullmatch(text):
            return Decimal(text)
        raise ValueError(NOT_HELD if _NEWER.fullmatch(text) else NOT_A_VALUE)
    exponent = int(found[5] or 0) if len(found[5] or "") < 8 else 10**6
    if abs(exponent) > 2 * _WHOLE_DIGITS:
        raise ValueError(NOT_HELD)
    number = Decimal(text)
    if -int(number.as_tuple().exponent) > _FRACTION:
        raise ValueError(OUT_OF_RANGE)
    if number.as_tuple().exponent > 0:  # type: ignore[operator]
        number = number.quantize(Decimal(1))
    if number.adjusted() >= _WHOLE_DIGITS and not number.is_zero():
        raise ValueError(OUT_OF_RANGE)
    return number


def from_text(value: Value) -> tuple[Value, Value | None]:
    """A text → numeric."""
    found: list[str | None] = []
    failed: list[str | None] = []
    with decimal.localcontext(_EXACT):
        for text in [value.as_py()] if isinstance(value, pa.Scalar) else value.to_pylist():
            state = number = None
            if text is not None:
                try:
                    number = text_of(read(text))
                except ValueError as error:
                    state = str(error)
            found.append(number)
            failed.append(state)
    numbers, states = pa.array(found, pa.utf8()), pa.array(failed, pa.utf8())
    return (numbers[0], states[0]) if isinstance(value, pa.Scalar) else (numbers, states if any(failed) else None)


def from_integer(value: Value) -> tuple[Value, None]:
    """An integer → numeric."""
    return scaled(value), None


def bounded(precision: int, scale: int) -> Kernel:
    """numeric → numeric(precision, scale)."""
    limit = precision - scale

    def change(number: Decimal) -> Decimal:
        if number.is_nan():
            return number
        if number.is_infinite():
            raise _Failed(OUT_OF_RANGE)
        near = number.quantize(Decimal(1).scaleb(-scale), rounding=decimal.ROUND_HALF_UP)
        if scale < 0:
            near = near.quantize(Decimal(1))
        if not near.is_zero() and near.adjusted() >= limit:
            raise _Failed(OUT_OF_RANGE)
        return near

    def cast(value: Value) -> tuple[Value, Value | None]:
        if is_scaled(value) and 0 <= scale <= precision <= _ROOM:
            near, _ = _to_digits(*_HALF, value, scale)
            if is_scaled(near):
                try:
                    return near.cast(pa.decimal128(precision, scale)), None
                except pa.ArrowInvalid:
                    pass
        return one_by_one(change, value)

    return cast
