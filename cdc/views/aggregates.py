"""Aggregates of a group's rows: columns in the engine's SQL, and Postgres's value made of them. Pure."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.decimals import ARITHMETIC, text_of
from cdc.model.pgtypes import canonical_text
from cdc.views.held import ViewStopped
from cdc.views.plan import Aggregate, Order, PlanColumn, has_scale
from cdc.views.state import quoted

Finish = Callable[[Mapping[str, pa.Array]], pa.Array]

_EXACT: Final = decimal.Context(prec=400_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[decimal.InvalidOperation])


def sliced(number: int, one: Aggregate) -> tuple[list[str], Finish]:
    """``number``: of the aggregate, for the names of its columns."""
    name = f"a{number}"
    there = [quoted(one.condition)] if one.condition else []
    if one.argument is None:
        return [f"count(*) {where(there)} AS {name}"], lambda parts: parts[name].cast(pa.int64())
    value = quoted(one.argument.name)
    valid = where([*there, f"{value} IS NOT NULL"])
    if one.name == "count":
        return [f"count({'DISTINCT ' if one.distinct else ''}{value}) {where(there)} AS {name}"], lambda parts: parts[name].cast(
            pa.int64()
        )
    if one.name in ("bool_and", "bool_or"):
        return [f"{one.name}({value}) {where(there)} AS {name}"], lambda parts: parts[name]
    if one.name in ("min", "max"):
        return _extreme(one, name, value, there)
    if one.name in ("sum", "avg"):
        if one.argument.kind.name == "numeric" and not has_scale(one.argument.kind):
            return [f"list({value}) {valid} AS {name}"], lambda parts: pa.array(
                [_sum_of_texts(texts, one.name) for texts in parts[name].to_pylist()], pa.utf8()
            )
        total, count = f"CAST(sum({value}) {where(there)} AS VARCHAR) AS {name}", f"count({value}) {where(there)} AS n{name}"
        return [total, count], lambda parts: _sum(one, parts[name], parts[f"n{name}"])
    order = f" ORDER BY {ordered(one.order)}"
    if one.name == "string_agg":
        return [f"list({value}{order}) {valid} AS {name}"], lambda parts: pa.array(
            [None if texts is None else _joined(texts, one.separator) for texts in parts[name].to_pylist()], pa.utf8()
        )
    texts_of_numbers = one.argument.kind.name == "numeric" and not has_scale(one.argument.kind)
    return [f"list({value}{order}) {where(there)} AS {name}"], lambda parts: pa.array(
        [None if values is None else _jsonb(values, texts_of_numbers) for values in parts[name].to_pylist()], pa.utf8()
    )


def ordered(orders: Sequence[Order]) -> str:
    """ORDER BY in the engine's SQL."""
    return ", ".join(
        f"{quoted(one.column)} {'DESC' if one.descending else 'ASC'} NULLS {'FIRST' if one.nulls_first else 'LAST'}"
        for one in orders
    )


def of_sums(name: str, column: PlanColumn, count: pa.Array, total: pa.Array) -> pa.Array:
    """The aggregate from the number of its values and their sum; of booleans from how many are true. Raises ViewStopped."""
    none = pc.equal(count, 0)
    if name == "count":
        return count
    if name in ("bool_and", "bool_or"):
        found = pc.equal(total, count) if name == "bool_and" else pc.greater(total, 0)
        return pc.if_else(none, pa.scalar(None, pa.bool_()), found)
    total = pc.if_else(none, pa.scalar(None, total.type), total)
    if name == "avg":
        quotient, _ = ARITHMETIC["/"](canonical_text(total), pc.if_else(none, pa.scalar(None, pa.int64()), count))
        return quotient
    return canonical_text(total) if pa.types.is_string(column.held) else _bigint(total)


def _bigint(total: pa.Array) -> pa.Array:
    try:
        return total.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ViewStopped("a sum is out of the range of bigint", hint="write sum(x::bigint), which is numeric") from None


def _joined(texts: list[str], separator: str | None) -> str:
    return ("" if separator is None else separator).join(texts)


def _extreme(one: Aggregate, name: str, value: str, there: list[str]) -> tuple[list[str], Finish]:
    def finish(parts: Mapping[str, pa.Array]) -> pa.Array:
        found = parts[name]
        return canonical_text(found) if pa.types.is_decimal(found.type) else found

    return [f"{one.name}({value}) {where(there)} AS {name}"], finish


def _sum(one: Aggregate, total: pa.Array, count: pa.Array) -> pa.Array:
    if one.name == "avg":
        quotient, _ = ARITHMETIC["/"](total, pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count.cast(pa.int64())))
        return quotient
    return total if pa.types.is_string(one.column.held) else _bigint(total)


def _sum_of_texts(texts: list[str] | None, name: str) -> str | None:
    """Numbers of any scale: the sum has the largest one."""
    if not texts:
        return None
    numbers = [Decimal(text) for text in texts]
    with decimal.localcontext(_EXACT):
        if any(number.is_nan() for number in numbers) or {Decimal("Infinity"), Decimal("-Infinity")} <= set(numbers):
            return "NaN"
        total = sum(numbers[1:], numbers[0])
        if name == "sum" or not total.is_finite():
            return text_of(total)
    quotient, _ = ARITHMETIC["/"](pa.scalar(text_of(total), pa.utf8()), pa.scalar(len(numbers), pa.int64()))
    return str(quotient.as_py())


def _jsonb(values: list[Any], texts_of_numbers: bool) -> str:
    """NaN and infinity are strings in JSON."""
    return "[" + ", ".join(value if texts_of_numbers and value and value[-1].isdigit() else _json(value) for value in values) + "]"


def _json(value: Any) -> str:
    """As Postgres prints a jsonb value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return text_of(value)
    return '"' + "".join(_SHORT.get(sign) or (f"\\u{ord(sign):04x}" if sign < " " else sign) for sign in value) + '"'


_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
"""What Postgres escapes beside control characters."""


def where(conditions: Sequence[str]) -> str:
    """FILTER in the engine's SQL."""
    return f"FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
