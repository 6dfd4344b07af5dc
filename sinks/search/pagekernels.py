"""A compiled walk over the answer to a scroll: where each hit's id and document stand. No byte is looked at twice, also not in finding the hits' ends."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import inlined, kernel
from sinks.render.readkernels import IS_STRING, NO_MEMBER, UNREAD, behind_space, string_end, value_end
from sinks.render.tokenkernels import CLOSE, CLOSE_LIST, COLON, COMMA, OPEN, OPEN_LIST, QUOTE, is_word

_SCROLL: Final = np.frombuffer(b'"_scroll_id"', np.uint8)
_HITS: Final = np.frombuffer(b'"hits"', np.uint8)
_ID: Final = np.frombuffer(b'"_id"', np.uint8)
_SOURCE: Final = np.frombuffer(b'"_source"', np.uint8)
_FEW: Final = 2048
WHOLE: Final = 0
ID: Final = 1
DOCUMENT: Final = 2
"""The spans of a hit."""


@kernel
def _member(data: Any, at: int, end: int) -> Any:
    """(behind the name, where the value begins) of the member that begins here; UNREAD where none does."""
    if at >= end or data[at] != QUOTE:
        return UNREAD, UNREAD
    stop, _ = string_end(data, at, end)
    if stop < 0:
        return UNREAD, UNREAD
    colon = behind_space(data, stop, end)
    if colon >= end or data[colon] != COLON:
        return UNREAD, UNREAD
    return stop, behind_space(data, colon + 1, end)


@kernel
def _next(data: Any, at: int, end: int, close: int) -> Any:
    """(where the next member or element begins, whether there is one; else behind the closing bracket) where one has ended; UNREAD where it goes on."""
    at = behind_space(data, at, end)
    if at < end and data[at] == close:
        return at + 1, False
    if at < end and data[at] == COMMA:
        return behind_space(data, at + 1, end), True
    return UNREAD, False


@kernel
def _first(data: Any, at: int, end: int, close: int) -> Any:
    """As ``_next``, behind the opening bracket."""
    at = behind_space(data, at, end)
    if at < end and data[at] == close:
        return at + 1, False
    return at, True


@inlined
def _is(data: Any, at: Any, stop: Any, name: Any) -> bool:
    return stop - at == len(name) and is_word(data, at, stop, name)


@kernel
def _hit(data: Any, at: int, end: int, spans: Any, tokens: Any, row: int) -> Any:
    """(behind the hit that begins here, whether nothing is known of it)."""
    spans[row] = 0
    tokens[row] = NO_MEMBER
    spans[row, WHOLE, 0] = at
    if at >= end or data[at] != OPEN:
        behind, _ = value_end(data, at, end, False)
        spans[row, WHOLE, 1] = behind
        return behind, True
    left = False
    at, more = _first(data, at + 1, end, CLOSE)
    while more:
        name = at
        stop, start = _member(data, at, end)
        if stop < 0:
            return UNREAD, True
        at, token = value_end(data, start, end, False)
        if at < 0:
            return UNREAD, True
        which = ID if _is(data, name, stop, _ID) else DOCUMENT if _is(data, name, stop, _SOURCE) else WHOLE
        if which != WHOLE:
            left |= tokens[row, which - 1] != NO_MEMBER
            quotes = 1 if data[start] == QUOTE else 0
            spans[row, which, 0] = start + quotes
            spans[row, which, 1] = at - quotes
            tokens[row, which - 1] = token
        at, more = _next(data, at, end, CLOSE)
        if at < 0:
            return UNREAD, True
    spans[row, WHOLE, 1] = at
    return at, left


@kernel
def _hits(data: Any, at: int, end: int) -> Any:
    """(behind the array of hits that begins here, spans, tokens, left), one of each for a hit."""
    spans = np.empty((_FEW, 3, 2), np.int64)
    tokens = np.empty((_FEW, 2), np.uint8)
    left = np.empty(_FEW, np.bool_)
    count = 0
    at, more = _first(data, at + 1, end, CLOSE_LIST)
    while more:
        if count == len(left):
            spans = np.concatenate((spans, np.empty_like(spans)))
            tokens = np.concatenate((tokens, np.empty_like(tokens)))
            left = np.concatenate((left, np.empty_like(left)))
        at, unknown = _hit(data, at, end, spans, tokens, count)
        left[count] = unknown
        if at < 0:
            break
        count += 1
        at, more = _next(data, at, end, CLOSE_LIST)
        if at < 0:
            break
    return at, spans[:count], tokens[:count], left[:count]


@kernel
def scroll_page(data: Any) -> Any:
    """(scroll id's start and end, spans, tokens, left) of an answer to a scroll; the start is UNREAD where it is none.

    ``spans`` (hit, which, from and to): of the whole hit, of its id and of its document, strings without their quotes; ``tokens`` (hit, which): what id and
    document are, as ``readkernels`` has it; ``left``: hits that nothing is known of.
    """
    end = len(data)
    scroll, scroll_end = UNREAD, UNREAD
    spans = np.empty((0, 3, 2), np.int64)
    tokens = np.empty((0, 2), np.uint8)
    left = np.empty(0, np.bool_)
    seen = False
    at = behind_space(data, 0, end)
    more = at < end and data[at] == OPEN
    if more:
        at, more = _first(data, at + 1, end, CLOSE)
    depth = 1
    """Of the object whose members are read; the hits stand in the second."""
    while more:
        name = at
        stop, start = _member(data, at, end)
        if stop < 0:
            return UNREAD, UNREAD, spans, tokens, left
        known = _is(data, name, stop, _HITS) and start < end and not seen
        if known and depth == 1 and data[start] == OPEN:
            depth = 2
            at, more = _first(data, start + 1, end, CLOSE)
        elif known and depth == 2 and data[start] == OPEN_LIST:
            seen = True
            at, spans, tokens, left = _hits(data, start, end)
            if at >= 0:
                at, more = _next(data, at, end, CLOSE)
        else:
            at, token = value_end(data, start, end, False)
            if depth == 1 and token == IS_STRING and _is(data, name, stop, _SCROLL):
                scroll, scroll_end = start + 1, at - 1
            if at >= 0:
                at, more = _next(data, at, end, CLOSE)
        if at < 0:
            return UNREAD, UNREAD, spans, tokens, left
        if not more and depth == 2:
            depth = 1
            at, more = _next(data, at, end, CLOSE)
            if at < 0:
                return UNREAD, UNREAD, spans, tokens, left
    if not seen or depth != 1 or behind_space(data, at, end) != end:
        return UNREAD, UNREAD, spans, tokens, left
    return scroll, scroll_end, spans, tokens, left
