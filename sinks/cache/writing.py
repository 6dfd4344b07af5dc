"""A table's rows on their way into its chain: what is sent next is made while the server works on what was sent before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.model.batch import OP, POSITION, Op, last_position, table_of
from cdc.model.position import Position
from sinks.cache import ledger
from sinks.cache.keytemplate import TableKeys
from sinks.cache.resp import Frame, Limits, Part, Rows, deletions, parts_of
from sinks.cache.transactions import Chain, Transactions
from sinks.cache.values import Form
from sinks.cache.wire import command
from sinks.contract import DeadLetter, Outcome
from sinks.deadletters import letter_id, letter_json
from sinks.jsonrows import Texts

LIMITS: Final = Limits(rows=250, bytes=1 << 19)
"""Of one transaction. More at once are not written faster, and all other clients of the server wait meanwhile: here for half a millisecond."""
SLICE_ROWS: Final = 2048
VALUE_BYTES_MAX: Final = 512 << 20
"""The server's own limit of one value (proto-max-bulk-len)."""

Letters = tuple[DeadLetter, ...]


class Rowwriter:
    def __init__(self, store: str, transactions: Transactions) -> None:
        self._letters = ledger.letters_of(store)
        self._transactions = transactions
        self._beside: ThreadPoolExecutor | None = None

    def write(self, chain: Chain, batches: Iterable[pa.RecordBatch], keys: TableKeys, form: Form, *, moves: bool) -> Letters:
        """Puts the rows there (and takes deleted ones away) and moves the table's progress along, or leaves it where it is.

        ``keys``: those of the batches' definition. Returns what could not be held: there is nothing under its key then, and a letter.
        """
        frame = self._transactions.frame(chain.topic, moves=moves)
        made = partial(self._parts, chain.topic, frame, keys, form)
        found: list[DeadLetter] = []
        crashpoint("cache.write.begun")
        self._transactions.stream(chain, self._streamed(made, batches, found))
        return tuple(found)

    def delete(self, chain: Chain, names: Iterable[Texts]) -> None:
        """Takes these keys away, and leaves the table's progress where it is."""
        frame = self._transactions.frame(chain.topic, moves=False)
        self._transactions.stream(chain, (part for texts in names for part in deletions(frame, texts, LIMITS)))

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
        self, made: partial[tuple[list[Part], Letters]], batches: Iterable[pa.RecordBatch], found: list[DeadLetter]
    ) -> Iterator[Part]:
        """The parts of all slices; those of the next slice are made in a thread beside."""
        slices = _slices(batches)
        here = next(slices, None)
        if here is None:
            return
        waiting = None
        while here is not None or waiting is not None:
            parts, letters = made(here) if waiting is None else waiting.result()
            here = next(slices, None)
            waiting = None if here is None else self._thread().submit(made, here)
            found += letters
            yield from parts
            if waiting is None:
                return

    def _thread(self) -> ThreadPoolExecutor:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "cache-rows")
        return self._beside

    def _parts(self, topic: str, frame: Frame, keys: TableKeys, form: Form, batch: pa.RecordBatch) -> tuple[list[Part], Letters]:
        table = table_of(batch.schema)
        written = form.write(batch, table)
        positions = batch.column(POSITION).to_numpy()
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        dead = (np.diff(written.texts.offsets) > VALUE_BYTES_MAX) & ~gone
        reasons = dict.fromkeys(np.flatnonzero(dead).tolist(), f"value over {VALUE_BYTES_MAX} bytes")
        if written.items is not None:
            empty = (written.items == 0) & ~gone
            reasons |= dict.fromkeys(np.flatnonzero(empty).tolist(), "a hash has no fields when every column is NULL")
            dead |= empty
        letters = tuple(DeadLetter(topic, Position(int(positions[row])), reason) for row, reason in sorted(reasons.items()))
        rows = Rows(keys.texts(batch), written.texts, (gone | dead).astype(np.uint8), positions, written.items)
        return [*self._lettered(topic, letters), *parts_of(frame, rows, LIMITS)], letters

    def _lettered(self, topic: str, letters: Letters) -> list[Part]:
        if not letters:
            return []
        items = [item for letter in letters for item in (letter_id(letter), letter_json(letter))]
        return [self._transactions.part(topic, [command("HSET", self._letters, *items)])]


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, len(batch), SLICE_ROWS):
            yield batch.slice(start, SLICE_ROWS)
