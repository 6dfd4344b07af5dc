"""Compiled loops over the server's answers (RESP 2): where they end, and where the values in them stand."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import kernel
from cdc.kernels.memcpy import copied
from sinks.render import readkernels as read
from sinks.render.readkernels import document_number
from sinks.render.tokenkernels import (
    BACKSLASH,
    CLOSE,
    CLOSE_LIST,
    FALSE,
    MINUS,
    OPEN,
    OPEN_LIST,
    RETURN,
    TRUE,
    ZERO,
    is_word,
    same_bytes,
)

NOTHING: Final = -1
_DOLLAR, _STAR = ord("$"), ord("*")
_OTHER_TYPE: Final = np.frombuffer(b"-WRONGTYPE", np.uint8)


@kernel
def line_at(data: Any, at: int) -> Any:
    """(the answer's first byte, its number where it has one, behind its line); behind is NOTHING where the line has not ended."""
    kind = np.int64(data[at])
    number: Any = 0
    end = at + 1
    if kind == _DOLLAR or kind == _STAR:  # noqa: SIM109 (a tuple would cost a loop)
        negative = end < len(data) and data[end] == MINUS
        end += 1 if negative else 0
        while end < len(data) and data[end] != RETURN:
            number = number * 10 + (np.int64(data[end]) - ZERO)
            end += 1
        number = -number if negative else number
    else:
        while end < len(data) and data[end] != RETURN:
            end += 1
    return (kind, number, end + 2) if end + 1 < len(data) else (0, 0, NOTHING)


@kernel
def answers_end(data: Any, at: int, left: int) -> Any:
    """(how far, how many are left) of so many answers that begin here: behind the last of their parts that is whole."""
    while left > 0 and at < len(data):
        kind, number, behind = line_at(data, at)
        if behind < 0:
            break
        if kind == _DOLLAR and number >= 0:
            behind += number + 2
            if behind > len(data):
                break
        left -= 1
        if kind == _STAR and number > 0:
            left += number
        at = behind
    return at, left


@kernel
def texts_at(data: Any, at: int, starts: Any, stops: Any) -> int:
    """Where so many texts stand that begin here: from NOTHING to NOTHING for what is none. Returns what is behind them."""
    for row in range(len(starts)):
        kind, number, behind = line_at(data, at)
        starts[row] = NOTHING
        stops[row] = NOTHING
        if kind == _DOLLAR and number >= 0:
            starts[row] = behind
            stops[row] = behind + number
            at = behind + number + 2
        else:
            at, _ = answers_end(data, at, 1)
    return at


def field_label(name: bytes) -> bytes:
    """The bytes before the digits of a field's length in the answer to HGETALL."""
    return b"$%d\r\n%s\r\n$" % (len(name), name)


@kernel
def hash_members(data: Any, at: int, names: Any, spans: Any, tokens: Any, left: Any, there: Any) -> Any:
    """As ``readkernels.object_members``, of hashes: their answers begin here. ``names``: labels, ends and kinds; a label is the answer's bytes from a field's
    name to its value's length (``field_label``). ``there``: which keys have one. Returns (what is behind them, where the first error among them begins, or
    NOTHING): that a key holds something else is none."""
    labels, ends, kinds = names
    columns = len(ends) - 1
    refused = NOTHING
    for row in range(len(left)):
        kind, number, behind = line_at(data, at)
        there[row] = kind == _STAR and number > 0
        left[row] = False
        if not there[row]:
            if kind == MINUS and refused == NOTHING and not is_word(data, at, behind, _OTHER_TYPE):
                refused = at
            at, _ = answers_end(data, at, 1)
            continue
        at = behind
        likely = 0
        for _ in range(number // 2):
            column = NOTHING
            for step in range(columns):
                maybe = likely + step
                if maybe >= columns:
                    maybe -= columns
                if same_bytes(data, at, len(data), labels, ends[maybe], ends[maybe + 1] - ends[maybe]):
                    column = maybe
                    break
            if column < 0:
                _, size, name = line_at(data, at)
                _, length, start = line_at(data, name + size + 2)
                at = start + length + 2
                left[row] = True
                continue
            likely = column + 1 if column + 1 < columns else 0
            at += ends[column + 1] - ends[column]
            taken: Any = 0
            while data[at] != RETURN:
                taken = taken * 10 + (np.int64(data[at]) - ZERO)
                at += 1
            start = at + 2
            at = start + taken + 2
            token = _field(data, start, start + taken, kinds[column])
            left[row] |= token == read.NO_MEMBER
            spans[row, column, 0] = start
            spans[row, column, 1] = start + taken
            tokens[row, column] = token
    return at, refused


@kernel
def _field(data: Any, start: int, end: int, kind: int) -> int:
    """What a field of text is as a value of the kind; NO_MEMBER where that is not sure."""
    if kind == read.BOOL:
        if end - start == 4 and is_word(data, start, end, TRUE):
            return read.IS_TRUE
        return read.IS_FALSE if end - start == 5 and is_word(data, start, end, FALSE) else read.NO_MEMBER
    if kind in (read.NUMBER, read.DOUBLE):
        return document_number(data, start, end)
    if kind == read.AS_IT_IS:
        nested = end - start > 1 and data[start] in (OPEN, OPEN_LIST) and data[end - 1] in (CLOSE, CLOSE_LIST)
        return read.IS_NESTED if nested else read.NO_MEMBER
    return read.IS_STRING


@kernel
def same_names(names: Any, name_ends: Any, before: Any, texts: Any, text_ends: Any, after: Any) -> Any:
    """(whether each of the texts stands as it is in a name, which rows' name is the text with ``before`` and ``after`` around it). A text that is empty, or has a
    backslash in it, does not."""
    same = np.empty(len(name_ends) - 1, np.bool_)
    plain = True
    for row in range(len(same)):
        start, size = text_ends[row], text_ends[row + 1] - text_ends[row]
        at, end = name_ends[row], name_ends[row + 1]
        plain &= size > 0
        for k in range(start, start + size):
            plain &= texts[k] != BACKSLASH
        same[row] = (
            end - at == len(before) + size + len(after)
            and same_bytes(names, at, end, before, 0, len(before))
            and same_bytes(names, at + len(before), end, texts, start, size)
            and same_bytes(names, end - len(after), end, after, 0, len(after))
        )
    return plain, same


@kernel
def gathered(data: Any, starts: Any, stops: Any) -> Any:
    """These pieces one behind the other, as a text column."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    for row in range(len(starts)):
        offsets[row + 1] = offsets[row] + stops[row] - starts[row]
    out = np.empty(offsets[len(starts)], np.uint8)
    for row in range(len(starts)):
        copied(out, offsets[row], data, starts[row], stops[row] - starts[row])
    return out, offsets
