"""JSON documents of ``sinks.jsonrows`` back to exactly the text that Postgres gives, for the audit. Numbers never pass a double."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cdc.model.pgtypes import arrow_type, canonical_text
from cdc.model.table import Table
from sinks.contract import audit_schema


def parse(text: str | bytes) -> Any:
    """Like json.loads, but a number with a fraction or an exponent stays the text it was written as."""
    return json.loads(text, parse_float=str)


def parse_all(documents: Sequence[bytes]) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = parse(b"[" + b",".join(documents) + b"]")
    return parsed


def row_texts(documents: Sequence[Mapping[str, Any]], table: Table, names: Mapping[str, str] | None = None) -> pa.RecordBatch:
    """Documents (as ``parse`` gives them) as rows of canonical text; a column that a document lacks is NULL.

    ``names``: as in ``jsonrows.document_pieces``. Schema: ``sinks.contract.audit_schema(table)``.
    """
    columns = []
    for column in table.columns:
        label = (names or {}).get(column.name, column.name)
        columns.append(_column([document.get(label) for document in documents], arrow_type(column)))
    return pa.RecordBatch.from_arrays(columns, schema=audit_schema(table))


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return _floats(values, kind)
    convert = _converter(kind)
    return pa.array([None if value is None else convert(value) for value in values], pa.utf8())


def _floats(values: list[Any], kind: pa.DataType) -> pa.Array:
    # A column that a store keeps in its former type has texts among them that are no numbers.
    numbers, others = [], {}
    for row, value in enumerate(values):
        try:
            numbers.append(None if value is None else float(value))
        except ValueError:
            numbers.append(None)
            others[row] = value
    texts = canonical_text(pa.array(numbers, pa.float64()).cast(kind))
    return pa.array([others.get(row, text) for row, text in enumerate(texts.to_pylist())], pa.utf8()) if others else texts


def _converter(kind: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_boolean(kind):
        return lambda value: "t" if value is True else "f"
    if pa.types.is_binary(kind):
        return lambda value: "\\x" + base64.b64decode(value).hex()
    if pa.types.is_timestamp(kind):
        return _timestamp
    return str


def _timestamp(value: str) -> str:
    # The form that jsonrows writes has a T there; what came through _cdc_exact (infinity, BC, long years) never has.
    if value[10:11] != "T":
        return value
    date, _, clock = value.partition("T")
    return f"{date} {clock.removesuffix('Z')}+00" if clock.endswith("Z") else f"{date} {clock}"
