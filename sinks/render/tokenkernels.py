"""Compiled loops over one token: JSON's numbers and words, and how sure it is that a number is the same behind a double."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import inlined, kernel

DOUBLE_DIGITS: Final = 15
"""Every decimal number of so many digits comes back from a double as it was."""
DOUBLE_EXPONENT: Final = 250
LONG_NUMBER: Final = 600
"""Longer ones are left to ``literals``, which knows the limit."""
NOT_A_NUMBER: Final = -1
SURE: Final = 0
DOUBTFUL: Final = 1
LEFT: Final = 2

QUOTE: Final = 34
BACKSLASH: Final = 92
COMMA: Final = 44
COLON: Final = 58
OPEN_LIST: Final = 91
CLOSE_LIST: Final = 93
OPEN: Final = 123
CLOSE: Final = 125
TRUE: Final = np.frombuffer(b"true", np.uint8)
FALSE: Final = np.frombuffer(b"false", np.uint8)
NULL: Final = np.frombuffer(b"null", np.uint8)


@inlined
def digit(byte: Any) -> bool:
    return bool(48 <= byte <= 57)


@kernel
def number_end(source: Any, at: int, end: int) -> int:
    """Where the JSON number that begins here ends; ``NOT_A_NUMBER``."""
    if at < end and source[at] == 45:
        at += 1
    if at >= end or not digit(source[at]):
        return NOT_A_NUMBER
    if source[at] == 48:
        at += 1
    else:
        while at < end and digit(source[at]):
            at += 1
    if at < end and source[at] == 46:
        at += 1
        if at >= end or not digit(source[at]):
            return NOT_A_NUMBER
        while at < end and digit(source[at]):
            at += 1
    if at < end and (source[at] == 101 or source[at] == 69):
        at += 1
        if at < end and (source[at] == 43 or source[at] == 45):
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
        if byte == 101 or byte == 69:
            whole = False
            for j in range(k + 1, end):
                if digit(source[j]):
                    exponent = min(exponent * 10 + (source[j] - 48), 10_000)
            break
        if byte == 46:
            whole = False
        elif digit(byte):
            if byte != 48:
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


@kernel
def is_word(source: Any, at: int, end: int, word: Any) -> bool:
    """Whether ``word`` stands at ``at``; what follows it is not looked at."""
    if end - at < len(word):
        return False
    for k in range(len(word)):  # noqa: SIM110 (a kernel has no generators)
        if source[at + k] != word[k]:
            return False
    return True


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
