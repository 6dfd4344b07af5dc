"""Every row of a table as it stands in the store, for the audit: pages of keys and their values are asked for ahead, and read by columns.

While one page is read here the server is at work on the next. What columns do not show is left to ``sinks.cache.rowreader``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.errors import StoreError
from sinks.cache import ledger
from sinks.cache.answerkernels import NOTHING, gathered, line_at, statuses_end, texts_at
from sinks.cache.keytemplate import TableKeys
from sinks.cache.rowreader import READ_KEYS, SCAN_COUNT, pattern_of
from sinks.cache.seenkeys import SeenKeys
from sinks.cache.server import Server
from sinks.cache.values import Form, Mask
from sinks.cache.wire import RedisWire, Refused, command
from sinks.render.documentcolumns import Read
from sinks.render.jsonkernels import Bytes
from sinks.render.texts import Texts

PAGE_BYTES: Final = 4 << 20
"""Values that are asked for at once, about; two pages are under way."""
_FIRST_COUNT: Final = 100
_FEWEST: Final = 10
_ERROR, _ARRAY = ord("-"), ord("*")


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, and what they hold. ``log``: the ledger's log at each moment at which some of them were read. ``names``: large_binary. ``there``: which of them
    hold a value of the store's form."""

    log: tuple[bytes | None, ...]
    names: pa.Array
    there: Mask
    found: Read


@dataclass(frozen=True, slots=True)
class _AskedPage:
    """Names that are asked for, so many in one transaction."""

    names: pa.Array
    at_once: int

    def parts(self) -> Iterator[pa.Array]:
        return (self.names.slice(start, self.at_once) for start in range(0, len(self.names), self.at_once))


def pages(server: Server, store: str, keys: TableKeys, form: Form) -> Iterator[Page]:
    """All keys below the table's prefix, each once. Raises StoreError (retryable), perhaps after the last page, where some may be missing."""
    server.refuse_moving()
    look = command("HMGET", ledger.key_of(store), *ledger.LOOK, f"at:{keys.schema.topic}")
    seen, count = SeenKeys(), _FIRST_COUNT
    awaited: deque[_AskedPage | None] = deque([None])
    with server.reading() as wire:
        wire.send(_scan(b"0", keys.prefix, count))
        while awaited:
            asked = awaited.popleft()
            if asked is not None:
                page, size = _read(wire, asked, keys, form)
                yield page
                count = int(min(max(PAGE_BYTES * len(asked.names) // size, _FEWEST), SCAN_COUNT))
                continue
            cursor, found = page_of(np.frombuffer(wire.answers(1), np.uint8))
            request = b""
            if cursor != b"0":
                request = _scan(cursor, keys.prefix, count)
                awaited.append(None)
            if len(fresh := seen.fresh(found)):
                asked = _AskedPage(fresh, min(count, READ_KEYS))
                request += b"".join(_transaction(look, form, part) for part in asked.parts())
                awaited.append(asked)
            if request:
                wire.send(request)
    server.refuse_moving()


def page_of(answer: Bytes) -> tuple[bytes, pa.Array]:
    """The cursor and the keys (large_binary) of SCAN's answer. Raises Refused where it is an error."""
    _refuse_error(answer, 0)
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


def _transaction(look: bytes, form: Form, names: pa.Array) -> bytes:
    """The ledger and these keys at one moment."""
    return b"".join((command("MULTI"), look, form.questions(names), command("EXEC")))


def _read(wire: RedisWire, sent: _AskedPage, keys: TableKeys, form: Form) -> tuple[Page, int]:
    """The answers to what was asked, and how many bytes they are."""
    counts = [len(part) for part in sent.parts()]
    asked = [3 + form.commands(count) for count in counts]
    data = np.frombuffer(wire.answers(sum(asked)), np.uint8)
    at, logs, places = 0, [], []
    for count, answers in zip(counts, asked, strict=True):
        log, values, at = _opened(data, at, answers)
        logs.append(log)
        places.append((values, count))
    there, found = form.columns(data, places, keys.schema)
    return Page(tuple(logs), sent.names, there, found), len(data)


def _opened(data: Bytes, at: int, answers: int) -> tuple[bytes | None, int, int]:
    """(the ledger's log, where the values begin, behind the transaction)."""
    at, refused = statuses_end(data, at, answers - 1)
    if refused != NOTHING:
        _refuse_error(data, refused)
    _refuse_error(data, at)
    kind, _, values = line_at(data, at)
    if kind != _ARRAY:
        raise StoreError("the server has not carried out a transaction that only reads", retryable=True)
    behind = _behind(data, at)
    _refuse_error(data, values)
    _, fields, first = line_at(data, values)
    starts, stops = np.empty(fields, np.int64), np.empty(fields, np.int64)
    values = texts_at(data, first, starts, stops)
    return None if starts[0] == NOTHING else data[starts[0] : stops[0]].tobytes(), values, behind


def _behind(data: Bytes, at: int) -> int:
    starts = np.empty(1, np.int64)
    return int(texts_at(data, at, starts, starts.copy()))


def _refuse_error(data: Bytes, at: int) -> None:
    if data[at] == _ERROR:
        raise Refused(data[at : line_at(data, at)[2] - 2].tobytes())
