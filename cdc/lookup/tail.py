"""The part of the log behind the last run, as a look-up needs it: read once, kept in memory, and given up as runs come that hold it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.errors import LookupBehind
from cdc.log.contract import LogReader, present_history
from cdc.lookup.entries import I64, Entries, sorted_entries
from cdc.lookup.scan import KeyRun, RunScan
from cdc.lookup.shelf import Shelf
from cdc.lookup.standing import Turn
from cdc.model.batch import POSITION
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.past import rows_and_under
from sinks.render.rowtext import keys

TAIL_ROWS: Final = 4_000_000
"""The most changes that are kept in memory, at 16 bytes each."""


def living(log: LogReader, schema: TopicSchema, at: int) -> Iterator[tuple[I64, pa.Array]]:
    """See ``cdc.lookup.scan.Living``: the position of each row that lived when ``schema`` came into force, and its key under it."""
    position = Position(at)
    for batch, moved in rows_and_under(log, schema, position, position):
        yield batch.column(POSITION).to_numpy(), keys(moved, schema)


class Tail:
    """One topic's runs in memory, behind those of a shelf."""

    def __init__(self, log: LogReader, topic: str, shelf: Shelf, most_rows: int = TAIL_ROWS) -> None:
        self._log = log
        self._topic = topic
        self._most_rows = most_rows
        self.seed = shelf.origin.seed if shelf.origin else secrets.randbits(63)
        self.runs: list[KeyRun] = []
        self._standing = shelf.standing

    @property
    def high(self) -> int:
        return self._standing.at

    @property
    def turns(self) -> list[Turn]:
        return [turn for run in self.runs for turn in run.turns]

    def goes_on(self, shelf: Shelf) -> bool:
        """Whether what is here can stand behind these runs: if so, what they hold by now is given up."""
        begins = self.runs[0].low if self.runs else self.high
        if shelf.origin is None or shelf.origin.seed != self.seed or not begins <= shelf.standing.at <= self.high:
            return False
        self.runs = [run for run in self.runs if run.high > shelf.standing.at]
        return True

    def reach(self, cut: int) -> None:
        """Reads up to the cut. Raises LookupBehind when that is too much, PositionGone when the log no longer has the topic's beginning."""
        if cut <= self.high:
            return
        scan = RunScan(self._standing, self.seed, self._living)
        held = sum(run.entries.pairs for run in self.runs)
        for batch in self._log.read(self._topic, Position(self.high), Position(cut), present_history(self._log), keys_only=True):
            scan.take(batch)
            self._limit(held + scan.rows)
        self._add(scan.runs(cut))

    def _living(self, schema: TopicSchema, at: int) -> Iterator[tuple[I64, pa.Array]]:
        rows = 0
        for positions, texts in living(self._log, schema, at):
            rows += len(positions)
            self._limit(rows)
            yield positions, texts

    def _limit(self, rows: int) -> None:
        if rows > self._most_rows:
            raise LookupBehind(
                f"the look-up of {self._topic} is being made: it has come to position {self.high}",
                hint=f'let cdc run go on; [log.tables."{self._topic}"] has to say lookup = true',
            )

    def _add(self, runs: list[KeyRun]) -> None:
        """Joins neighbours of like size, so that there are few however small the steps."""
        for run in runs:
            self.runs.append(run)
            while len(self.runs) > 1 and _joinable(self.runs[-2], self.runs[-1]):
                self.runs[-2:] = [_joined(*self.runs[-2:])]
        if runs:
            self._standing = runs[-1].standing


def _joinable(before: KeyRun, after: KeyRun) -> bool:
    return before.chapter == after.chapter and before.entries.pairs <= 2 * after.entries.pairs


def _joined(before: KeyRun, after: KeyRun) -> KeyRun:
    hashes, positions = (np.concatenate(both) for both in zip(before.entries, after.entries, strict=True))
    entries: Entries = sorted_entries(hashes, positions)
    return KeyRun(before.low, after.high, after.chapter, entries, before.turns + after.turns, after.held, after.last)
