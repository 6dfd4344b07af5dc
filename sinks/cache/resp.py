"""Script calls as the bytes that go over the wire, for a whole batch at once: no Python object per row.

One call is ``EVALSHA sha numkeys <fixed keys> <row keys…> <fixed argument> <row values…>`` in RESP 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdc.model.kernel import kernel
from sinks.jsonrows import Texts

_ITEM_OVERHEAD_BYTES = 16
"""At most ``$``, ten digits and two line ends around an item."""


@dataclass(frozen=True, slots=True)
class Script:
    """A loaded script with what is the same in all of its calls."""

    sha: bytes
    fixed_keys: tuple[bytes, ...]
    fixed_argument: bytes


@dataclass(frozen=True, slots=True)
class Calls:
    """``data`` holds all calls; call i ends at ``ends[i]``."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]


def bulk(item: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(item), item)


def script_calls(script: Script, keys: Texts, values: Texts, *, keys_per_call: int, bytes_per_call: int) -> Calls:
    """One key and one value per row, at most ``keys_per_call`` of them and about ``bytes_per_call`` in a call."""
    head = np.frombuffer(bulk(b"EVALSHA") + bulk(script.sha), np.uint8)
    fixed = np.frombuffer(b"".join(map(bulk, script.fixed_keys)), np.uint8)
    argument = np.frombuffer(bulk(script.fixed_argument), np.uint8)
    rows = len(keys)
    size = len(keys.data) + int(values.offsets[-1] - values.offsets[0]) + 2 * rows * _ITEM_OVERHEAD_BYTES
    per_call = len(head) + len(fixed) + len(argument) + 2 * _ITEM_OVERHEAD_BYTES
    out = np.empty(size + rows * per_call, np.uint8)  # an upper bound; pages never written cost nothing
    shape = (keys_per_call, bytes_per_call, len(script.fixed_keys))
    written, ends = _write_calls(out, keys.data, keys.offsets, values.data, values.offsets, head, fixed, argument, shape)
    return Calls(out[:written], ends)


def warm_up() -> None:
    """Compiles or loads the kernels (see ``jsonrows.warm_up``)."""
    nothing = Texts(np.empty(0, np.uint8), np.zeros(1, np.int64))
    script_calls(Script(b"", (), b""), nothing, nothing, keys_per_call=1, bytes_per_call=1)


@kernel
def _put(out: Any, at: int, source: Any, start: int, end: int) -> int:
    for k in range(end - start):
        out[at + k] = source[start + k]
    return at + end - start


@kernel
def _put_number(out: Any, at: int, mark: int, value: int) -> int:
    """``mark``, the digits, a line end."""
    out[at] = mark
    width = 1
    rest = value
    while rest >= 10:
        rest //= 10
        width += 1
    for k in range(width, 0, -1):
        out[at + k] = 48 + value % 10
        value //= 10
    at += width + 1
    out[at] = 13
    out[at + 1] = 10
    return at + 2


@kernel
def _put_items(out: Any, at: int, data: Any, offsets: Any, first: int, last: int) -> int:
    for i in range(first, last):
        at = _put_number(out, at, 36, offsets[i + 1] - offsets[i])
        at = _put(out, at, data, offsets[i], offsets[i + 1])
        out[at] = 13
        out[at + 1] = 10
        at += 2
    return at


@kernel
def _write_calls(
    out: Any, key_data: Any, key_offsets: Any, value_data: Any, value_offsets: Any, head: Any, fixed: Any, argument: Any, shape: Any
) -> Any:
    keys_per_call, bytes_per_call, fixed_keys = shape
    rows = len(key_offsets) - 1
    ends = np.empty(rows, np.int64)
    calls = 0
    at = 0
    first = 0
    scratch = np.empty(24, np.uint8)
    while first < rows:
        last = first + 1
        while last < rows and last - first < keys_per_call and value_offsets[last + 1] - value_offsets[first] <= bytes_per_call:
            last += 1
        count = last - first
        at = _put_number(out, at, 42, 4 + fixed_keys + 2 * count)
        at = _put(out, at, head, 0, len(head))
        digits = _put_number(scratch, 0, 36, fixed_keys + count) - 3  # without the mark and the line end
        at = _put_number(out, at, 36, digits)
        at = _put(out, at, scratch, 1, 1 + digits)
        out[at] = 13
        out[at + 1] = 10
        at += 2
        at = _put(out, at, fixed, 0, len(fixed))
        at = _put_items(out, at, key_data, key_offsets, first, last)
        at = _put(out, at, argument, 0, len(argument))
        at = _put_items(out, at, value_data, value_offsets, first, last)
        ends[calls] = at
        calls += 1
        first = last
    return at, ends[:calls]
