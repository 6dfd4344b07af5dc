"""Compiled loops over one token: JSON's numbers and words, and how sure it is that a number is the same behind a double."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import inlined, kernel
from cdc.kernels.windows import eight_bytes

DOUBLE_DIGITS: Final = 15
"""Every decimal number of so many digits comes back from a double as it was."""
DOUBLE_EXPONENT: Final = 250
LONG_NUMBER: Final = 600
"""Longer ones are left to ``literals``, which knows the limit."""
NOT_A_NUMBER: Final = -1
SURE: Final = 0
DOUBTFUL: Final = 1
LEFT: Final = 2

QUOTE: Final = ord('"')
BACKSLASH: Final = ord("\\")
SLASH: Final = ord("/")
COMMA: Final = ord(",")
COLON: Final = ord(":")
OPEN_LIST: Final = ord("[")
CLOSE_LIST: Final = ord("]")
OPEN: Final = ord("{")
CLOSE: Final = ord("}")
MINUS: Final = ord("-")
PLUS: Final = ord("+")
POINT: Final = ord(".")
EQUALS: Final = ord("=")
SPACE: Final = ord(" ")
TILDE: Final = ord("~")
"""Bytes below it are control characters."""
TAB: Final = ord("\t")
NEWLINE: Final = ord("\n")
RETURN: Final = ord("\r")
ZERO: Final = ord("0")
NINE: Final = ord("9")
UPPER_A: Final = ord("A")
UPPER_E: Final = ord("E")
UPPER_F: Final = ord("F")
UPPER_T: Final = ord("T")
UPPER_Z: Final = ord("Z")
LOWER_A: Final = ord("a")
LOWER_B: Final = ord("b")
LOWER_E: Final = ord("e")
LOWER_F: Final = ord("f")
LOWER_N: Final = ord("n")
LOWER_R: Final = ord("r")
LOWER_T: Final = ord("t")
LOWER_U: Final = ord("u")
TRUE: Final = np.frombuffer(b"true", np.uint8)
FALSE: Final = np.frombuffer(b"false", np.uint8)
NULL: Final = np.frombuffer(b"null", np.uint8)


class LiteralLines(NamedTuple):
    """A column's literals, each on one line: a text column (``sinks.render.jsonkernels``) and what is not settled of it."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    """The text column's offsets."""
    left: npt.NDArray[np.bool_]
    """The rows that are left to ``literals``: their literal is empty."""
    doubts: npt.NDArray[np.int64]
    """The numbers in ``data`` that a double may change, as (row, start, end)."""


@inlined
def digit(byte: Any) -> bool:
    return bool(ZERO <= byte <= NINE)


@kernel
def number_end(source: Any, at: int, end: int) -> int:
    """Where the JSON number that begins here ends; ``NOT_A_NUMBER``."""
    if at < end and source[at] == MINUS:
        at += 1
    if at >= end or not digit(source[at]):
        return NOT_A_NUMBER
    if source[at] == ZERO:
        at += 1
    else:
        while at < end and digit(source[at]):
            at += 1
    if at < end and source[at] == POINT:
        at += 1
        if at >= end or not digit(source[at]):
            return NOT_A_NUMBER
        while at < end and digit(source[at]):
            at += 1
    if at < end and (source[at] == LOWER_E or source[at] == UPPER_E):
        at += 1
        if at < end and (source[at] == PLUS or source[at] == MINUS):
            at += 1
        if at >= end or not digit(source[at]):
            return NOT_A_NUMBER
        while at < end and digit(source[at]):
            at += 1
    return at


@kernel
def judged(source: Any, start: int, end: int) -> int:
    """Whether a number that passes a double is surely the same afterwards."""
    if end - start > LONG_NUMBER:
        return LEFT
    first, last, digits, exponent = -1, -1, 0, 0
    whole = True
    for k in range(start, end):
        byte = source[k]
        if byte in (LOWER_E, UPPER_E):
            whole = False
            for j in range(k + 1, end):
                if digit(source[j]):
                    exponent = min(exponent * 10 + (source[j] - ZERO), 10_000)
            break
        if byte == POINT:
            whole = False
        elif digit(byte):
            if byte != ZERO:
                first = digits if first < 0 else first
                last = digits
            digits += 1
    if whole:
        return SURE
    if exponent > DOUBLE_EXPONENT or digits > 40:
        return LEFT
    return DOUBTFUL if first >= 0 and last - first + 1 > DOUBLE_DIGITS else SURE


@inlined
def note_doubt(doubts: Any, found: int, row: int, start: Any, end: Any) -> int:
    """Notes a number that is to be looked at, as (row, start, end); returns how many there are."""
    doubts[found, 0] = row
    doubts[found, 1] = start
    doubts[found, 2] = end
    return found + 1


@inlined
def same_bytes(source: Any, at: Any, end: Any, words: Any, start: Any, size: Any) -> Any:
    """Whether ``words[start:start + size]`` stands at ``at``, before ``end``; what follows it is not looked at."""
    same = end - at >= size
    if same:
        if size < 8:
            for k in range(size):
                same &= source[at + k] == words[start + k]
        else:
            for k in range(0, size - 8, 8):
                same &= eight_bytes(source, at + k) == eight_bytes(words, start + k)
            same &= eight_bytes(source, at + size - 8) == eight_bytes(words, start + size - 8)
    return same


@kernel
def is_word(source: Any, at: int, end: int, word: Any) -> bool:
    """Whether ``word`` stands at ``at``; what follows it is not looked at."""
    return bool(same_bytes(source, at, end, word, 0, len(word)))


@kernel
def doubtful_numbers(data: Any, offsets: Any) -> Any:
    """(left, doubts) of a column that holds one number in each row."""
    count = len(offsets) - 1
    left = np.zeros(count, np.bool_)
    doubts = np.empty((count, 3), np.int64)
    found = 0
    for i in range(count):
        sure = judged(data, offsets[i], offsets[i + 1])
        left[i] = sure == LEFT
        if sure == DOUBTFUL:
            found = note_doubt(doubts, found, i, offsets[i], offsets[i + 1])
    return left, doubts[:found]
