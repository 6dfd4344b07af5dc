"""Rows of text columns as fixed-size digests: what the audit sorts and compares instead of the rows themselves.

A column is hashed straight from its Arrow buffers (murmur3, 128 bit, seeded per audit and per column), so no Python object
stands for a row. SQL NULL, the empty string and "no column" give three different digests, and so does every byte: trailing
spaces and the scale of a numeric count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.jit import inlined, kernel
from cdc.kernels.windows import eight_bytes

U64 = npt.NDArray[np.uint64]

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_FOLD: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
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


@inlined
def _word(data: Any, at: int, length: int) -> Any:
    """Up to eight bytes, little endian: one load where eight lie in the array."""
    if length == 0:
        word = np.uint64(0)
    elif at + 8 <= data.size:
        word = eight_bytes(data, at) & (_ALL >> np.uint64(8 * (8 - length)))
    else:
        word = np.uint64(0)
        for k in range(length):
            word |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return word


class _Hash(NamedTuple):
    high: np.uint64
    low: np.uint64


@kernel
def _murmur128(data: npt.NDArray[np.uint8], start: int, end: int, seed: np.uint64) -> _Hash:
    h1 = seed
    h2 = seed
    at = start
    while at + 16 <= end:
        k1 = _word(data, at, 8) * _C1
        h1 ^= _rotl(k1, 31) * _C2
        h1 = (_rotl(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        k2 = _word(data, at + 8, 8) * _C2
        h2 ^= _rotl(k2, 33) * _C1
        h2 = (_rotl(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
        at += 16
    left = end - at
    if left > 8:
        k2 = _word(data, at + 8, left - 8) * _C2
        h2 ^= _rotl(k2, 33) * _C1
    if left > 0:
        k1 = _word(data, at, min(left, 8)) * _C1
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
def _fold_column(column: _Column, seed: np.uint64, row: U64, high: U64, low: U64, key: bool) -> None:
    offsets, data, bitmap, bit_offset = column
    for i in range(row.size):
        bit = bit_offset + i
        if bitmap.size and not (bitmap[bit >> 3] >> (bit & 7)) & 1:
            h1 = mixed(seed ^ _NULL)
            h2 = mixed(h1 + _FOLD)
        else:
            found = _murmur128(data, offsets[i], offsets[i + 1], seed)
            h1 = found.high
            h2 = found.low
        row[i] = mixed(row[i] * _FOLD + h1)
        if key:
            high[i] = mixed(high[i] * _FOLD + h1)
            low[i] = mixed(low[i] * _FOLD + h2)


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
        _fold_column((*_buffers(column), column.offset), column_seed, row, high, low, index in keys)
    return Digests(high, low, row)


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
