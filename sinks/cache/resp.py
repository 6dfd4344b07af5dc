"""Rows as transactions on the wire (RESP 2), for a whole batch at once: no Python object per row.

A *part* is one transaction's bytes up to, and without, its EXEC, which is sent once the ledger's answer in the same part has been read::

    EXEC                                   of the part before: whoever sends the first one, or has to give up, cuts it off
    WATCH ledger / HMGET ledger … / MULTI  the look at the ledger
    DEL key …                              deleted rows, and those that an HSET follows
    MSET key value …                       or, with hashes, RESTORE key 0 hash REPLACE or HSET key field value … for each row
    PEXPIREAT key ms …                     where rows expire
    PUBLISH channel key …                  where a channel is named
    HSET ledger … progress                 missing in a part that moves nothing

A hash of short fields is made here as the server keeps it (``sinks.cache.listpack``), which costs the server about half of what an HSET does. RESTORE
replaces whatever stood under the key, as SET does. An HSET leaves fields that it does not name, a time to live, and a key of another type as they are: a
former store's, or another program's. After the DEL it is what SET is, too: a row's key holds the row and nothing else, and no row's command can fail for
what stood there before.

Within a part the last change of a key wins, so a key stands in it once and the order of the commands does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import kernel
from cdc.kernels.memcpy import BLOCK, copied, short_copied
from sinks.cache import listpack
from sinks.cache.wire import bulk, command
from sinks.render.jsonrows import BUFFERS, Texts

EXEC: Final = command("EXEC")
MULTI: Final = command("MULTI")

_ITEM_BYTES: Final = 16
"""At most ``$``, eleven digits and two line ends around an item."""
_COMMAND_BYTES: Final = 32
_NO_FIELDS: Final = np.empty(0, np.int64)
_EVERYWHERE: Final = np.empty(0, np.uint8)
_SLOTS_PER_ROW: Final = 4
_STAR: Final = 42
_DOLLAR: Final = 36
_DEL: Final = np.frombuffer(bulk(b"DEL"), np.uint8)
_MSET: Final = np.frombuffer(bulk(b"MSET"), np.uint8)
_HSET: Final = np.frombuffer(bulk(b"HSET"), np.uint8)
_RESTORE: Final = np.frombuffer(b"*5\r\n" + bulk(b"RESTORE"), np.uint8)
_FOR_EVER: Final = np.frombuffer(bulk(b"0"), np.uint8)
_REPLACE: Final = np.frombuffer(bulk(b"REPLACE"), np.uint8)
_PEXPIREAT: Final = np.frombuffer(bulk(b"PEXPIREAT"), np.uint8)


@dataclass(frozen=True, slots=True)
class Frame:
    """The commands that are the same around all parts of one table."""

    look: bytes
    """WATCH, the questions to the ledger, MULTI."""
    move: bytes
    """The last command up to the new progress; empty when the parts move nothing."""
    channel: bytes = b""
    """Where each key is published that is written or deleted; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class Limits:
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RowFrames:
    """The rows to write: ``values`` are whole values or, with hashes, the fields and texts of a row as RESP items, so many as ``items``.

    gone: 1 where the row's key is to be deleted. positions: rising; two rows may have one, and are never parted. packed: with hashes, 1 where the value is what RESTORE takes instead.
    """

    keys: Texts
    values: Texts
    gone: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64] | None = None
    expire_at: npt.NDArray[np.int64] | None = None
    """When each key expires (ms since 1970); None: never."""
    packed: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class RequestPart:
    """One transaction without its EXEC, but with that of the part before. ``commands``: so many are queued in it."""

    data: memoryview
    commands: int
    upto: int | None
    """The table's progress once its answer has been read; None when it moves nothing."""


def parts_of(frame: Frame, rows: RowFrames, limits: Limits) -> list[RequestPart]:
    count = len(rows.keys)
    if count == 0:
        return []
    head, move = (np.frombuffer(text, np.uint8) for text in (EXEC + frame.look, frame.move))
    items = _NO_FIELDS if rows.items is None else rows.items
    expire_at = _NO_FIELDS if rows.expire_at is None else rows.expire_at
    packed = np.zeros(len(items), np.uint8) if rows.packed is None else rows.packed
    told = np.frombuffer(bulk(b"PUBLISH") + bulk(frame.channel) if frame.channel else b"", np.uint8)
    texts = 2 * len(rows.keys.data) + len(rows.values.data) + count * (3 * _ITEM_BYTES + 2 * _COMMAND_BYTES)
    for further in (expire_at, told):
        if len(further):
            texts += len(rows.keys.data) + count * (2 * _ITEM_BYTES + 2 * _COMMAND_BYTES + len(told))
    per_part = len(head) + len(move) + 4 * _COMMAND_BYTES
    out = BUFFERS.take(texts + count * per_part)  # an upper bound; pages never written cost nothing
    slots = np.empty(_power_of_two(_SLOTS_PER_ROW * min(limits.rows + 1, count)), np.int64)
    found = _write_parts(
        out,
        slots,
        (rows.keys.data, rows.keys.offsets),
        (rows.values.data, rows.values.offsets, items, packed, expire_at),
        rows.gone,
        rows.positions,
        (head, move, told),
        (limits.rows, limits.bytes),
    )
    view = memoryview(out.data)
    starts = [0, *found[:, 0].tolist()]
    return [
        RequestPart(view[start:end], commands, upto if frame.move else None)
        for start, (end, commands, upto) in zip(starts, found.tolist(), strict=False)
    ]


def deletions(frame: Frame, keys: Texts, limits: Limits) -> list[RequestPart]:
    """These keys deleted, in parts that move nothing."""
    count = len(keys)
    nothing = Texts(np.empty(0, np.uint8), np.zeros(count + 1, np.int64))
    return parts_of(frame, RowFrames(keys, nothing, np.ones(count, np.uint8), np.zeros(count, np.int64)), limits)


Named = Sequence[tuple[bytes, Texts, npt.NDArray[np.uint8] | None]]


@dataclass(frozen=True, slots=True)
class Hashes:
    """As ``RowFrames`` takes them."""

    texts: Texts
    items: npt.NDArray[np.int64]
    packed: npt.NDArray[np.uint8]


def hashes_of(named: Named, rows: int, *, packed: bool) -> Hashes:
    """Per row a name and a text for each of these, none where its states are not 0. packed: rows that are short enough as RESTORE takes them."""
    short = np.full(rows, packed and listpack.can_hold([name for name, _, _ in named]), np.uint8)
    listed = [(name, texts, _EVERYWHERE if states is None else states) for name, texts, states in named]
    items, sizes = np.zeros(rows, np.int64), np.full(rows, listpack.AROUND, np.int64)
    for name, texts, states in listed:
        items += 2 if len(states) == 0 else 2 * (states == 0)
        if short.any():
            listpack.add_entry_sizes(sizes, short, texts.data, texts.offsets, states, listpack.name_bytes(name))
    sizes[short == 0] = 0
    long = []
    if not short.all():
        long = [
            (np.frombuffer(bulk(name), np.uint8), texts, short | states if len(states) else short) for name, texts, states in listed
        ]
    for before, texts, states in long:
        add_item_sizes(sizes, texts.offsets, states, len(before))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out, cursors = BUFFERS.take(int(offsets[-1])), offsets[:-1].copy()
    if short.any():
        listpack.begin(out, cursors, offsets, items, short)
        for name, texts, states in listed:
            listpack.put_entries(out, cursors, listpack.name_entry(name), texts.data, texts.offsets, states, short)
        listpack.finish(out, offsets, short)
    for before, texts, states in long:
        put_items(out, cursors, before, texts.data, texts.offsets, states)
    return Hashes(Texts(out, offsets), items, short)


def items_of(texts: Texts, before: bytes = b"") -> bytes:
    """Each text as an item, and ``before`` in front of it, one behind the other."""
    return _items(texts, before)[0].tobytes()


def lists_of(texts: Texts, first: bytes, at_once: int) -> bytes:
    """Lists of items, one behind the other: the item ``first``, and so many of the texts."""
    out, starts = _items(texts, b"")
    edges = [*starts[:-1:at_once].tolist(), len(out)]
    parts: list[bytes | memoryview] = []
    for number, (start, end) in enumerate(pairwise(edges)):
        parts += (b"*%d\r\n%s" % (1 + min(at_once, len(texts) - number * at_once), first), out.data[start:end])
    return b"".join(parts)


def _items(texts: Texts, before: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """As ``items_of``, and where each begins, and the last ends."""
    out, starts = _put_one_by_one(np.frombuffer(before, np.uint8), texts.data, texts.offsets)
    return out, starts


def warm_up() -> None:
    """Compiles or loads the kernels (see ``jsonrows.warm_up``)."""
    one = Texts(np.frombuffer(b"k", np.uint8), np.array([0, 1], np.int64))
    rows = RowFrames(one, one, np.zeros(1, np.uint8), np.zeros(1, np.int64))
    parts_of(Frame(b"", b""), rows, Limits(1, 1))
    hashes_of([(b"f", one, None)], 1, packed=True)
    hashes_of([(b"f", one, None)], 1, packed=False)


def _power_of_two(size: int) -> int:
    return 1 << max(4, (size - 1).bit_length())


@kernel
def _width(value: int) -> int:
    width = 1
    while value >= 10:
        value //= 10
        width += 1
    return width


@kernel
def _put_line(out: Any, at: int, value: int) -> int:
    """The digits, a line end."""
    width = _width(value)
    for k in range(width - 1, -1, -1):
        out[at + k] = 48 + value % 10
        value //= 10
    out[at + width] = 13
    out[at + width + 1] = 10
    return at + width + 2


@kernel
def _put_size(out: Any, at: int, mark: int, value: int) -> int:
    out[at] = mark
    return _put_line(out, at + 1, value)


@kernel
def _put_item(out: Any, at: int, data: Any, offsets: Any, row: int) -> int:
    at = _put_size(out, at, _DOLLAR, offsets[row + 1] - offsets[row])
    at = copied(out, at, data, offsets[row], offsets[row + 1] - offsets[row])
    out[at] = 13
    out[at + 1] = 10
    return at + 2


@kernel
def add_item_sizes(sizes: Any, offsets: Any, states: Any, around: int) -> None:
    """Adds what a text takes as an item, and ``around`` bytes, in each row where ``states`` (empty: everywhere) is 0."""
    for row in range(len(sizes)):
        if len(states) == 0 or states[row] == 0:
            size = offsets[row + 1] - offsets[row]
            sizes[row] += around + 1 + _width(size) + 2 + size + 2


@kernel
def put_items(out: Any, cursors: Any, before: Any, data: Any, offsets: Any, states: Any) -> None:
    """Writes ``before`` and the text as an item at the cursor of each such row, and moves the cursor."""
    for row in range(len(cursors)):
        if len(states) == 0 or states[row] == 0:
            at = copied(out, cursors[row], before, 0, len(before))
            cursors[row] = _put_item(out, at, data, offsets, row)


@kernel
def _put_one_by_one(before: Any, data: Any, offsets: Any) -> Any:
    """(the items with ``before`` in front of each, where each begins and the last ends)."""
    rows = len(offsets) - 1
    out = np.empty(offsets[rows] - offsets[0] + rows * (len(before) + _ITEM_BYTES) + BLOCK, np.uint8)
    starts = np.empty(rows + 1, np.int64)
    at = 0
    for row in range(rows):
        starts[row] = at
        at = short_copied(out, at, before, 0, len(before))
        size = offsets[row + 1] - offsets[row]
        at = _put_size(out, at, _DOLLAR, size)
        at = short_copied(out, at, data, offsets[row], size)
        out[at] = 13
        out[at + 1] = 10
        at += 2
    starts[rows] = at
    return out[:at], starts


@kernel
def _mark_last(slots: Any, data: Any, offsets: Any, first: int, end: int, written: Any) -> None:
    """Sets ``written`` to 1 for the rows of [first, end) whose key does not come again among them, to 0 for the others."""
    slots[:] = -1
    mask = len(slots) - 1
    for row in range(end - 1, first - 1, -1):
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        code = np.uint64(0xCBF29CE484222325)
        for k in range(size):
            code = (code ^ np.uint64(data[start + k])) * np.uint64(0x100000001B3)
        at = np.int64((code ^ (code >> np.uint64(32))) & np.uint64(mask))
        written[row] = 1
        while slots[at] >= 0:
            other = offsets[slots[at]]
            same = offsets[slots[at] + 1] - other == size
            k = 0
            while same and k < size:
                same = data[other + k] == data[start + k]
                k += 1
            if same:
                written[row] = 0
                break
            at = (at + 1) & mask
        if written[row] == 1:
            slots[at] = row


@kernel
def _write_parts(out: Any, slots: Any, keys: Any, values: Any, gone: Any, positions: Any, frame: Any, limits: Any) -> Any:
    """Returns an int64 row per part: its end in ``out``, how many commands it queues, and the position of its last row."""
    key_data, key_offsets = keys
    value_data, value_offsets, items, packed, expire_at = values
    head, move, told = frame
    rows_max, bytes_max = limits
    hashes = len(items) > 0
    moves = len(move) > 0
    rows = len(key_offsets) - 1
    written = np.empty(rows, np.uint8)
    found = np.empty((rows, 3), np.int64)
    parts = 0
    at = 0
    first = 0
    while first < rows:
        end = first + 1
        while end < rows and end - first < rows_max and value_offsets[end + 1] - value_offsets[first] <= bytes_max:
            end += 1
        while end < rows and moves and positions[end] == positions[end - 1]:
            end += 1  # a row, and the DELETE of the place that it has left: progress covers both
        _mark_last(slots, key_data, key_offsets, first, end, written)
        removed = 0
        put = 0
        for row in range(first, end):
            if written[row]:
                removed += 1 if hashes and not packed[row] else gone[row]
                put += 1 - gone[row]
        commands = 0
        at = copied(out, at, head, 0, len(head))
        if removed > 0:
            at = _put_size(out, at, _STAR, 1 + removed)
            at = copied(out, at, _DEL, 0, len(_DEL))
            for row in range(first, end):
                if written[row] and (gone[row] or (hashes and not packed[row])):
                    at = _put_item(out, at, key_data, key_offsets, row)
            commands += 1
        if put > 0 and not hashes:
            at = _put_size(out, at, _STAR, 1 + 2 * put)
            at = copied(out, at, _MSET, 0, len(_MSET))
            for row in range(first, end):
                if written[row] and not gone[row]:
                    at = _put_item(out, at, key_data, key_offsets, row)
                    at = _put_item(out, at, value_data, value_offsets, row)
            commands += 1
        if put > 0 and hashes:
            for row in range(first, end):
                if written[row] and not gone[row] and packed[row]:
                    at = copied(out, at, _RESTORE, 0, len(_RESTORE))
                    at = _put_item(out, at, key_data, key_offsets, row)
                    at = copied(out, at, _FOR_EVER, 0, len(_FOR_EVER))
                    at = _put_item(out, at, value_data, value_offsets, row)
                    at = copied(out, at, _REPLACE, 0, len(_REPLACE))
                    commands += 1
                elif written[row] and not gone[row]:
                    at = _put_size(out, at, _STAR, 2 + items[row])
                    at = copied(out, at, _HSET, 0, len(_HSET))
                    at = _put_item(out, at, key_data, key_offsets, row)
                    at = copied(out, at, value_data, value_offsets[row], value_offsets[row + 1] - value_offsets[row])
                    commands += 1
        if put > 0 and len(expire_at) > 0:
            for row in range(first, end):
                if written[row] and not gone[row]:
                    at = _put_size(out, at, _STAR, 3)
                    at = copied(out, at, _PEXPIREAT, 0, len(_PEXPIREAT))
                    at = _put_item(out, at, key_data, key_offsets, row)
                    at = _put_size(out, at, _DOLLAR, _width(expire_at[row]))
                    at = _put_line(out, at, expire_at[row])
                    commands += 1
        if len(told) > 0:
            for row in range(first, end):
                if written[row]:
                    at = _put_size(out, at, _STAR, 3)
                    at = copied(out, at, told, 0, len(told))
                    at = _put_item(out, at, key_data, key_offsets, row)
                    commands += 1
        if moves:
            at = copied(out, at, move, 0, len(move))
            at = _put_size(out, at, _DOLLAR, _width(positions[end - 1]))
            at = _put_line(out, at, positions[end - 1])
            commands += 1
        found[parts, 0] = at
        found[parts, 1] = commands
        found[parts, 2] = positions[end - 1]
        parts += 1
        first = end
    return found[:parts]
