"""Stored rows as columns of what they mean, without a Python object for any of them: what ``jsontext.row_texts`` says of most documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.pgtypes import canonical_text
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from sinks.contract import audit_schema
from sinks.render import readkernels as kernels
from sinks.render.jsonkernels import Bytes, Offsets
from sinks.render.jsonrows import Style, label_of, place_of
from sinks.render.kinds import Kind, Leaf, kind_of
from sinks.render.meaning import canonical_texts
from sinks.render.texts import NOTHING, Texts, readonly
from sinks.render.valuekernels import column_texts

Mask = npt.NDArray[np.bool_]

_AS: Final = {
    Leaf.TEXT: kernels.TEXT,
    Leaf.INTERVAL: kernels.TEXT,
    Leaf.NUMBER: kernels.NUMBER,
    Leaf.BOOL: kernels.BOOL,
    Leaf.MOMENT: kernels.MOMENT,
    Leaf.BYTES: kernels.BYTES,
}
_FLOATS: Final = {Scalar(ScalarType.FLOAT4): pa.float32(), Scalar(ScalarType.FLOAT8): pa.float64()}
_NUMERIC: Final = Scalar(ScalarType.NUMERIC)
_BYTES_MAX: Final = 2**31 // 8
"""Of documents read together: what they mean is at most six times as long, and stands in a column whose offsets have 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The names of a table's columns in its documents, one after the other. ``kinds``: what each is to be, as ``readkernels`` has it."""

    data: Bytes
    ends: Offsets
    kinds: Bytes
    columns: tuple[tuple[TopicField, Kind], ...]

    @classmethod
    def of(cls, names: list[bytes], columns: list[tuple[TopicField, Kind]], kinds: list[int]) -> Labels:
        ends = np.cumsum([0, *map(len, names)]).astype(np.int64)
        data = np.frombuffer(b"".join(names), np.uint8) if names else NOTHING
        return cls(readonly(data), readonly(ends), readonly(np.array(kinds, np.uint8)), tuple(columns))


class Members(NamedTuple):
    """Where each column's value stands in ``data``, by row and column. ``left``: rows that nothing is known of."""

    data: Bytes
    spans: Offsets
    tokens: Bytes
    left: Mask


class Read(NamedTuple):
    """``rows``: as ``audit_schema``. ``left``: the mask of rows that are to be read by ``row_texts``; here they are anything."""

    rows: pa.RecordBatch
    left: Mask


@lru_cache(maxsize=256)
def labels_of(schema: TopicSchema, style: Style, *, quoted: bool = True) -> Labels | None:
    """``quoted``: as they stand in JSON. None where values stand in objects further in."""
    names, columns, kinds = [], [], []
    for column in schema.fields:
        if not column.shown:
            continue
        way = place_of(column, style)
        if len(way) > 1 or (column.path and not quoted):
            return None
        kind = kind_of(column, style.as_.get(column.name))
        names.append(label_of(way[0])[:-1] if quoted else way[0].encode())
        columns.append((column, kind))
        kinds.append(_as(column, kind, style))
    return Labels.of(names, columns, kinds) if names else None


def nothing_read(count: int, schema: TopicSchema) -> Read:
    """All of so many rows are left."""
    texts = audit_schema(schema)
    return Read(pa.RecordBatch.from_arrays([pa.nulls(count, pa.utf8()) for _ in texts], schema=texts), np.ones(count, np.bool_))


def _as(column: TopicField, kind: Kind, style: Style) -> int:
    if kind is Leaf.NUMBER and style.doubles and column.structure == _NUMERIC:
        return kernels.DOUBLE
    return _AS.get(kind, kernels.AS_IT_IS) if isinstance(kind, Leaf) else kernels.AS_IT_IS


def document_members(data: Bytes, starts: Offsets, stops: Offsets, labels: Labels) -> Members:
    """Finds the members of JSON objects, each of which is ``data[start:stop]``."""
    count = len(labels.ends) - 1
    spans, tokens = np.zeros((len(starts), count, 2), np.int64), np.zeros((len(starts), count), np.uint8)
    left = kernels.object_members(data, starts, stops, labels.data, labels.ends, spans, tokens)
    return Members(data, spans, tokens, left)


def rows_of_members(found: Members, schema: TopicSchema, labels: Labels, style: Style, *, parsed: bool = True) -> Read:
    """The rows whose values stand there. ``parsed``: a value that the kernels leave is JSON, and may be parsed by itself."""
    if found.data.size > _BYTES_MAX:
        return nothing_read(len(found.left), schema)
    left = found.left.copy()
    kernels.leave_without_members(found.tokens, left)
    known = {column.name: at for at, (column, _) in enumerate(labels.columns)}
    whole = _is_utf8(found.data)
    columns = []
    for column in schema.fields:
        at = known.get(column.name)
        if at is None:
            columns.append(pa.nulls(len(left), pa.utf8()))
            continue
        columns.append(_column(found, at, labels, style, left, parsed, whole))
    return Read(pa.RecordBatch.from_arrays(columns, schema=audit_schema(schema)), left)


def _column(found: Members, at: int, labels: Labels, style: Style, left: Mask, parsed: bool, whole: bool) -> pa.Array:
    """``whole``: all of ``found.data`` is UTF-8, and so is each text out of it, as these stand between characters of ASCII."""
    (column, kind), how = labels.columns[at], int(labels.kinds[at])
    spans, tokens = found.spans[:, at], found.tokens[:, at]
    scale = column.type.scale if how == kernels.DOUBLE and pa.types.is_decimal(column.type) else 0
    json = how == kernels.AS_IT_IS and kind in (Leaf.JSON, Leaf.JSONB, Leaf.LOOSE_JSON)
    if how == kernels.AS_IT_IS and not json:  # JSON's null is NULL
        tokens = np.where(tokens == kernels.IS_NULL, kernels.NO_MEMBER, tokens).astype(np.uint8)
    data, offsets, valid = column_texts(found.data, spans, tokens, how, scale, left)
    if how == kernels.AS_IT_IS:
        texts = Texts(data, offsets.astype(np.int64))
        canonical, odd = canonical_texts(texts, valid.astype(np.bool_), doubles=style.doubles, parsed=parsed)
        left[odd] = True
        return canonical
    plain = utf8(data, offsets, valid, checked=whole)
    if plain is None:
        left[:] = True
        return pa.nulls(len(left), pa.utf8())
    held = _FLOATS.get(column.structure) if how == kernels.NUMBER and isinstance(column.structure, Scalar) else None
    return plain if held is None else _floats(plain, tokens, held, left)


def _is_utf8(data: Bytes) -> bool:
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int64)), pa.py_buffer(data))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def utf8(data: Bytes, offsets: npt.NDArray[np.int32], valid: Bytes, *, checked: bool = False) -> pa.Array | None:
    """None where a text is not UTF-8. ``checked``: all are."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    texts = pa.StringArray.from_buffers(len(valid), pa.py_buffer(offsets), pa.py_buffer(data), bitmap, nulls)
    if checked:
        return texts
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return texts


def _floats(texts: pa.Array, tokens: Bytes, held: pa.DataType, left: Mask) -> pa.Array:
    """What a float is as a number counts; NaN and the infinities are texts."""
    numbers = pa.array((tokens == kernels.IS_WHOLE) | (tokens == kernels.IS_REAL))
    try:
        read = pc.if_else(numbers, texts, pa.scalar(None, pa.utf8())).cast(pa.float64()).cast(held)
    except pa.ArrowInvalid:
        left |= numbers.to_numpy(zero_copy_only=False)
        return texts
    return pc.if_else(numbers, canonical_text(read), texts)
