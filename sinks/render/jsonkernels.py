"""Compiled loops of the JSON encoder: typed values → text in one byte buffer, and rows put together from such buffers.

A *text column* is ``(data, offsets)``: uint8 bytes and int64 offsets, ``len + 1`` of them, as in Arrow's large types.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.kernels.digits import HEX, put_digits
from cdc.kernels.jit import inlined, kernel
from cdc.kernels.memcpy import copied
from sinks.render.tokenkernels import BACKSLASH, EQUALS, LOWER_U, MINUS, QUOTE, SPACE, ZERO

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

VALUE: Final = 0
NULL: Final = 1
ABSENT: Final = 2
"""What stands in a row at a piece's place (``states``): the value, its NULL text, or nothing at all."""

_BASE64: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
SHORT: Final = np.zeros(32, np.uint8)
for _code, _letter in ((8, b"b"), (9, b"t"), (10, b"n"), (12, b"f"), (13, b"r")):
    SHORT[_code] = _letter[0]


@kernel
def integer_text(values: Any) -> Any:
    """int64 values → text column."""
    count = len(values)
    data = np.empty(count * 20, np.uint8)
    offsets = np.empty(count + 1, np.int64)
    scratch = np.empty(24, np.uint8)
    at = 0
    offsets[0] = 0
    for i in range(count):
        value = values[i]
        if value < 0:
            data[at] = MINUS
            at += 1
            start = put_digits(scratch, 24, np.uint64(0) - np.uint64(value))
        else:
            start = put_digits(scratch, 24, np.uint64(value))
        for k in range(start, 24):
            data[at] = scratch[k]
            at += 1
        offsets[i + 1] = at
    return data[:at], offsets


@kernel
def base64_text(source: Any, source_offsets: Any) -> Any:
    """Bytes → text column of their base64."""
    count = len(source_offsets) - 1
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = 0
    for i in range(count):
        offsets[i + 1] = offsets[i] + (source_offsets[i + 1] - source_offsets[i] + 2) // 3 * 4
    data = np.empty(offsets[count], np.uint8)
    for i in range(count):
        at, k, end = offsets[i], source_offsets[i], source_offsets[i + 1]
        while k < end:
            left = end - k
            first = source[k]
            second = source[k + 1] if left > 1 else np.uint8(0)
            third = source[k + 2] if left > 2 else np.uint8(0)
            data[at] = _BASE64[first >> 2]
            data[at + 1] = _BASE64[(first & 3) << 4 | second >> 4]
            data[at + 2] = _BASE64[(second & 15) << 2 | third >> 6] if left > 1 else EQUALS
            data[at + 3] = _BASE64[third & 63] if left > 2 else EQUALS
            at += 4
            k += 3
    return data, offsets


@kernel
def _escaped_bytes(byte: int) -> int:
    """How many bytes more than one this byte takes inside a JSON string."""
    if byte >= SPACE:
        return 1 if byte in (QUOTE, BACKSLASH) else 0
    return 1 if SHORT[byte] else 5


@kernel
def needs_escape(source: Any) -> bool:
    """Whether any byte cannot stand in a JSON string as it is."""
    for block in range(0, len(source), 4096):  # the inner loop has no exit, so that it is vectorised
        found = 0
        for k in range(block, min(block + 4096, len(source))):
            byte = source[k]
            found |= (byte < SPACE) | (byte == QUOTE) | (byte == BACKSLASH)
        if found:
            return True
    return False


@inlined
def put_escape(out: Any, at: int, byte: Any) -> int:
    """Writes what stands in a JSON string for a byte that cannot (RFC 8259: quote, backslash, U+0000 to U+001F)."""
    out[at] = BACKSLASH
    if byte >= SPACE:
        out[at + 1] = byte
        return at + 2
    if SHORT[byte]:
        out[at + 1] = SHORT[byte]
        return at + 2
    out[at + 1] = LOWER_U
    out[at + 2] = ZERO
    out[at + 3] = ZERO
    out[at + 4] = HEX[byte >> 4]
    out[at + 5] = HEX[byte & 15]
    return at + 6


@kernel
def escape_text(source: Any, source_offsets: Any) -> Any:
    """UTF-8 text → text column of it as the inside of JSON strings."""
    count = len(source_offsets) - 1
    extra = 0
    for k in range(source_offsets[0], source_offsets[count]):
        extra += _escaped_bytes(source[k])
    data = np.empty(source_offsets[count] - source_offsets[0] + extra, np.uint8)
    offsets = np.empty(count + 1, np.int64)
    at = 0
    offsets[0] = 0
    for i in range(count):
        for k in range(source_offsets[i], source_offsets[i + 1]):
            byte = source[k]
            if byte >= SPACE and byte != QUOTE and byte != BACKSLASH:
                data[at] = byte
                at += 1
            else:
                at = put_escape(data, at, byte)
        offsets[i + 1] = at
    return data, offsets


@kernel
def add_lengths(lengths: Any, offsets: Any, states: Any, around: int, null_bytes: int) -> None:
    """Adds what one piece takes in each row; ``states`` is empty when every row has a value."""
    if len(states) == 0:
        for i in range(len(lengths)):
            lengths[i] += offsets[i + 1] - offsets[i] + around
        return
    for i in range(len(lengths)):
        if states[i] == VALUE:
            lengths[i] += offsets[i + 1] - offsets[i] + around
        elif states[i] == NULL:
            lengths[i] += null_bytes


@kernel
def put_piece(out: Any, cursors: Any, data: Any, offsets: Any, states: Any, before: Any, after: Any, null: Any) -> None:
    """Writes one piece of every row at the row's cursor and moves the cursor."""
    for i in range(len(cursors)):
        at = cursors[i]
        state = VALUE if len(states) == 0 else states[i]
        if state == VALUE:
            at = copied(out, at, before, 0, len(before))
            at = copied(out, at, data, offsets[i], offsets[i + 1] - offsets[i])
            at = copied(out, at, after, 0, len(after))
        elif state == NULL:
            at = copied(out, at, null, 0, len(null))
        cursors[i] = at
