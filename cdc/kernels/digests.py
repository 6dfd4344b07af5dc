"""Rows of text columns as fixed-size digests: what the audit sorts and compares instead of the rows themselves.

A column is hashed straight from its Arrow buffers, seeded per audit and per column, so no Python object stands for a row. SQL NULL, the empty string
and "no column" give three different digests, and so does every byte: trailing spaces and the scale of a numeric count.

Keys have murmur3's 128 bits, which are kept in files as well. Rows have 64 bits that are never kept: sixteen bytes for each multiplication of two words to
128 bits, whose halves are folded, under secrets that nobody knows who could choose the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.jit import inlined, kernel
from cdc.kernels.windows import eight_bytes, folded, some_bytes

U64 = npt.NDArray[np.uint64]

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_FOLD: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_SECOND: Final = np.uint64(0xA0761D6478BD642F)
_THIRD: Final = np.uint64(0xE7037ED1A0B428DB)
_NO_BYTES: Final = np.frombuffer(b"", np.uint8)
_NO_ROWS: Final = np.frombuffer(bytes(4), np.int32)

_Column = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint8], int]
"""As ``_buffers`` has it, and the place of the first row's bit in the bitmap."""


class Digests(NamedTuple):
    """One entry per row; ``high`` and ``low`` together are the key's 128 bits, ``row`` covers every column."""

    high: U64
    low: U64
    row: U64


@inlined
def _rotl(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def mixed(value: np.uint64) -> np.uint64:
    """murmur3's last step: every bit of the value is in every bit of it."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    value ^= value >> np.uint64(33)
    return value


class _Hash(NamedTuple):
    high: np.uint64
    low: np.uint64


@kernel
def _murmur128(data: npt.NDArray[np.uint8], start: int, end: int, seed: np.uint64) -> _Hash:
    h1 = seed
    h2 = seed
    at = start
    while at + 16 <= end:
        k1 = some_bytes(data, at, 8) * _C1
        h1 ^= _rotl(k1, 31) * _C2
        h1 = (_rotl(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        k2 = some_bytes(data, at + 8, 8) * _C2
        h2 ^= _rotl(k2, 33) * _C1
        h2 = (_rotl(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
        at += 16
    left = end - at
    if left > 8:
        k2 = some_bytes(data, at + 8, left - 8) * _C2
        h2 ^= _rotl(k2, 33) * _C1
    if left > 0:
        k1 = some_bytes(data, at, min(left, 8)) * _C1
        h1 ^= _rotl(k1, 31) * _C2
    length = np.uint64(end - start)
    h1 ^= length
    h2 ^= length
    h1 += h2
    h2 += h1
    h1 = mixed(h1)
    h2 = mixed(h2)
    h1 += h2
    h2 += h1
    return _Hash(h1, h2)


@kernel
def _fold_key(column: _Column, seed: np.uint64, high: U64, low: U64) -> None:
    """Adds a column to the keys' digests."""
    offsets, data, bitmap, bit_offset = column
    for i in range(high.size):
        bit = bit_offset + i
        if bitmap.size and not (bitmap[bit >> 3] >> (bit & 7)) & 1:
            h1 = mixed(seed ^ _NULL)
            h2 = mixed(h1 + _FOLD)
        else:
            found = _murmur128(data, offsets[i], offsets[i + 1], seed)
            h1 = found.high
            h2 = found.low
        high[i] = mixed(high[i] * _FOLD + h1)
        low[i] = mixed(low[i] * _FOLD + h2)


@kernel
def _fold_rows(column: _Column, seed: np.uint64, row: U64) -> None:
    """Adds a column to the rows' digests."""
    offsets, data, bitmap, bit_offset = column
    first = mixed(seed ^ _FOLD)
    second = mixed(seed ^ _SECOND)
    third = mixed(seed ^ _THIRD)
    null = mixed(seed ^ _NULL)
    start: Any = np.int64(offsets[0])
    for i in range(row.size):
        end: Any = np.int64(offsets[i + 1])
        size = end - start
        state = row[i] ^ first
        bit = bit_offset + i
        if bitmap.size and not (bitmap[bit >> 3] >> (bit & 7)) & 1:
            row[i] = folded(null, folded(state, null))
        else:
            at = start
            while end - at > 16:
                state = folded(eight_bytes(data, at) ^ second, eight_bytes(data, at + 8) ^ state)
                at += 16
            # What is left, at most sixteen bytes: as two words, which overlap where it is less and there are enough bytes before it.
            if end - at > 8:
                one = eight_bytes(data, at)
                other = eight_bytes(data, end - 8)
            else:
                one = some_bytes(data, at, end - at)
                other = np.uint64(0)
            row[i] = folded(third ^ np.uint64(size), folded(one ^ second, other ^ state))
        start = end


def digests(batch: pa.RecordBatch, key: Sequence[int], seed: int) -> Digests:
    """The digests of a batch's rows. Every column is utf8; ``key``: the indices of the key's columns.

    Raises TypeError for a column that is not utf8.
    """
    rows = batch.num_rows
    row, high, low = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
    keys = frozenset(key)
    for index, column in enumerate(batch.columns):
        if column.type != pa.utf8():
            raise TypeError(f"the audit compares text, but column {batch.schema.names[index]!r} is {column.type}")
        column_seed = np.uint64((seed + (index + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)
        given = (*_buffers(column), column.offset)
        _fold_rows(given, column_seed, row)
        if index in keys:
            _fold_key(given, column_seed, high, low)
    return Digests(high, low, row)


def fold_column(column: pa.Array, seed: int, rows: U64) -> None:
    """Folds one column of texts or bytes into the rows' 64 bits, in place."""
    _fold_rows((*_buffers(column), column.offset), np.uint64(seed), rows)


def _buffers(column: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """(offsets of exactly this slice, the bytes they point into, the validity bitmap or an empty array)."""
    bitmap, offsets, data = column.buffers()
    rows = len(column)
    if rows == 0 or offsets is None:
        return _NO_ROWS, _NO_BYTES, _NO_BYTES
    return (
        _readonly(np.frombuffer(offsets, np.int32, rows + 1, column.offset * 4)),
        _NO_BYTES if data is None else _readonly(np.frombuffer(data, np.uint8)),
        _NO_BYTES if bitmap is None or column.null_count == 0 else _readonly(np.frombuffer(bitmap, np.uint8)),
    )


def _readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whether a buffer of Arrow's may be written to depends on who made it, and for each mix of them the kernel would be compiled once more."""
    array.flags.writeable = False
    return array
