"""Record batches → JSON documents, column by column: no Python object per row.

How a value stands in JSON: integers and decimals as number literals (decimals with their exact scale), booleans, floats as the
shortest number that reads back equal (NaN and infinities as strings), dates "2013-01-31", timestamps "2013-01-31T10:00:00.5"
(with a Z when the type has a time zone), bytea in base64, everything else as a string of Postgres's text, byte for byte. A value
that its column's type cannot hold (``_cdc_exact``) is the string of its text, NULL is null. ``sinks.jsontext`` reads it all back.

>>> lines(batch, table)
b'{"_cdc_position":7,"id":1,"amount":1.10,"note":null}\\n'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.batch import OP, POSITION, Op
from cdc.model.evolution import schema_change_of
from cdc.model.table import Table
from sinks import jsonkernels as kernels
from sinks.jsonkernels import ABSENT, NULL, VALUE, Bytes, Offsets
from sinks.rowtext import ExactValues, column_text, exact_values

Mask = npt.NDArray[np.bool_]

DELETED: Final = "_cdc_deleted"
"""Set (to true) in the document that stands for a deleted row; such a document carries the key's columns only."""

_NOTHING: Final = np.empty(0, np.uint8)
_NO_STATES: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Texts:
    """One text per row: uint8 ``data`` and int64 ``offsets``, one more than rows."""

    data: Bytes
    offsets: Offsets

    def __post_init__(self) -> None:
        # A kernel is compiled anew for arrays that may be written to; so none may.
        self.data.flags.writeable = False
        self.offsets.flags.writeable = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def to_array(self) -> pa.Array:
        """As large_binary, without a copy."""
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of every row: ``before`` + the row's text + ``after``; or ``null``, or nothing, where ``states`` says so."""

    texts: Texts
    before: bytes = b""
    after: bytes = b""
    null: bytes = b""
    states: Bytes | None = None


def join(pieces: Sequence[Piece]) -> Texts:
    """Row by row, all pieces one after the other."""
    rows = len(pieces[0].texts)
    lengths = np.zeros(rows, np.int64)
    for piece in pieces:
        states = _NO_STATES if piece.states is None else piece.states
        kernels.add_lengths(lengths, piece.texts.offsets, states, len(piece.before) + len(piece.after), len(piece.null))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    cursors = offsets[:-1].copy()
    for piece in pieces:
        around = (_bytes(piece.before), _bytes(piece.after), _bytes(piece.null))
        states = _NO_STATES if piece.states is None else piece.states
        kernels.put_piece(out, cursors, piece.texts.data, piece.texts.offsets, states, *around)
    return Texts(out, offsets)


def document_pieces(batch: pa.RecordBatch, table: Table, names: Mapping[str, str] | None = None) -> list[Piece]:
    """The pieces of one JSON object per row: ``_cdc_position`` first, then ``_cdc_deleted`` in deletes, then the columns.

    ``names``: the name that a column has in the document, where it is not its own. A delete has the key's columns only.
    """
    deleted = _deleted(batch)
    exact = exact_values(batch)
    pieces = [Piece(position_texts(batch), before=f'{{"{POSITION}":'.encode())]
    if deleted is not None:
        mark = f',"{DELETED}":true'.encode()
        pieces.append(Piece(_empty(len(batch)), before=mark, states=np.where(deleted, VALUE, ABSENT).astype(np.uint8)))
    for column in table.columns:
        label = json.dumps((names or {}).get(column.name, column.name), ensure_ascii=False)
        absent = None if column.key else deleted
        pieces.append(_column_piece(batch.column(column.name), f",{label}:".encode(), exact.get(column.name), absent))
    pieces.append(Piece(_empty(len(batch)), before=b"}"))
    return pieces


def text_document_pieces(batch: pa.RecordBatch, table: Table) -> list[Piece]:
    """As ``document_pieces`` without deletes' marks, but every value is the string of its canonical text."""
    exact = exact_values(batch)
    pieces = [Piece(position_texts(batch), before=f'{{"{POSITION}":'.encode())]
    for column in table.columns:
        label = json.dumps(column.name, ensure_ascii=False)
        pieces.append(_column_piece(column_text(batch, column.name, exact), f",{label}:".encode(), None, None))
    pieces.append(Piece(_empty(len(batch)), before=b"}"))
    return pieces


def documents(batch: pa.RecordBatch, table: Table, names: Mapping[str, str] | None = None) -> Texts:
    """One JSON object per row (see ``document_pieces``)."""
    return join(document_pieces(batch, table, names))


def lines(batch: pa.RecordBatch, table: Table) -> bytes:
    """The batch as NDJSON. A TRUNCATE is the line ``{"_cdc_position":7,"_cdc_truncated":"schema.table"}``, a SCHEMA record the line
    ``{"_cdc_position":7,"_cdc_schema":"schema.table","kind":"altered","columns":[…]}``, with ``"empties":true`` when every row is gone."""
    if (change := schema_change_of(batch)) is not None:
        told: dict[str, Any] = {POSITION: batch.column(POSITION)[0].as_py(), "_cdc_schema": table.qualified, "kind": change.kind}
        told |= (
            {"columns": list(table.names)}
            | ({"empties": True} if change.empties else {})
            | ({"now": change.now} if change.now else {})
        )
        return (json.dumps(told, separators=(",", ":"), ensure_ascii=False) + "\n").encode()
    if len(batch) == 1 and batch.column(OP)[0].as_py() == Op.TRUNCATE:
        position = batch.column(POSITION)[0].as_py()
        return (json.dumps({POSITION: position, "_cdc_truncated": table.qualified}, separators=(",", ":")) + "\n").encode()
    pieces = document_pieces(batch, table)
    return join([*pieces, Piece(_empty(len(batch)), before=b"\n")]).data.tobytes()


def position_texts(batch: pa.RecordBatch) -> Texts:
    """Each row's position in decimal digits."""
    return Texts(*kernels.integer_text(_numbers(batch.column(POSITION))))


def string_texts(values: pa.Array) -> Texts:
    """utf8 values as the inside of JSON strings; empty for NULL."""
    data, offsets = _binary_view(values)
    if kernels.needs_escape(data[offsets[0] : offsets[-1]]):
        return Texts(*kernels.escape_text(data, offsets))
    return Texts(data, offsets)


def raw_texts(values: pa.Array) -> Texts:
    """utf8 or binary values byte for byte, without a copy of the data; NULL must not occur."""
    return Texts(*_binary_view(values))


@cache
def warm_up() -> None:
    """Compiles (once per machine) or loads (once per process) every kernel, so that no batch has to wait for it."""
    nothing, start = _readonly(np.empty(0, np.uint8)), _readonly(np.zeros(1, np.int64))
    none = _readonly(np.empty(0, np.int64))
    kernels.integer_text(none)
    kernels.decimal_text(_readonly(np.empty(0, np.uint64)), 0)
    kernels.date_text(_readonly(np.empty(0, np.int32)))
    kernels.time_text(none)
    kernels.timestamp_text(none, False)
    kernels.base64_text(nothing, start)
    kernels.needs_escape(nothing)
    kernels.escape_text(nothing, start)
    join([Piece(_empty(0))])


def _column_piece(values: pa.Array, label: bytes, exact: ExactValues | None, absent: Mask | None) -> Piece:
    encode, quoted = _encoder(values.type)
    quote = b'"' if quoted else b""
    odd = _odd_literals(values, exact)
    states = _states(values, absent)
    if odd is None:
        return Piece(encode(values), label + quote, quote, label + b"null", states)
    # All literals are written out, then the odd ones take the place of theirs.
    mixed = odd.put_into(join([Piece(encode(values), quote, quote)]).to_array())
    if states is not None:
        states[odd.rows] = np.where(states[odd.rows] == ABSENT, ABSENT, VALUE)
    return Piece(raw_texts(mixed), label, b"", label + b"null", states)


def _odd_literals(values: pa.Array, exact: ExactValues | None) -> ExactValues | None:
    """The JSON literals (large_binary) of the values that their column's encoder cannot write; None when there are none."""
    if exact is not None:
        return ExactValues(exact.rows, join([Piece(string_texts(exact.texts), b'"', b'"')]).to_array())
    if not pa.types.is_floating(values.type):
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    # A NULL is NaN in numpy. Many JSON readers take the literal -0 for an integer and lose its sign.
    odd = ~np.isfinite(numbers) & values.is_valid().to_numpy(zero_copy_only=False) | (numbers == 0) & np.signbit(numbers)
    if not odd.any():
        return None
    rows = np.flatnonzero(odd)
    return ExactValues(rows, pa.array([_odd_float(value) for value in numbers[rows].tolist()], pa.large_binary()))


def _encoder(kind: pa.DataType) -> tuple[Callable[[pa.Array], Texts], bool]:
    """What writes this type's values, and whether they stand in quotes. Where a value is NULL anything may be written."""
    if pa.types.is_integer(kind):
        return lambda values: Texts(*kernels.integer_text(_readonly(_numbers(values).astype(np.int64, copy=False)))), False
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return lambda values: raw_texts(values.cast(pa.utf8())), False
    if pa.types.is_decimal(kind):
        return lambda values: Texts(*kernels.decimal_text(_words(values), kind.scale)), False
    if pa.types.is_date(kind):
        return lambda values: Texts(*kernels.date_text(_numbers(values))), True
    if pa.types.is_time(kind):
        return lambda values: Texts(*kernels.time_text(_numbers(values))), True
    if pa.types.is_timestamp(kind):
        return lambda values: Texts(*kernels.timestamp_text(_numbers(values), kind.tz is not None)), True
    if pa.types.is_binary(kind):
        return lambda values: Texts(*kernels.base64_text(*_binary_view(values))), True
    return string_texts, True


def _states(values: pa.Array, absent: Mask | None) -> Bytes | None:
    if values.null_count == 0 and absent is None:
        return None
    states: Bytes = values.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)  # NULL is 1, VALUE is 0
    assert (VALUE, NULL) == (0, 1)
    if absent is not None:
        states[absent] = ABSENT
    return states


def _deleted(batch: pa.RecordBatch) -> Mask | None:
    deleted = batch.column(OP).to_numpy() == int(Op.DELETE)
    return deleted if deleted.any() else None


def _numbers(values: pa.Array) -> npt.NDArray[Any]:
    """The values' own buffer; what stands at a NULL is anything (mostly 0)."""
    return _view(values.buffers()[1], np.dtype(f"i{values.type.bit_width // 8}"), len(values), values.offset)


def _words(values: pa.Array) -> npt.NDArray[Any]:
    return _view(values.buffers()[1], np.dtype(np.uint64), 2 * len(values), 2 * values.offset)


def _view(buffer: Any, dtype: np.dtype[Any], count: int, offset: int) -> npt.NDArray[Any]:
    """Read-only, without a copy."""
    return _readonly(np.frombuffer(buffer, dtype, count, offset * dtype.itemsize) if count else np.empty(0, dtype))


def _binary_view(values: pa.Array) -> tuple[Bytes, Offsets]:
    """(data, int64 offsets) of a utf8, binary or large array; the data is not copied."""
    dtype = np.dtype(np.int64 if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type) else np.int32)
    _, offsets, data = values.buffers()
    own = _view(offsets, dtype, len(values) + 1, values.offset) if offsets else np.zeros(1, dtype)
    return _readonly(np.frombuffer(data, np.uint8) if data else _NOTHING), _readonly(own.astype(np.int64, copy=False))


def _odd_float(value: float) -> bytes:
    if value == 0:
        return b"-0.0"
    return b'"NaN"' if value != value else b'"Infinity"' if value > 0 else b'"-Infinity"'


def _empty(rows: int) -> Texts:
    return Texts(_NOTHING, np.zeros(rows + 1, np.int64))


def _readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)
