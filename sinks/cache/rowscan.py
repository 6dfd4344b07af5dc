"""Every row of a table as it stands in the store, for the audit: the keys first, many at a time; then their values, which are asked for ahead, in pages that are
read by columns.

While a page is read here another thread takes the next from the server, which is always at work on one. Behind each page's values stands the ledger: where it is there, so were the rows. (In one
transaction with them it would say no more, as the store may lose all of it before one, too, and have another ledger; and what reads each hash by itself costs
the server twice as much in a transaction.) What columns do not show is left to ``sinks.cache.rowreader``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sinks.cache import ledger
from sinks.cache.answerkernels import NOTHING, gathered, line_at, texts_at
from sinks.cache.keytemplate import TableKeys
from sinks.cache.nameorder import put_in_order
from sinks.cache.rowreader import READ_KEYS, SCAN_COUNT, pattern_of
from sinks.cache.seenkeys import SeenKeys
from sinks.cache.server import Server
from sinks.cache.values import Form, Mask
from sinks.cache.wire import RedisWire, command, refuse_error
from sinks.render.documentcolumns import Read
from sinks.render.jsonkernels import Bytes
from sinks.render.texts import Texts

PAGE_BYTES: Final = 4 << 20
"""Values that are asked for at once, about; two pages are under way, and two are here."""
PAGE_KEYS: Final = 2048
"""In a page at most: what a call takes whatever the number of rows is little beside so many. Of pages four times as long a server spends a tenth more time on
the memory of its answers."""
TOGETHER_BYTES: Final = 48 << 20
"""Names that are put in order together, about: two million short ones."""
_UNDER_WAY: Final = 2
_FIRST_COUNT: Final = 100
_FEWEST: Final = 10
_LOG: Final = ledger.LOOK[0]


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, and what they hold. ``log``: the ledger's log at a moment behind which all of them had been read. ``names``: large_binary. ``there``: which
    of them hold a value of the store's form."""

    log: bytes | None
    names: pa.Array
    there: Mask
    found: Read


@dataclass(frozen=True, slots=True)
class _AskedPage:
    """``counts``: for how many of the names each command is."""

    names: pa.Array
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class _AnsweredPage:
    """``data``: the answers, the ledger's behind the values."""

    asked: _AskedPage
    data: Bytes


def pages(server: Server, store: str, keys: TableKeys, form: Form) -> Iterator[Page]:
    """All keys below the table's prefix, each once. Raises StoreError (retryable), perhaps after the last page, where some may be missing."""
    server.refuse_moving()
    answered = _answered(server, store, keys, form)
    try:
        with ThreadPoolExecutor(1, "audit-page") as ahead:
            coming = ahead.submit(next, answered, None)
            while (some := coming.result()) is not None:
                coming = ahead.submit(next, answered, None)
                yield _read(some, keys, form)
    finally:
        answered.close()
    server.refuse_moving()


def _answered(server: Server, store: str, keys: TableKeys, form: Form) -> Generator[_AnsweredPage, None, None]:
    """The pages as they have come."""
    look = command("HMGET", ledger.key_of(store), _LOG)
    asked: deque[_AskedPage] = deque()
    count, at_once = _FIRST_COUNT, READ_KEYS
    with server.reading() as wire:
        for names in _names(wire, keys.prefix):
            at = 0
            while at < len(names) or asked:
                while at < len(names) and len(asked) < _UNDER_WAY:
                    some = names.slice(at, count)
                    at += len(some)
                    wire.send(form.questions(some, at_once) + look)
                    asked.append(_AskedPage(some, form.counts(len(some), at_once)))
                page = asked.popleft()
                answered = _AnsweredPage(page, np.frombuffer(wire.answers(len(page.counts) + 1), np.uint8))
                count = int(min(max(PAGE_BYTES * len(page.names) // len(answered.data), _FEWEST), PAGE_KEYS))
                at_once = min(count, READ_KEYS)
                yield answered


def _names(wire: RedisWire, prefix: str) -> Iterator[pa.Array]:
    """The names (large_binary) of the keys below the prefix, each once: many at a time, and these in the order in which their rows were probably written."""
    seen, behind = SeenKeys(), len(prefix.encode())
    cursor, there, size = b"", list[pa.Array](), 0
    wire.send(_scan(b"0", prefix))
    while cursor != b"0":
        cursor, found = page_of(np.frombuffer(wire.answers(1), np.uint8))
        together = size < TOGETHER_BYTES and cursor != b"0"
        if together:
            wire.send(_scan(cursor, prefix))
        there.append(seen.fresh(found))
        size += int(there[-1].nbytes)
        if not together:
            yield put_in_order(pa.concat_arrays(there), behind)
            there, size = [], 0
            if cursor != b"0":
                wire.send(_scan(cursor, prefix))


def page_of(answer: Bytes) -> tuple[bytes, pa.Array]:
    """The cursor and the keys (large_binary) of SCAN's answer. Raises Refused where it is an error."""
    refuse_error(answer, 0)
    _, _, at = line_at(answer, 0)
    starts, stops = np.empty(1, np.int64), np.empty(1, np.int64)
    at = texts_at(answer, at, starts, stops)
    cursor = answer[starts[0] : stops[0]].tobytes()
    _, count, at = line_at(answer, at)
    starts, stops = np.empty(count, np.int64), np.empty(count, np.int64)
    texts_at(answer, at, starts, stops)
    return cursor, Texts(*gathered(answer, starts, stops)).to_array()


def _scan(cursor: bytes, prefix: str) -> bytes:
    return command("SCAN", cursor, "MATCH", pattern_of(prefix), "COUNT", SCAN_COUNT)


def _read(page: _AnsweredPage, keys: TableKeys, form: Form) -> Page:
    there, found, end = form.columns(page.data, page.asked.counts, keys.schema)
    return Page(_log(page.data, end), page.asked.names, there, found)


def _log(data: Bytes, at: int) -> bytes | None:
    """The ledger's, whose answer begins there."""
    refuse_error(data, at)
    starts, stops = np.empty(1, np.int64), np.empty(1, np.int64)
    texts_at(data, line_at(data, at)[2], starts, stops)
    return None if starts[0] == NOTHING else data[starts[0] : stops[0]].tobytes()
