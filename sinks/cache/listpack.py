"""Hashes of short fields as the server itself keeps them: a listpack, in the envelope that RESTORE takes.

::

    16  length  | bytes  items  (entry, its length)…  255 |  version of the dump format, CRC-64 of all before
    a hash        the listpack: name, value, name, value …

The server takes this in as it is: one copy, instead of an object, a search and a longer listpack for each name and value. It does not look whether its
own limits would have let such a hash be a listpack, so only what stays below their defaults is made here (``hash-max-listpack-value``, ``-entries``).
Like the server, whole numbers are kept as such, which makes a hash no larger in its memory than the same one by HSET.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import kernel
from cdc.kernels.memcpy import copied

FIELDS_MAX: Final = 128
TEXT_BYTES_MAX: Final = 63
"""An entry of such a text has one byte in front of it, and one behind it."""

UNREADABLE: Final = b"-ERR Bad data format\r\n"

_HASH: Final = 16
_VERSION: Final = 10
"""The first that knows such a hash (Redis 7.0); every later one is read, too."""
_LENGTH: Final = 0x80
"""Four bytes of it follow, the highest first."""
_AHEAD: Final = 1 + 5 + 4 + 2
_BEHIND: Final = 1 + 2 + 8
AROUND: Final = _AHEAD + _BEHIND
_END: Final = 255
_TEXT: Final = 0x80
_DIGITS_MAX: Final = 19
_LARGEST: Final = np.uint64((1 << 63) - 1)
_LEAST: Final = np.int64(-(1 << 63))
_MINUS, _ZERO, _NINE = 45, 48, 57


def can_hold(names: Sequence[bytes]) -> bool:
    """Hashes of these fields, where their texts are short enough."""
    return len(names) <= FIELDS_MAX and all(len(name) <= TEXT_BYTES_MAX for name in names)


def name_bytes(name: bytes) -> int:
    """The size of a ``name_entry``."""
    return 2 + len(name)


def name_entry(name: bytes) -> npt.NDArray[np.uint8]:
    """A field's name."""
    return np.frombuffer(bytes([_TEXT | len(name)]) + name + bytes([1 + len(name)]), np.uint8)


def asking() -> bytes:
    """A hash without a field, which no key can be made of: a server that takes this form answers it with ``UNREADABLE``."""
    held = bytes([_HASH, 7]) + (7).to_bytes(4, "little") + bytes([0, 0, _END]) + bytes([_VERSION, 0])
    return held + int(crc64(np.frombuffer(held, np.uint8), 0, len(held))).to_bytes(8, "little")


def _crc_tables() -> npt.NDArray[np.uint64]:
    """Of eight bytes at once: table k is for the byte with k others behind it."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = tables[0][tables[k - 1] & np.uint64(255)] ^ (tables[k - 1] >> np.uint64(8))
    return tables


_CRC: Final = _crc_tables()


@kernel
def crc64(data: Any, start: int, end: int) -> Any:
    """As the server has it (Jones, reflected)."""
    crc = np.uint64(0)
    low, eight = np.uint64(255), np.uint64(8)
    at = start
    while at + 8 <= end:
        for k in range(8):
            crc ^= np.uint64(data[at + k]) << np.uint64(8 * k)
        crc = (
            _CRC[7, crc & low]
            ^ _CRC[6, (crc >> np.uint64(8)) & low]
            ^ _CRC[5, (crc >> np.uint64(16)) & low]
            ^ _CRC[4, (crc >> np.uint64(24)) & low]
            ^ _CRC[3, (crc >> np.uint64(32)) & low]
            ^ _CRC[2, (crc >> np.uint64(40)) & low]
            ^ _CRC[1, (crc >> np.uint64(48)) & low]
            ^ _CRC[0, crc >> np.uint64(56)]
        )
        at += 8
    while at < end:
        crc = _CRC[0, (crc ^ np.uint64(data[at])) & low] ^ (crc >> eight)
        at += 1
    return crc


@kernel
def _number(data: Any, start: int, size: int) -> Any:
    """(whether the text is a whole number's only spelling, the number)."""
    first = start + 1 if size > 1 and data[start] == _MINUS else start
    digits = start + size - first
    if digits < 1 or digits > _DIGITS_MAX or (data[first] == _ZERO and size > 1):
        return False, np.int64(0)
    number = np.uint64(0)
    for at in range(first, start + size):
        if data[at] < _ZERO or data[at] > _NINE:
            return False, np.int64(0)
        number = number * np.uint64(10) + np.uint64(data[at] - _ZERO)
    if number > _LARGEST:
        least = number == _LARGEST + np.uint64(1) and first > start
        return least, _LEAST if least else np.int64(0)
    return True, np.int64(number) if first == start else -np.int64(number)


@kernel
def _number_bytes(number: int) -> int:
    """Of a number behind its mark."""
    if -(1 << 15) <= number < 1 << 15:
        return 2
    if -(1 << 23) <= number < 1 << 23:
        return 3
    return 4 if -(1 << 31) <= number < 1 << 31 else 8


@kernel
def _entry_bytes(data: Any, start: int, size: int) -> int:
    whole, number = _number(data, start, size)
    if not whole:
        return size + 2
    if 0 <= number < 128:
        return 2
    return 3 if -4096 <= number < 4096 else 2 + _number_bytes(number)


@kernel
def _put_entry(out: Any, at: int, data: Any, start: int, size: int) -> int:
    whole, number = _number(data, start, size)
    first = at
    if not whole:
        out[at] = _TEXT | size
        at = copied(out, at + 1, data, start, size)
    elif 0 <= number < 128:
        out[at] = number
        at += 1
    elif -4096 <= number < 4096:
        out[at] = 0xC0 | ((number >> 8) & 31)
        out[at + 1] = number & 255
        at += 2
    else:
        wide = _number_bytes(number)
        out[at] = 0xF4 if wide == 8 else 0xEF + wide
        for k in range(wide):
            out[at + 1 + k] = (number >> (8 * k)) & 255
        at += 1 + wide
    out[at] = at - first
    return at + 1


@kernel
def add_entry_sizes(sizes: Any, short: Any, data: Any, offsets: Any, states: Any, around: int) -> None:
    """Adds what a value takes, and ``around`` bytes, in each row where ``states`` (empty: everywhere) is 0; ``short`` becomes 0 where it is too long."""
    for row in range(len(sizes)):
        if len(states) == 0 or states[row] == 0:
            size = offsets[row + 1] - offsets[row]
            if size > TEXT_BYTES_MAX:
                short[row] = 0
            elif short[row]:
                sizes[row] += around + _entry_bytes(data, offsets[row], size)


@kernel
def begin(out: Any, cursors: Any, offsets: Any, items: Any, short: Any) -> None:
    """Writes what stands before a short row's entries at its cursor, and moves the cursor."""
    for row in range(len(cursors)):
        if short[row]:
            at = cursors[row]
            size = offsets[row + 1] - offsets[row] - (AROUND - 4 - 2 - 1)
            out[at] = _HASH
            out[at + 1] = _LENGTH
            for k in range(4):
                out[at + 2 + k] = (size >> (24 - 8 * k)) & 255
                out[at + 6 + k] = (size >> (8 * k)) & 255
            out[at + 10] = items[row] & 255
            out[at + 11] = items[row] >> 8
            cursors[row] = at + _AHEAD


@kernel
def put_entries(out: Any, cursors: Any, name: Any, data: Any, offsets: Any, states: Any, short: Any) -> None:
    """Writes the name's entry and the value's at each such row's cursor, and moves the cursor."""
    for row in range(len(cursors)):
        if short[row] and (len(states) == 0 or states[row] == 0):
            at = copied(out, cursors[row], name, 0, len(name))
            cursors[row] = _put_entry(out, at, data, offsets[row], offsets[row + 1] - offsets[row])


@kernel
def finish(out: Any, offsets: Any, short: Any) -> None:
    """Writes what stands behind the entries."""
    for row in range(len(short)):
        if short[row]:
            end = offsets[row + 1]
            out[end - _BEHIND] = _END
            out[end - 10] = _VERSION
            out[end - 9] = 0
            crc = crc64(out, offsets[row], end - 8)
            for k in range(8):
                out[end - 8 + k] = (crc >> np.uint64(8 * k)) & np.uint64(255)
