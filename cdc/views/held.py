"""Rows of topics ↔ the kernel's own form of them: the expressions' engine's. Pure.

Dates are days and times microseconds since 1970 with infinity at the ends, numbers with a scale decimals, other numbers their text; what an expression can
only carry is its text. So a value is one value, where a batch has exact texts beside its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import HeadwaterError
from cdc.expressions.outside import given, handed_out
from cdc.model.batch import EXACT, EXACT_TYPE
from cdc.model.pgtypes import canonical_text
from cdc.views.plan import PlanColumn


class ViewStopped(HeadwaterError):
    """The view has no exact value for rows that its topics have now. Nothing of the range has been applied."""


def held(rows: pa.Table, columns: Mapping[str, PlanColumn], topic: str) -> pa.Table:
    """The columns in the kernel's form, under the plan's names. ``columns``: the topic's field → its column. Raises ViewStopped."""
    exact = _exact(rows)
    made = []
    for name, column in columns.items():
        values = rows.column(name).combine_chunks()
        made.append(_held(values, column, exact.get(name, {}), f"{topic}.{name}"))
    return pa.Table.from_arrays(made, schema=schema_of(columns.values()))


def _held(values: pa.Array, column: PlanColumn, exact: Mapping[int, str], where: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if column.kind.name in ("own", "opaque"):
        if pa.types.is_binary(values.type):
            return values
        texts = canonical_text(values)
        if not exact:
            return texts
        return pa.array([exact.get(row, text) for row, text in enumerate(texts.to_pylist())], pa.utf8())
    if exact and column.kind.name == "numeric" and pa.types.is_decimal(values.type):
        raise ViewStopped(
            f"{where} has the value NaN, of which a view makes nothing",
            hint=f"correct it in the database, or leave {where} out of the view",
        )
    found, failed = given(column.kind, values, exact)
    if failed is not None:
        raise ViewStopped(
            f"{where} has a value that a view cannot hold", hint=f"correct it in the database, or leave {where} out of the view"
        )
    return found.cast(column.held)


def _exact(rows: pa.Table) -> dict[str, dict[int, str]]:
    """Column → row → text."""
    found: dict[str, dict[int, str]] = {}
    if EXACT in rows.column_names:
        texts = rows.column(EXACT).combine_chunks()
        if texts.null_count < len(texts):
            for row in pc.indices_nonzero(texts.is_valid()).to_pylist():
                for name, text in texts[row].as_py():
                    found.setdefault(name, {})[row] = text
    return found


def schema_of(columns: Iterable[PlanColumn]) -> pa.Schema:
    """The kernel's schema of these columns."""
    return pa.schema([(one.name, one.held) for one in columns])


def released(rows: pa.Table, columns: Mapping[str, PlanColumn]) -> pa.Table:
    """The rows as a topic has them. ``columns``: the view's field → its column. ``_cdc_exact`` is there where a value needs it."""
    made: dict[str, pa.Array] = {}
    exact: dict[int, list[tuple[str, str]]] = {}
    for name, column in columns.items():
        values = rows.column(column.name)
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        made[name], texts = _released(values, column)
        if texts is not None:
            for row, text in enumerate(texts.to_pylist()):
                if text is not None:
                    exact.setdefault(row, []).append((name, text))
    if exact:
        made[EXACT] = pa.array([exact.get(row) for row in range(rows.num_rows)], EXACT_TYPE)
    return pa.table(made)


def _released(values: pa.Array, column: PlanColumn) -> tuple[pa.Array, pa.Array | None]:
    field = column.field
    if column.kind.name not in ("own", "opaque"):
        kind = column.kind
        return handed_out(kind, values)
    assert field is not None
    if values.type == field.type:
        return values, None
    odd = pc.starts_with(values, "24:") if pa.types.is_time64(field.type) else pa.array([False] * len(values))
    odd = pc.fill_null(odd, False)
    plain = _of_texts(pc.if_else(odd, pa.scalar(None, pa.utf8()), values), field.type)
    texts = pc.if_else(odd, values, pa.scalar(None, pa.utf8()))
    return plain, texts if texts.null_count < len(texts) else None


def _of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of these texts. Arrow reads a time of day only behind a date."""
    if pa.types.is_time64(kind):
        return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp("us")).cast(kind)
    return texts.cast(kind)
