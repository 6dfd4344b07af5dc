"""A table's rows on their way into its chain: what is sent next is made while the server works on what was sent before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.model.batch import OP, POSITION, Op, last_position, topic_schema
from cdc.model.position import Position
from sinks.cache.keytemplate import TableKeys
from sinks.cache.letters import CacheLetters, name_texts
from sinks.cache.resp import Frame, Limits, RequestPart, RowFrames, deletions, parts_of
from sinks.cache.transactions import Chain, RedisTransactions
from sinks.cache.values import Form, Written
from sinks.contract import DeadLetter, Outcome
from sinks.deadletters import Letter, TakenChanges, last_of_keys
from sinks.render.jsonrows import Texts

LIMITS: Final = Limits(rows=500, bytes=1 << 19)
"""Of one transaction. More at once are not written faster, and all other clients of the server wait meanwhile: for a millisecond, with hashes two.
With fewer the server waits for us: it has taken in a transaction's rows before its look at the ledger has been answered."""
SLICE_ROWS: Final = 8192
SLICE_BYTES: Final = 4 << 20
"""So much of a batch is made ready at once: what that costs beside the rows themselves is shared by many, and memory stays small."""
FIRST_ROWS: Final = 512
GROWTH: Final = 4
"""The server waits for the first slice, so that one is small; each of the next is so many times as large, and ready before the one before is written."""
VALUE_BYTES_MAX: Final = 512 << 20
"""The usual limit of a server for one value (proto-max-bulk-len); where it says a lower one, that counts."""

Found = tuple[Letter, ...]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Making:
    """How rows become parts. ``moves``: with the table's progress, which they otherwise leave as it is. ``lettered``: with what is said of dead
    letters."""

    keys: TableKeys
    form: Form
    moves: bool
    lettered: bool = True


class Rowwriter:
    """The writer of one sink's rows."""

    def __init__(self, letters: CacheLetters, transactions: RedisTransactions, channel_of: Callable[[str], bytes]) -> None:
        """``channel_of``: the channel where a table's keys are published; empty: nowhere."""
        self.letters = letters
        self._channel_of = channel_of
        self._transactions = transactions
        self._beside: ThreadPoolExecutor | None = None

    def write(self, chain: Chain, batch: pa.RecordBatch, keys: TableKeys, form: Form) -> Found:
        """Puts a batch of the table's changes there, and moves its progress along.

        ``keys``: those of the batch's definition. Returns what could not be held: there is nothing under its key then, and a letter.
        """
        return self._write(chain, [batch], _Making(keys, form, moves=True))

    def rewrite(
        self, chain: Chain, batches: Iterable[pa.RecordBatch], keys: TableKeys, form: Form, until: int | None = None
    ) -> Found:
        """Puts these rows there, and leaves the table's progress where it is. ``until``: see ``Transactions.stream``."""
        return self._write(chain, batches, _Making(keys, form, moves=False), until)

    def _write(self, chain: Chain, batches: Iterable[pa.RecordBatch], making: _Making, until: int | None = None) -> Found:
        frame = self._frame(chain, moves=making.moves)
        found: list[Letter] = []
        crashpoint("cache.write.begun")
        self._transactions.stream(chain, self._streamed(partial(self._parts, chain.topic, frame), batches, making, found), until)
        return tuple(found)

    def put(self, chain: Chain, row: pa.RecordBatch, keys: TableKeys, form: Form) -> str | None:
        """Puts one row there, or takes it away, and says nothing of dead letters. Returns why the server cannot hold it; None once it does."""
        refused = next(iter(self._reasons(form.write(row, topic_schema(row.schema)), row).values()), None)
        if refused is None:
            self._write(chain, [row], _Making(keys, form, moves=False, lettered=False))
        return refused

    def delete(self, chain: Chain, names: Iterable[Texts], until: int | None = None) -> None:
        """Takes these keys away, and leaves the table's progress where it is."""
        frame = self._frame(chain, moves=False)
        self._transactions.stream(chain, (part for texts in names for part in deletions(frame, texts, LIMITS)), until)

    def set_aside(self, chain: Chain, fresh: pa.RecordBatch, reason: str) -> Outcome:
        """Counts rows of a table that the store cannot hold, names the table once, and moves on. A delete of such a row is done."""
        deleted = fresh.column(OP).to_numpy() == int(Op.DELETE)
        lost = fresh.column(POSITION).to_numpy()[~deleted].tolist()
        commands = self.letters.of_table(chain.topic, reason, lost)
        part = self._transactions.part(chain.topic, commands, last_position(fresh))
        self._transactions.stream(chain, [part])
        return Outcome(len(fresh) - len(lost), 0, tuple(DeadLetter(chain.topic, Position(position), reason) for position in lost))

    def count_aside(self, chain: Chain, rows: pa.RecordBatch, reason: str) -> Outcome:
        """Counts rows of such a table as ``set_aside``, and leaves its progress where it is."""
        lost = rows.column(POSITION).to_pylist()
        self._transactions.stream(
            chain, [self._transactions.part(chain.topic, self.letters.of_table(chain.topic, reason, lost))] if lost else []
        )
        return Outcome(0, 0, tuple(DeadLetter(chain.topic, Position(position), reason) for position in lost))

    def close(self) -> None:
        if self._beside is not None:
            self._beside.shutdown()
            self._beside = None

    def _streamed(
        self,
        parts_of_slice: Callable[[_Making, pa.RecordBatch], tuple[list[RequestPart], Found]],
        batches: Iterable[pa.RecordBatch],
        making: _Making,
        found: list[Letter],
    ) -> Iterator[RequestPart]:
        """The parts of all slices; those of the next slice are made in a thread beside."""
        slices = _slices(batches)
        if (first := next(slices, None)) is None:
            return
        parts, letters = parts_of_slice(making, first)
        for following in slices:
            waiting = self._thread().submit(parts_of_slice, making, following)
            found += letters
            yield from parts
            parts, letters = waiting.result()
        found += letters
        yield from parts

    def _frame(self, chain: Chain, *, moves: bool) -> Frame:
        return self._transactions.frame(chain.topic, moves=moves, channel=self._channel_of(chain.topic))

    def _thread(self) -> ThreadPoolExecutor:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "cache-rows")
        return self._beside

    def _parts(self, topic: str, frame: Frame, making: _Making, batch: pa.RecordBatch) -> tuple[list[RequestPart], Found]:
        written = making.form.write(batch, topic_schema(batch.schema), packed=self._transactions.takes_packed)
        reasons, positions = self._reasons(written, batch), batch.column(POSITION).to_numpy()
        names = making.keys.texts(batch)
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        gone[list(reasons)] = True
        gone |= not making.form.keeps
        commands, letters = self._lettered(topic, positions, names, reasons) if making.lettered else ([], ())
        rows = RowFrames(names, written.texts, gone.astype(np.uint8), positions, written.items, written.expire_at, written.packed)
        first = [self._transactions.part(topic, commands)] if commands else []
        return [*first, *parts_of(frame, rows, LIMITS)], letters

    def _reasons(self, written: Written, batch: pa.RecordBatch) -> dict[int, str]:
        """Row → why the server cannot hold it."""
        most = min(VALUE_BYTES_MAX, self._transactions.value_bytes_max or VALUE_BYTES_MAX)
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        dead = (np.diff(written.texts.offsets) > most) & ~gone
        reasons = dict.fromkeys(np.flatnonzero(dead).tolist(), f"value over {most} bytes")
        if written.items is not None:
            empty = (written.items == 0) & ~gone
            reasons |= dict.fromkeys(np.flatnonzero(empty).tolist(), "a hash has no fields when every column is NULL")
        return reasons

    def _lettered(self, topic: str, positions: Positions, names: Texts, reasons: Mapping[int, str]) -> tuple[list[bytes], Found]:
        """What is said of dead letters before the rows are written: should they not be, all of it is done again."""
        known = self.letters.known
        if not reasons and not known.of(topic):
            return [], ()
        named = name_texts(names)
        dead, now = sorted(reasons), time.time()
        letters = tuple(
            Letter(topic, Position(int(positions[row])), reasons[row], named[row].as_py(), now) for row in last_of_keys(named, dead)
        )
        there = np.ones(len(positions), np.bool_)
        held = there.copy()
        held[dead] = False
        ended = known.ended(topic, lambda: named, positions, TakenChanges(there, held))
        return self.letters.settled(letters, ended), letters


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    wanted = FIRST_ROWS
    for batch in batches:
        most = max(1, min(SLICE_ROWS, SLICE_BYTES * len(batch) // max(batch.nbytes, 1)))
        start = 0
        while (left := len(batch) - start) > 0:
            piece = batch.slice(start, left if left <= min(most, 2 * wanted) else _whole_change(batch, start, min(most, wanted)))
            yield piece
            start += len(piece)
            wanted = min(SLICE_ROWS, wanted * GROWTH)


def _whole_change(batch: pa.RecordBatch, start: int, count: int) -> int:
    """So many rows, and the next where that is of the same change (``sinks.places``)."""
    positions = batch.column(POSITION)
    end = start + count
    return count + (end < len(batch) and positions[end].as_py() == positions[end - 1].as_py())
