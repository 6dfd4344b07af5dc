"""The whitelist's operators of jsonb, over its text. Pure.

Postgres prints a jsonb with one value for each key and with numbers as they are, so what stands in it is a piece of its text: nothing is parsed into objects and
printed again. The scan is a loop over bytes, whatever the depth, and takes time in proportion to the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.entry import NOT_HELD, Value, WhitelistEntry
from cdc.expressions.pgtype import INT2, INT4, JSONB, TEXT
from cdc.kernels.jit import kernel

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int32]

_QUOTE, _ESCAPE, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OBJECT, _OBJECT_END, _ARRAY, _ARRAY_END, _BLANK = ord("{"), ord("}"), ord("["), ord("]"), ord(" ")
_ABSENT: Final = -1


def entries() -> Iterator[WhitelistEntry]:
    for kind in (TEXT, INT2, INT4):
        yield WhitelistEntry("->", (JSONB, kind), JSONB, kernel=lambda value, step: (_member(value, step), None), constants=(1,))
        yield WhitelistEntry("->>", (JSONB, kind), TEXT, kernel=_text, constants=(1,))
    kinds = (("{", "object"), ("[", "array"), ('"', "string"), ("t", "boolean"), ("f", "boolean"), ("n", "null"))
    whens = " ".join(f"WHEN '{sign}' THEN '{name}'" for sign, name in kinds)
    yield WhitelistEntry(
        "jsonb_typeof",
        (JSONB,),
        TEXT,
        f"CASE WHEN {{0}} IS NOT NULL THEN CASE substring({{0}}, 1, 1) {whens} ELSE 'number' END END",
    )


# --- the scan


@kernel
def _behind_text(data: Bytes, at: int, end: int) -> int:
    """Behind the text whose opening quote stands here."""
    at += 1
    while at < end and data[at] != _QUOTE:
        at += 2 if data[at] == _ESCAPE else 1
    return min(at + 1, end)


@kernel
def _behind_value(data: Bytes, at: int, end: int) -> int:
    """Behind the value that begins here."""
    depth = 0
    while at < end:
        sign = data[at]
        if sign == _QUOTE:
            at = _behind_text(data, at, end)
            if depth == 0:
                return at
            continue
        if sign in (_OBJECT, _ARRAY):
            depth += 1
        elif sign in (_OBJECT_END, _ARRAY_END):
            if depth <= 1:
                return at + depth
            depth -= 1
        elif depth == 0 and (sign == _COMMA or sign <= _BLANK):
            return at
        at += 1
    return at


@kernel
def _next_sign(data: Bytes, at: int, end: int) -> int:
    """The next place that is not blank, a comma or a colon."""
    while at < end and (data[at] <= _BLANK or data[at] == _COMMA or data[at] == _COLON):
        at += 1
    return at


@kernel
def _same(data: Bytes, at: int, behind: int, key: Bytes) -> bool:
    if behind - at != len(key):
        return False
    for place in range(len(key)):  # noqa: SIM110  numba
        if data[at + place] != key[place]:
            return False
    return True


@kernel
def _of_key(data: Bytes, offsets: Places, key: Bytes, starts: Places, ends: Places) -> None:
    """The member of each row's object whose key, with its quotes, this is."""
    for row in range(len(offsets) - 1):
        end = offsets[row + 1]
        at = offsets[row]
        starts[row] = _ABSENT
        if at >= end or data[at] != _OBJECT:
            continue
        at = _next_sign(data, at + 1, end)
        while at < end and data[at] == _QUOTE:
            behind = _behind_text(data, at, end)
            value = _next_sign(data, behind, end)
            beyond = _behind_value(data, value, end)
            if _same(data, at, behind, key):
                starts[row], ends[row] = value, beyond
                break
            at = _next_sign(data, beyond, end)


@kernel
def _of_number(data: Bytes, offsets: Places, number: int, starts: Places, ends: Places) -> None:
    """The item of each row's array; a negative number counts from its end."""
    for row in range(len(offsets) - 1):
        end = offsets[row + 1]
        first = offsets[row]
        starts[row] = _ABSENT
        if first >= end or data[first] == _OBJECT:
            continue
        if data[first] != _ARRAY:  # Postgres keeps a single value as an array of one
            if number in (0, -1):
                starts[row], ends[row] = first, end
            continue
        wanted = number
        if number < 0:
            at = _next_sign(data, first + 1, end)
            while at < end and data[at] != _ARRAY_END:
                wanted += 1
                at = _next_sign(data, max(_behind_value(data, at, end), at + 1), end)  # onward, whatever the text is
        count = 0
        at = _next_sign(data, first + 1, end)
        while wanted >= 0 and at < end and data[at] != _ARRAY_END:
            behind = max(_behind_value(data, at, end), at + 1)
            if count == wanted:
                starts[row], ends[row] = at, behind
                break
            count += 1
            at = _next_sign(data, behind, end)


@kernel
def _gathered(data: Bytes, starts: Places, ends: Places, offsets: Places, out: Bytes) -> None:
    for row in range(len(starts)):
        if starts[row] >= 0:
            out[offsets[row] : offsets[row + 1]] = data[starts[row] : ends[row]]


# --- values


def _member(value: Value, step: pa.Scalar) -> Value:
    """The member or item of each document, as the text that it has there; NULL where there is none."""
    if isinstance(value, pa.Scalar) or not step.is_valid:
        return pa.scalar(None, pa.utf8())
    texts = value.cast(pa.utf8())
    length = len(texts)
    _, offsets_buffer, data_buffer = texts.buffers()
    if length == 0 or offsets_buffer is None or data_buffer is None:
        return pa.nulls(length, pa.utf8())
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + length + 1]
    data = np.frombuffer(data_buffer, np.uint8)
    starts, ends = np.empty(length, np.int32), np.zeros(length, np.int32)
    wanted: Any = step.as_py()
    if isinstance(wanted, str):
        _of_key(data, offsets, np.frombuffer(json.dumps(wanted, ensure_ascii=False).encode(), np.uint8), starts, ends)
    else:
        _of_number(data, offsets, wanted, starts, ends)
    there = starts >= 0
    if texts.null_count:
        there &= texts.is_valid().to_numpy(zero_copy_only=False)
    starts[~there] = _ABSENT
    new = np.zeros(length + 1, np.int32)
    np.cumsum(np.where(there, ends - starts, 0), out=new[1:])
    out = np.empty(int(new[-1]), np.uint8)
    _gathered(data, starts, ends, new, out)
    valid = pa.array(there).buffers()[1]
    return pa.StringArray.from_buffers(length, pa.py_buffer(new), pa.py_buffer(out), valid)


def _text(value: Value, step: pa.Scalar) -> tuple[Value, Value | None]:
    """The member as text: a JSON text without its quotes, a null as NULL, anything else as it is written."""
    found = _member(value, step)
    if isinstance(found, pa.Scalar):
        return found, None
    found = pc.if_else(pc.equal(found, "null"), pa.scalar(None, pa.utf8()), found)
    quoted = pc.starts_with(found, '"')
    bare = pc.if_else(
        quoted,
        pc.binary_replace_slice(pc.binary_replace_slice(found.cast(pa.binary()), -1, 2**31 - 1, b""), 0, 1, b""),
        found.cast(pa.binary()),
    )
    escaped = pc.and_(quoted, pc.match_substring(found, "\\"))
    if not pc.any(escaped, min_count=0).as_py():
        return bare.cast(pa.utf8()), None
    rows = pc.indices_nonzero(pc.fill_null(escaped, False))
    read: list[bytes | None] = []
    states: list[str | None] = []
    for text in found.take(rows).to_pylist():
        try:
            read.append(json.loads(text, strict=False).encode())
            states.append(None)
        except ValueError:  # half a character, or no JSON at all, which Postgres does not print
            read.append(None)
            states.append(NOT_HELD)
    mask = pc.fill_null(escaped, False)
    bare = pc.replace_with_mask(bare, mask, pa.array(read, pa.binary()))
    failed = pc.replace_with_mask(pa.nulls(len(found), pa.utf8()), mask, pa.array(states, pa.utf8()))
    return bare.cast(pa.utf8()), failed if any(states) else None
