"""Aggregates of a group's rows: columns in the engine's SQL, and Postgres's value made of them. Pure."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.arraytexts import element_texts
from cdc.expressions.decimals import ARITHMETIC, text_of
from cdc.expressions.objects import jsonb_texts, order_of_name
from cdc.expressions.objects import quoted as in_json
from cdc.expressions.pgtype import PgType
from cdc.model.pgtypes import canonical_text
from cdc.views.enginesql import quoted
from cdc.views.held import ViewStopped
from cdc.views.plan import Aggregate, Order, PlanColumn, has_scale

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
    kind = one.argument.kind
    if one.label is not None:
        return _object(one, name, kind, there, order)
    made = _arrays if one.name == "array_agg" else _json_arrays
    return [f"list({value}{order}) {where(there)} AS {name}"], lambda parts: made(kind, parts[name])


def _arrays(kind: PgType, lists: pa.Array) -> pa.Array:
    """array_agg of each list, whose values are of this type."""
    pieces = pa.ListArray.from_arrays(lists.offsets, element_texts(kind, lists.values), mask=lists.is_null())
    return pc.binary_join_element_wise("{", pc.binary_join(pieces, ","), "}", "")


def _json_arrays(kind: PgType, lists: pa.Array) -> pa.Array:
    """jsonb_agg of each list, whose values are of this type."""
    pieces = pa.ListArray.from_arrays(lists.offsets, jsonb_texts(kind, lists.values), mask=lists.is_null())
    return pc.binary_join_element_wise("[", pc.binary_join(pieces, ", "), "]", "")


def _object(one: Aggregate, name: str, kind: PgType, there: list[str], order: str) -> tuple[list[str], Finish]:
    """Two lists in one order, which is total: the object's names, and their values."""
    assert one.argument is not None
    assert one.label is not None
    columns = [
        f"list({quoted(column.name)}{order}) {where(there)} AS {part}"
        for column, part in ((one.label, f"n{name}"), (one.argument, name))
    ]
    return columns, lambda parts: _objects(kind, parts[f"n{name}"], parts[name])


def _objects(kind: PgType, names: pa.Array, lists: pa.Array) -> pa.Array:
    """jsonb_object_agg of each pair of lists: of equal names the last one stays. Raises ViewStopped."""
    values = pa.ListArray.from_arrays(lists.offsets, jsonb_texts(kind, lists.values), mask=lists.is_null())
    return pa.array(
        [
            None if labels is None else _object_of(labels, texts)
            for labels, texts in zip(names.to_pylist(), values.to_pylist(), strict=True)
        ],
        pa.utf8(),
    )


def _object_of(labels: Sequence[str | None], texts: Sequence[str]) -> str:
    members: dict[str, str] = {}
    for label, text in zip(labels, texts, strict=True):
        if label is None:
            raise ViewStopped("a name of jsonb_object_agg is NULL", hint="leave such rows out with FILTER (WHERE name IS NOT NULL)")
        members[label] = text
    return "{" + ", ".join(f"{in_json(label)}: {members[label]}" for label in sorted(members, key=order_of_name)) + "}"


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


def where(conditions: Sequence[str]) -> str:
    """FILTER in the engine's SQL."""
    return f"FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
