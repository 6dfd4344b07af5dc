"""Keys given as canonical text, as the typed columns that a table's key plan compares. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT, EXACT_TYPE
from cdc.model.topic import TopicSchema


def typed(keys: pa.RecordBatch, schema: TopicSchema) -> Mapping[str, pa.Array]:
    """The key's columns typed as in a batch of changes, and ``_cdc_exact`` for what their types cannot hold."""
    exact: list[list[tuple[str, str]]] = [[] for _ in range(keys.num_rows)]
    columns: dict[str, pa.Array] = {}
    for column in schema.key:
        texts = keys.column(column.name)
        kind = pa.utf8() if pa.types.is_time64(column.type) else column.type
        try:
            columns[column.name] = _parsed(texts, kind)
        except (pa.ArrowInvalid, ValueError):
            columns[column.name] = _one_by_one(texts, kind, column.name, exact)
    columns[EXACT] = pa.array([pairs or None for pairs in exact], EXACT_TYPE)
    return columns


def _one_by_one(texts: pa.Array, kind: pa.DataType, name: str, exact: list[list[tuple[str, str]]]) -> pa.Array:
    values = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(_parsed(pa.array([text], pa.utf8()), kind))
        except (pa.ArrowInvalid, ValueError):
            exact[row].append((name, text))
            values.append(pa.nulls(1, kind))
    return pa.concat_arrays(values)


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        return pa.array(
            [None if text is None else bytes.fromhex(text.removeprefix("\\x")) for text in texts.to_pylist()], pa.binary()
        )
    if pa.types.is_timestamp(kind):
        return pc.replace_substring_regex(texts, r"\+00$", "").cast(pa.timestamp("us")).cast(kind)
    return texts.cast(kind)
