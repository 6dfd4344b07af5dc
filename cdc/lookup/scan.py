"""A topic's changes, taken in order, as runs. Pure but for what a new key asks of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.lookup.entries import I64, U64, Entries, hashed, sorted_entries
from cdc.lookup.standing import RunStanding, Turn, TurnEffect, tells_rows_apart, turn_of
from cdc.model.batch import ALONE, LSN, OP, POSITION, last_position, topic_schema
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import keys

Living = Callable[[TopicSchema, int], Iterable[tuple[I64, pa.Array]]]
"""A definition with another key, and where it came into force → the rows that lived then: the position of each, rising, and its key since."""

APART_ROWS: Final = 900_000
"""With so many rows in memory they are put apart, where that is possible."""


@dataclass(frozen=True, slots=True)
class KeyRun:
    """The pairs of one range (low, high] of a topic's positions, all of one chapter, and the turns there. Where a chapter begins in it, its
    positions are also those of the rows that were there before. ``held``: the definition at its end. ``last``: position and LSN of the last change
    at or before its end, also where it lies before this range, by which the run is recognised as one of this log's; zeros: there is none."""

    low: int
    high: int
    chapter: int
    entries: Entries
    turns: tuple[Turn, ...]
    held: TopicSchema | None
    last: tuple[int, int] = (0, 0)
    apart: tuple[Entries, ...] = ()
    """Further pairs, which were put apart while the run was made: each one's positions are lower than those of what follows, and of ``entries``."""

    @property
    def standing(self) -> RunStanding:
        """How the topic stands at its end."""
        return RunStanding(self.high, self.chapter, self.held, self.last)


class RunScan:
    """Takes a topic's changes behind ``standing``, in order, and gives the runs of what it has taken. ``rows``: pairs that wait. ``put_apart``: of
    the rows that lived when another key came, takes sorted pairs from time to time, and returns them from where they take no memory."""

    def __init__(
        self, standing: RunStanding, seed: int, living: Living, put_apart: Callable[[Entries], Entries] | None = None
    ) -> None:
        self._standing = standing
        self._low = standing.at
        self._seed = seed
        self._living = living
        self._hashes: list[U64] = []
        self._positions: list[I64] = []
        self._turns: list[Turn] = []
        self._done: list[KeyRun] = []
        self._put_apart = put_apart
        self._apart: list[Entries] = []
        self.rows = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """A change of the table as a whole stands alone in its batch."""
        _, chapter, held, _ = self._standing
        turn = turn_of(batch, held)
        if turn is not None and turn.effect is TurnEffect.REKEYS:
            self._begin_chapter(turn, int(batch.column(LSN)[0].as_py()))
            return
        if turn is not None:
            self._turns.append(turn)
        schema = topic_schema(batch.schema)
        if tells_rows_apart(schema) and batch.column(OP)[0].as_py() not in ALONE:
            self._add(keys(batch, schema), batch.column(POSITION).to_numpy())
        last = last_position(batch), int(batch.column(LSN)[-1].as_py())
        self._standing = RunStanding(last_position(batch), chapter, schema, last)

    def runs(self, high: int) -> list[KeyRun]:
        """The changes taken since the last time, as runs that end at ``high``, up to which everything has been taken."""
        self._end(high)
        done, self._done = self._done, []
        return done

    def _add(self, texts: pa.Array, positions: I64) -> None:
        self._hashes.append(hashed(texts, self._seed))
        self._positions.append(positions)
        self.rows += len(positions)

    def _begin_chapter(self, turn: Turn, lsn: int) -> None:
        self._end(turn.at - 1)
        if tells_rows_apart(turn.schema):
            for positions, texts in self._living(turn.schema, turn.at):
                self._add(texts, positions)
                if self._put_apart is not None and self.rows >= APART_ROWS:
                    self._apart.append(self._put_apart(self._sorted()))
        self._turns.append(turn)
        self._standing = RunStanding(turn.at - 1, turn.at, turn.schema, (turn.at, lsn))
        self._end(turn.at)

    def _end(self, high: int) -> None:
        """The run that ends here, unless nothing lies between it and the one before."""
        low = self._low
        if high <= low:
            return
        _, chapter, held, last = self._standing
        self._done.append(KeyRun(low, high, chapter, self._sorted(), tuple(self._turns), held, last, tuple(self._apart)))
        self._turns, self._apart = [], []
        self._standing = RunStanding(high, chapter, held, last)
        self._low = high

    def _sorted(self) -> Entries:
        """The pairs that wait, which they do no longer."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        positions = np.concatenate([np.empty(0, np.int64), *self._positions])
        self._hashes, self._positions, self.rows = [], [], 0
        return sorted_entries(hashes, positions)
