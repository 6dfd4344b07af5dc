"""Numbers and bytes as digits, in compiled loops. A text column is ``(data, offsets)``: uint8 bytes and int64 offsets, one more than rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import kernel

HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
ZERO: Final = ord("0")
MINUS: Final = ord("-")
POINT: Final = ord(".")
_BACKSLASH: Final = ord("\\")
_X: Final = ord("x")


@kernel
def put_digits(out: Any, end: int, value: Any) -> int:
    """Writes the decimal digits of an unsigned value so that they end before ``end``; returns where they start."""
    rest = np.uint64(value)
    ten = np.uint64(10)
    while True:
        end -= 1
        quotient = rest // ten
        out[end] = np.uint8(ZERO + rest - quotient * ten)
        rest = quotient
        if rest == np.uint64(0):
            return end


@kernel
def put_padded(out: Any, at: int, value: Any, width: int) -> int:
    for k in range(width - 1, -1, -1):
        out[at + k] = np.uint8(ZERO + value % 10)
        value //= 10
    return at + width


@kernel
def decimal_text(words: Any, scale: int) -> Any:
    """decimal128 values (two little-endian 64-bit words each) → text column with exactly ``scale`` decimal places."""
    count = len(words) // 2
    data = np.empty(count * 41, np.uint8)
    offsets = np.empty(count + 1, np.int64)
    scratch = np.empty(64, np.uint8)
    at = 0
    offsets[0] = 0
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    billion = np.uint64(1_000_000_000)
    for i in range(count):
        low, high = np.uint64(words[2 * i]), np.uint64(words[2 * i + 1])
        if high >> np.uint64(63):
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
            data[at] = MINUS
            at += 1
        start = 64
        while high != np.uint64(0):  # nine digits at a time, by long division of the four 32-bit halves
            high_quotient = high // billion
            rest = high - high_quotient * billion
            upper = rest << half | low >> half
            upper_quotient = upper // billion
            rest = upper - upper_quotient * billion
            lower = rest << half | low & mask
            lower_quotient = lower // billion
            rest = lower - lower_quotient * billion
            high, low = high_quotient, upper_quotient << half | lower_quotient
            put_padded(scratch, start - 9, np.int64(rest), 9)
            start -= 9
        start = put_digits(scratch, start, low)
        while start < 64 and scratch[start] == ZERO:
            start += 1
        while 64 - start < scale + 1:
            start -= 1
            scratch[start] = ZERO
        for k in range(start, 64 - scale):
            data[at] = scratch[k]
            at += 1
        if scale > 0:
            data[at] = POINT
            at += 1
            for k in range(64 - scale, 64):
                data[at] = scratch[k]
                at += 1
        offsets[i + 1] = at
    return data[:at], offsets


@kernel
def hex_text(data: Any, offsets: Any) -> Any:
    """Bytes → text column of \\x and two digits for each, as Postgres prints them."""
    count = len(offsets) - 1
    out = np.empty(2 * (offsets[count] - offsets[0]) + 2 * count, np.uint8)
    ends = np.empty(count + 1, np.int64)
    ends[0] = 0
    at = 0
    for row in range(count):
        out[at] = _BACKSLASH
        out[at + 1] = _X
        at += 2
        for k in range(offsets[row], offsets[row + 1]):
            out[at] = HEX[data[k] >> 4]
            out[at + 1] = HEX[data[k] & 15]
            at += 2
        ends[row + 1] = at
    return out, ends
