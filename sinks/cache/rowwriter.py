"""A table's rows on their way into its chain: what is sent next is made while the server works on what was sent before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.model.batch import OP, POSITION, Op, last_position, topic_schema
from cdc.model.position import Position
from sinks.cache import ledger
from sinks.cache.keytemplate import TableKeys
from sinks.cache.resp import Frame, Limits, RequestPart, RowFrames, deletions, parts_of
from sinks.cache.transactions import Chain, RedisTransactions
from sinks.cache.values import Form
from sinks.cache.wire import command
from sinks.contract import DeadLetter, Outcome
from sinks.deadletters import letter_id, letter_json
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
"""The server's own limit of one value (proto-max-bulk-len)."""

Letters = tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class _Making:
    """How rows become parts. ``moves``: with the table's progress, which they otherwise leave as it is."""

    keys: TableKeys
    form: Form
    moves: bool


class Rowwriter:
    """The writer of one sink's rows."""

    def __init__(self, store: str, transactions: RedisTransactions) -> None:
        self._letters = ledger.letters_of(store)
        self._transactions = transactions
        self._beside: ThreadPoolExecutor | None = None

    def write(self, chain: Chain, batch: pa.RecordBatch, keys: TableKeys, form: Form) -> Letters:
        """Puts a batch of the table's changes there, and moves its progress along.

        ``keys``: those of the batch's definition. Returns what could not be held: there is nothing under its key then, and a letter.
        """
        return self._write(chain, [batch], _Making(keys, form, moves=True))

    def rewrite(
        self, chain: Chain, batches: Iterable[pa.RecordBatch], keys: TableKeys, form: Form, until: int | None = None
    ) -> Letters:
        """Puts these rows there, and leaves the table's progress where it is. ``until``: see ``Transactions.stream``."""
        return self._write(chain, batches, _Making(keys, form, moves=False), until)

    def _write(self, chain: Chain, batches: Iterable[pa.RecordBatch], making: _Making, until: int | None = None) -> Letters:
        frame = self._transactions.frame(chain.topic, moves=making.moves)
        found: list[DeadLetter] = []
        crashpoint("cache.write.begun")
        self._transactions.stream(chain, self._streamed(partial(self._parts, chain.topic, frame), batches, making, found), until)
        return tuple(found)

    def delete(self, chain: Chain, names: Iterable[Texts], until: int | None = None) -> None:
        """Takes these keys away, and leaves the table's progress where it is."""
        frame = self._transactions.frame(chain.topic, moves=False)
        self._transactions.stream(chain, (part for texts in names for part in deletions(frame, texts, LIMITS)), until)

    def set_aside(self, chain: Chain, fresh: pa.RecordBatch, reason: str) -> Outcome:
        """Counts rows of a table that the store cannot hold, names the table once, and moves on. A delete of such a row is done."""
        deleted = fresh.column(OP).to_numpy() == int(Op.DELETE)
        lost = fresh.column(POSITION).to_numpy()[~deleted].tolist()
        letters = tuple(DeadLetter(chain.topic, Position(position), reason) for position in lost)
        commands = []
        if letters:
            commands.append(command("HSETNX", self._letters, chain.topic, letter_json(letters[0])))
            commands.append(command("HINCRBY", self._letters, f"{chain.topic}#rows", len(letters)))
        part = self._transactions.part(chain.topic, commands, last_position(fresh))
        self._transactions.stream(chain, [part])
        return Outcome(len(fresh) - len(letters), 0, letters)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.shutdown()
            self._beside = None

    def _streamed(
        self,
        parts_of_slice: Callable[[_Making, pa.RecordBatch], tuple[list[RequestPart], Letters]],
        batches: Iterable[pa.RecordBatch],
        making: _Making,
        found: list[DeadLetter],
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

    def _thread(self) -> ThreadPoolExecutor:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "cache-rows")
        return self._beside

    def _parts(self, topic: str, frame: Frame, making: _Making, batch: pa.RecordBatch) -> tuple[list[RequestPart], Letters]:
        written = making.form.write(batch, topic_schema(batch.schema))
        positions = batch.column(POSITION).to_numpy()
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        dead = (np.diff(written.texts.offsets) > VALUE_BYTES_MAX) & ~gone
        reasons = dict.fromkeys(np.flatnonzero(dead).tolist(), f"value over {VALUE_BYTES_MAX} bytes")
        if written.items is not None:
            empty = (written.items == 0) & ~gone
            reasons |= dict.fromkeys(np.flatnonzero(empty).tolist(), "a hash has no fields when every column is NULL")
            dead |= empty
        letters = tuple(DeadLetter(topic, Position(int(positions[row])), reason) for row, reason in sorted(reasons.items()))
        rows = RowFrames(making.keys.texts(batch), written.texts, (gone | dead).astype(np.uint8), positions, written.items)
        return [*self._lettered(topic, letters), *parts_of(frame, rows, LIMITS)], letters

    def _lettered(self, topic: str, letters: Letters) -> list[RequestPart]:
        if not letters:
            return []
        items = [item for letter in letters for item in (letter_id(letter), letter_json(letter))]
        return [self._transactions.part(topic, [command("HSET", self._letters, *items)])]


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    wanted = FIRST_ROWS
    for batch in batches:
        most = max(1, min(SLICE_ROWS, SLICE_BYTES * len(batch) // max(batch.nbytes, 1)))
        start = 0
        while (left := len(batch) - start) > 0:
            piece = batch.slice(start, left if left <= min(most, 2 * wanted) else min(most, wanted))
            yield piece
            start += len(piece)
            wanted = min(SLICE_ROWS, wanted * GROWTH)
