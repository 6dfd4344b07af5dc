"""Aggregates of a group's rows: columns in the engine's SQL, and Postgres's value made of them. Pure."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.decimals import ARITHMETIC, text_of
from cdc.model.pgtypes import canonical_text
from cdc.views.plan import Aggregate, has_scale
from cdc.views.state import quoted

Finish = Callable[[Mapping[str, pa.Array]], pa.Array]

_EXACT: Final = decimal.Context(prec=400_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[decimal.InvalidOperation])


def sliced(number: int, one: Aggregate) -> tuple[list[str], Finish]:
    """``number``: of the aggregate, for the names of its columns."""
    name = f"a{number}"
    there = [quoted(one.condition)] if one.condition else []
    if one.argument is None:
        return [f"count(*) {_where(there)} AS {name}"], lambda parts: parts[name].cast(pa.int64())
    value = quoted(one.argument.name)
    valid = _where([*there, f"{value} IS NOT NULL"])
    if one.name == "count":
        return [f"count({'DISTINCT ' if one.distinct else ''}{value}) {_where(there)} AS {name}"], lambda parts: parts[name].cast(
            pa.int64()
        )
    if one.name in ("bool_and", "bool_or"):
        return [f"{one.name}({value}) {_where(there)} AS {name}"], lambda parts: parts[name]
    if one.name in ("min", "max"):
        return _extreme(one, name, value, there)
    if one.name in ("sum", "avg"):
        if one.argument.kind.name == "numeric" and not has_scale(one.argument.kind):
            return [f"list({value}) {valid} AS {name}"], lambda parts: pa.array(
                [_sum_of_texts(texts, one.name) for texts in parts[name].to_pylist()], pa.utf8()
            )
        total, count = f"CAST(sum({value}) {_where(there)} AS VARCHAR) AS {name}", f"count({value}) {_where(there)} AS n{name}"
        return [total, count], lambda parts: _sum(one, parts[name], parts[f"n{name}"])
    order = f" ORDER BY {_ordered(one)}"
    if one.name == "string_agg":
        return [f"list({value}{order}) {valid} AS {name}"], lambda parts: pa.array(
            [None if texts is None else _joined(texts, one.separator) for texts in parts[name].to_pylist()], pa.utf8()
        )
    return [f"list({value}{order}) {_where(there)} AS {name}"], lambda parts: pa.array(
        [None if values is None else _jsonb(values, one) for values in parts[name].to_pylist()], pa.utf8()
    )


def _joined(texts: list[str], separator: str | None) -> str:
    return ("" if separator is None else separator).join(texts)


def _ordered(one: Aggregate) -> str:
    return ", ".join(
        f"{quoted(order.column)} {'DESC' if order.descending else 'ASC'} NULLS {'FIRST' if order.nulls_first else 'LAST'}"
        for order in one.order
    )


def _extreme(one: Aggregate, name: str, value: str, there: list[str]) -> tuple[list[str], Finish]:
    def finish(parts: Mapping[str, pa.Array]) -> pa.Array:
        found = parts[name]
        return canonical_text(found) if pa.types.is_decimal(found.type) else found

    return [f"{one.name}({value}) {_where(there)} AS {name}"], finish


def _sum(one: Aggregate, total: pa.Array, count: pa.Array) -> pa.Array:
    if one.name == "avg":
        quotient, _ = ARITHMETIC["/"](total, pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count.cast(pa.int64())))
        return quotient
    return total.cast(one.column.held)


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


def _jsonb(values: list[Any], one: Aggregate) -> str:
    return "[" + ", ".join(_json(value) for value in values) + "]"


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
    return _ESCAPED.sub_text(value)


class _Escapes:
    """Postgres escapes quotes, backslashes and control characters, and nothing else."""

    _SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}

    def sub_text(self, text: str) -> str:
        return '"' + "".join(self._SHORT.get(sign) or (f"\\u{ord(sign):04x}" if sign < " " else sign) for sign in text) + '"'


_ESCAPED: Final = _Escapes()


def _where(conditions: list[str]) -> str:
    return f"FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


assert json
