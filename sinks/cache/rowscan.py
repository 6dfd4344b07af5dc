"""Every row of a table as it stands in the store, for the audit: pages of keys and their values are asked for ahead, and some pages read by columns together.

While some pages are read here another thread takes the next from the server, which is always at work on one. Behind each page's values stands the ledger: where it is there, so were the rows. (In one
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
from sinks.cache.rowreader import READ_KEYS, SCAN_COUNT, pattern_of
from sinks.cache.seenkeys import SeenKeys
from sinks.cache.server import Server
from sinks.cache.values import Answers, Form, Mask
from sinks.cache.wire import command, refuse_error
from sinks.render.documentcolumns import Read
from sinks.render.jsonkernels import Bytes
from sinks.render.texts import Texts, readonly

PAGE_BYTES: Final = 4 << 20
"""Values that are asked for at once, about; two pages are under way, and twice as much is here."""
READ_ROWS: Final = 8192
"""Read together, where they are not more than ``PAGE_BYTES``: what a call takes whatever the number of rows is little beside them."""
_FIRST_COUNT: Final = 100
_FEWEST: Final = 10
_LOG: Final = ledger.LOOK[0]


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, and what they hold. ``log``: the ledger's log at each moment behind which some of them had been read. ``names``: large_binary. ``there``: which
    of them hold a value of the store's form."""

    log: tuple[bytes | None, ...]
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


def _answered(server: Server, store: str, keys: TableKeys, form: Form) -> Generator[Sequence[_AnsweredPage], None, None]:
    """What is read together, as it has come."""
    look = command("HMGET", ledger.key_of(store), _LOG)
    seen, count = SeenKeys(), _FIRST_COUNT
    awaited: deque[_AskedPage | None] = deque([None])
    unread: list[_AnsweredPage] = []
    with server.reading() as wire:
        wire.send(_scan(b"0", keys.prefix, count))
        while awaited:
            asked = awaited.popleft()
            if asked is not None:
                unread.append(answered := _AnsweredPage(asked, np.frombuffer(wire.answers(len(asked.counts) + 1), np.uint8)))
                count = int(min(max(PAGE_BYTES * len(asked.names) // len(answered.data), _FEWEST), SCAN_COUNT))
                if (
                    sum(len(page.asked.names) for page in unread) >= READ_ROWS
                    or sum(len(page.data) for page in unread) >= PAGE_BYTES
                ):
                    yield unread
                    unread = []
                continue
            cursor, found = page_of(np.frombuffer(wire.answers(1), np.uint8))
            request = b""
            if cursor != b"0":
                request = _scan(cursor, keys.prefix, count)
                awaited.append(None)
            if len(fresh := seen.fresh(found)):
                at_once = min(count, READ_KEYS)
                request += form.questions(fresh, at_once) + look
                awaited.append(_AskedPage(fresh, form.counts(len(fresh), at_once)))
            if request:
                wire.send(request)
    if unread:
        yield unread


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


def _scan(cursor: bytes, prefix: str, count: int) -> bytes:
    return command("SCAN", cursor, "MATCH", pattern_of(prefix), "COUNT", count)


def _read(pages: Sequence[_AnsweredPage], keys: TableKeys, form: Form) -> Page:
    data = pages[0].data if len(pages) == 1 else readonly(np.concatenate([page.data for page in pages]))
    begins = np.cumsum([0, *(len(page.data) for page in pages)]).tolist()
    places = [Answers(begin, page.asked.counts) for begin, page in zip(begins, pages, strict=False)]
    there, found, ends = form.columns(data, places, keys.schema)
    return Page(tuple(_log(data, end) for end in ends), pa.concat_arrays([page.asked.names for page in pages]), there, found)


def _log(data: Bytes, at: int) -> bytes | None:
    """The ledger's, whose answer begins there."""
    refuse_error(data, at)
    starts, stops = np.empty(1, np.int64), np.empty(1, np.int64)
    texts_at(data, line_at(data, at)[2], starts, stops)
    return None if starts[0] == NOTHING else data[starts[0] : stops[0]].tobytes()
