"""The entries of Redis streams, and the mark beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import Cut, Position
from sinks.cache.resp import add_item_sizes, put_items
from sinks.cache.server import Server
from sinks.cache.transactions import fields_of
from sinks.cache.wire import Reply, bulk, command
from sinks.contract import EpochPassed, Traits
from sinks.events.event import NO_EVENTS, EventBatch
from sinks.events.eventcolumns import moments
from sinks.events.heldback import At, letter_id
from sinks.events.markedchannel import MarkedChannel
from sinks.events.redisstream import script
from sinks.events.redisstream.options import Options
from sinks.events.redisstream.script import held_key, ledger_key
from sinks.events.sink import TRAITS, EventSink
from sinks.events.standing import EventStanding
from sinks.render.texts import Texts, raw_texts

CALL_EVENTS: Final = 500
"""Of one call: for so long the server does nothing else."""
CALL_BYTES: Final = 1 << 20
"""Beyond so many a call has one event only."""
FIELDS: Final = ("id", "topic", "op", "type", "key", "time", "headers", "body")
"""An entry's fields; one that is NULL is left out."""
_TEXTS: Final = tuple(name for name in FIELDS if name != "time")
_ALL: Final = np.empty(0, np.uint8)


BULK_BYTES_MAX: Final = 512 << 20
"""The longest text that a server takes which does not say."""
ENTRY_BYTES_MAX: Final = (1 << 30) - (1 << 20)
"""All texts of an entry together: a stream has no room for more."""


class StreamChannel(MarkedChannel):
    """See ``sinks.events.sink.Channel``."""

    def __init__(self, store: str, options: Options) -> None:
        super().__init__(store)
        self._options = options
        self._server = Server(store, options)
        self._ledger, self._held_at = ledger_key(store), held_key(store)
        self._known: EventStanding | None = None
        self._found: EventStanding | None = None
        """What the ledger said when it was asked last."""

    def standing(self) -> EventStanding | None:
        with self._server.errors():
            wire = self._server.wire
            wire.send(command("HGETALL", self._ledger))
            found = fields_of(wire.reply())
        self._found = None
        if not found:
            return None
        try:
            self._found = EventStanding.of(found)
            return self._found
        except (KeyError, ValueError):
            raise StoreError(
                f"store {self._store}: {self._ledger} is not as it was written",
                retryable=False,
                hint="remove the key, or give the store another name",
            ) from None

    def begin(self, standing: EventStanding) -> None:
        self._server.refuse_unfit()
        found = {} if self._found is None else self._found.to_fields()
        fields = [item for name, text in standing.to_fields().items() for item in (name, found.get(name, ""), text)]
        self._done(self._call(script.BEGIN, [self._ledger], standing.epoch, *fields))
        self._take_hold()
        self._known = standing

    def again(self, at: At) -> str | None:
        self._server.refuse_unfit()  # somebody may have set it otherwise for just that
        return super().again(at)

    def _kept(self) -> Mapping[str, str]:
        with self._server.errors():
            wire = self._server.wire
            wire.send(command("HGETALL", self._held_at))
            return fields_of(wire.reply())

    def _unfit(self, events: EventBatch) -> Mapping[int, str]:
        longest = self._server.value_bytes_max or BULK_BYTES_MAX
        found: dict[int, str] = {}
        whole = np.zeros(len(events), np.int64)
        for name in _TEXTS:
            sizes = pc.binary_length(events.column(name)).fill_null(0).to_numpy(zero_copy_only=False)
            whole += sizes
            for row in np.flatnonzero(sizes > longest).tolist():
                found.setdefault(
                    row,
                    f"its {name} has {sizes[row]} bytes, and the server takes no text of more than {longest} (proto-max-bulk-len)",
                )
        for row in np.flatnonzero(whole > ENTRY_BYTES_MAX).tolist():
            found.setdefault(row, f"it has {whole[row]} bytes, and an entry of a stream may have {ENTRY_BYTES_MAX}")
        return found

    def _hand_over(self, events: EventBatch, upto: Position) -> None:
        self._send(events, upto)
        self._known = replace(self._writer(), progress=upto)

    def _send_again(self, events: EventBatch, taken: Callable[[], None]) -> str | None:
        taken()
        self._send(events, self._writer().progress)
        return None

    def _settle(self) -> None:
        if self._holding.has_changed:
            self._send(NO_EVENTS, self._writer().progress)

    def _send(self, events: EventBatch, upto: Position) -> None:
        with self._server.errors():
            wire = self._server.wire
            waiting = 0
            for data in self._calls(events, int(self._writer().progress), int(upto)):
                wire.send(data)
                crashpoint("redisstream.sent")
                if waiting:
                    self._done(wire.reply())  # the next call is on its way while this one is carried out
                waiting = 1
            if waiting:
                self._done(wire.reply())

    def commit(self, cut: Cut) -> None:
        known = self._writer()
        now = known.at(cut)
        fields = [item for pair in now.to_fields().items() for item in pair]
        self._done(self._call(script.NOTE, [self._ledger], now.log, now.history, now.epoch, int(known.progress), *fields))
        self._known = now

    def erase(self) -> None:
        with self._server.errors():
            wire = self._server.wire
            wire.send(command("DEL", self._ledger, self._held_at))
            wire.reply()

    def close(self) -> None:
        self._known = None
        self._let_go()
        self._server.close()

    def _writer(self) -> EventStanding:
        if self._known is None:
            raise StoreError(f"store {self._store} is not open", retryable=True)
        return self._known

    def _call(self, text: str, keys: Sequence[str], *arguments: str | int) -> Reply:
        with self._server.errors():
            wire = self._server.wire
            wire.send(command("EVAL", text, len(keys), *keys, *arguments))
            return wire.reply()

    def _done(self, reply: Reply) -> None:
        """Raises what an answer means that is not the one that was hoped for."""
        answer = [one for one in reply if isinstance(one, bytes)] if isinstance(reply, list) else []
        match answer:
            case [script.DONE] | [script.ALREADY]:
                return
            case [script.FENCED, epoch]:
                raise EpochPassed(self._store, int(epoch))
            case [script.MOVED]:
                raise StoreError(
                    f"store {self._store}: another writer has been at work meanwhile: it is opened again", retryable=True
                )
            case [script.AHEAD, stream]:
                raise StoreError(
                    f"store {self._store}: the stream {stream.decode(errors='replace')} has entries that this log has not come to yet: another log's, or another program's",
                    retryable=False,
                    hint=f"name another stream in stores.{self._store}.stream",
                )
            case [script.ODD, key]:
                raise StoreError(
                    f"store {self._store}: {key.decode(errors='replace')} does not hold a stream: another program's key is in the way",
                    retryable=False,
                    hint=f"name another stream in stores.{self._store}.stream",
                )
        raise StoreError(
            f"store {self._store}: the server's ledger is gone, or is not where this writer left it: it was flushed, restored or replaced",
            retryable=True,
            hint="it is looked at again, and what is missing is delivered again",
        )

    def _calls(self, events: EventBatch, after: int, upto: int) -> Iterator[bytes]:
        """The calls that bring these events and all of the stretch (after, upto]."""
        known, count = self._writer(), len(events)
        topics = events.column("topic").dictionary_encode()
        streams = list(dict.fromkeys(map(self._options.stream_of, topics.dictionary.to_pylist())))
        at = np.array([3 + streams.index(self._options.stream_of(one)) for one in topics.dictionary.to_pylist()], np.int64)
        entries = _entries(events, at[topics.indices.to_numpy()])
        keys = [self._ledger, self._held_at, *streams]
        again = after == upto
        released = dict.fromkeys(zip(events.column("topic").to_pylist(), events.positions.tolist(), strict=True)) if again else {}
        ids = [letter_id(at) for at in released]
        for first, end in _stretches(entries.offsets) or [(0, 0)]:
            to = int(events.positions[end - 1]) if end < count and not again else upto
            # What goes on after all is held back until the call that brings it: of the next one nobody knows whether it comes.
            changes = {} if again and first else {at: text for at, text in self._holding.changes(to).items() if at not in released}
            kept = [item for at, text in changes.items() if text is not None for item in (letter_id(at), text)]
            gone = [*(letter_id(at) for at, text in changes.items() if text is None), *ids[first:end]]
            head = [
                *("EVAL", script.DELIVER, len(keys), *keys, known.log, known.history, known.epoch),
                *(after, to, self._options.maxlen or 0, len(kept) // 2, len(gone), *kept, *gone),
            ]
            start, stop = entries.texts.offsets[first], entries.texts.offsets[end]
            items = len(head) + int(entries.items[first:end].sum())
            words = [item if isinstance(item, bytes) else str(item).encode() for item in head]
            yield b"*%d\r\n" % items + b"".join(map(bulk, words)) + entries.texts.data[start:stop].tobytes()
            after = to


class _Entries:
    """Each event's part of a call, as RESP items: ``items`` so many of them."""

    def __init__(self, texts: Texts, items: npt.NDArray[np.int64]) -> None:
        self.texts = texts
        self.items = items

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return self.texts.offsets


def _entries(events: EventBatch, streams: npt.NDArray[np.int64]) -> _Entries:
    """``streams``: the number of each event's stream in KEYS."""
    count = len(events)
    columns = [(name, _texts(events, name), _absent(events.column(name))) for name in FIELDS]
    texts_each = np.zeros(count, np.int64)
    for _, _, states in columns:
        texts_each += 2 if len(states) == 0 else 2 * (states == 0)
    head = [_numbers(streams), raw_texts(events.column("position").cast(pa.utf8())), _numbers(texts_each)]
    parts = [*((b"", one, _ALL) for one in head), *((bulk(name.encode()), one, states) for name, one, states in columns)]
    sizes = np.zeros(count, np.int64)
    for before, one, states in parts:
        add_item_sizes(sizes, one.offsets, states, len(before))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out, cursors = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
    for before, one, states in parts:
        put_items(out, cursors, np.frombuffer(before, np.uint8), one.data, one.offsets, states)
    return _Entries(Texts(out, offsets), texts_each + len(head))


def _texts(events: EventBatch, name: str) -> Texts:
    column = events.column(name)
    if name == "time":
        return moments(column)
    return raw_texts(column if column.null_count == 0 else column.fill_null(b"" if name == "body" else ""))


def _absent(column: pa.Array) -> npt.NDArray[np.uint8]:
    if column.null_count == 0:
        return _ALL
    found: npt.NDArray[np.uint8] = column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
    return found


def _numbers(numbers: npt.NDArray[np.int64]) -> Texts:
    return raw_texts(pa.array(numbers).cast(pa.utf8()))


def _stretches(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The events of each call, as [first, end)."""
    found, first, count = [], 0, len(offsets) - 1
    while first < count:
        within = int(np.searchsorted(offsets, offsets[first] + CALL_BYTES, side="right")) - 1
        end = min(max(within, first + 1), first + CALL_EVENTS, count)
        found.append((first, end))
        first = end
    return found


def traits(options: Options) -> Traits:  # noqa: ARG001
    return TRAITS


def make(name: str, options: Options) -> EventSink:
    return EventSink(name, options, StreamChannel(name, options))
