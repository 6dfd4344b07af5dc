"""Keeps one topic's runs: writes new ones from the log, merges them, and takes out of them what compaction has taken out of the log."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.log.contract import LogReader, Topic, present_history
from cdc.lookup.entries import I64, Entries, merged
from cdc.lookup.runfile import ASIDE, Origin, mapped, put_apart, sync_folder, write
from cdc.lookup.scan import KeyRun, RunScan
from cdc.lookup.shelf import RunName, Shelf, folder_of, opened, remove
from cdc.lookup.tail import living
from cdc.model.batch import POSITION, last_position
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.newest import PositionSet

RUN_ROWS: Final = 900_000
"""Of so many changes a run is made at once: while a topic is read from its beginning, this bounds what is in memory."""
PIECE_PAIRS: Final = 1_000_000
"""So many pairs are in memory while runs are merged."""
PAIR_BYTES: Final = 16
MEMORY_BYTES: Final = 64 << 20
THIN_PAIRS: Final = 100_000
"""With so many pairs more than twice its changes a topic's runs are thinned."""


class RunUpkeep:
    """One topic's runs. For one thread, of one process. ``go_on``: asked for every batch and every piece with 0, and before a file is written with
    about its bytes; it may raise whatever is to end this."""

    def __init__(
        self, log: LogReader, folder: Path, topic: str, go_on: Callable[[int], None] = lambda _: None, *, run_rows: int = RUN_ROWS
    ) -> None:
        """``folder``: the log's."""
        self._log = log
        self._folder = folder_of(folder, topic)
        self._topic = topic
        self._go_on = go_on
        self._run_rows = run_rows
        self._shelf: Shelf | None = None
        self._thinned_from = 0
        self.reached = 0
        """The position up to which runs hold the topic."""

    def look(self) -> Shelf:
        """The runs that are there; what is left over or cannot be believed is removed. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = opened(self._log, self._folder, self._topic, self._shelf)
        remove(found.damaged | found.foreign)
        counted = {RunName.of(run) for run in found.runs}
        for path in self._folder.iterdir():
            # What is behind a gap would follow nothing: what is written next ends elsewhere.
            if path.name.startswith(ASIDE) or path.name in {name.file for name in found.names - counted}:
                path.unlink(missing_ok=True)
        self._shelf, self.reached = found, found.standing.at
        return found

    def advance(self) -> bool:
        """Writes what the log has behind the runs, about ``RUN_ROWS`` changes of it. Returns whether there is more. Raises OSError, PositionGone,
        LogCorrupt."""
        shelf, head = self.look(), self._log.head().position
        origin = shelf.origin or Origin("", "", self._topic, secrets.randbits(63))
        lineage = self._log.lineage()
        assert lineage is not None
        origin = Origin(lineage.log, lineage.history, self._topic, origin.seed)
        scan = RunScan(shelf.standing, origin.seed, self._living, self._put_apart)
        high, more = int(head), False
        for batch in self._log.read(self._topic, Position(self.reached), head, present_history(self._log), keys_only=True):
            self._go_on(0)
            scan.take(batch)
            if scan.rows >= self._run_rows:
                high, more = last_position(batch), True
                break
        for run in scan.runs(high):
            parts = [*run.apart, run.entries]
            self._put(run, origin, self._pieces(parts) if run.apart else parts, sum(part.pairs for part in parts))
            self._merge()
        return more

    def _living(self, schema: TopicSchema, at: int) -> Iterator[tuple[I64, pa.Array]]:
        for found in living(self._log, schema, at):
            self._go_on(0)
            yield found

    def _put_apart(self, entries: Entries) -> Entries:
        self._go_on(PAIR_BYTES * entries.pairs)
        return put_apart(self._folder, entries)

    def thin(self, topic: Topic) -> bool:
        """Takes the pairs out of the runs that compaction has made to point to nothing, where these are many. ``topic``: as the log has it. Returns
        whether it has read the topic."""
        shelf = self._shelf
        if shelf is None or shelf.origin is None or topic.clean_from <= self._thinned_from:
            return False
        if sum(run.entries.pairs for run in shelf.runs) <= 2 * topic.rows + THIN_PAIRS:
            return False
        self._thinned_from = topic.clean_from
        with_rows = PositionSet(START, shelf.standing.at, MEMORY_BYTES)
        for batch in self._log.read(self._topic, START, Position(shelf.standing.at), keys_only=True):
            self._go_on(0)
            with_rows.add(batch.column(POSITION).to_numpy())
        for run in list(shelf.runs):
            stay = sum(int(with_rows.holds(piece.positions).sum()) for piece in merged([run.entries], PIECE_PAIRS))
            if 2 * stay < run.entries.pairs:
                left = (_filtered(piece, with_rows) for piece in merged([run.entries], PIECE_PAIRS))
                self._put(run, shelf.origin, left, stay)
        self._shelf = None  # the files have the same names
        return True

    def _put(self, run: KeyRun, origin: Origin, pieces: Iterator[Entries] | list[Entries], count: int | None = None) -> None:
        """``count``: of pairs, where they are not the run's own."""
        count = run.entries.pairs if count is None else count
        self._go_on(PAIR_BYTES * count)
        name = RunName.of(run)
        write(self._folder / name.file, run, origin, count, pieces)
        assert self._shelf is not None
        kept, _ = mapped(self._folder / name.file)
        before = [one for one in self._shelf.runs if not (run.low <= one.low and one.high <= run.high)]
        self._shelf.runs = sorted([*before, kept], key=lambda one: one.low)
        self._shelf.origin = origin
        self.reached = self._shelf.standing.at

    def _merge(self) -> None:
        """Merges the newest runs while they are of like size, so that there are about as many as the pairs' number has bits."""
        shelf = self._shelf
        assert shelf is not None
        assert shelf.origin is not None
        begin = first_to_merge(shelf.runs)
        together = shelf.runs[begin:]
        if len(together) < 2:
            return
        turns = tuple(turn for run in together for turn in run.turns)
        count = sum(run.entries.pairs for run in together)
        end = together[-1]
        whole = KeyRun(together[0].low, end.high, end.chapter, together[0].entries, turns, end.held, end.last)
        self._put(whole, shelf.origin, self._pieces([run.entries for run in together]), count)
        crashpoint("lookup.merged")
        for run in together:
            with suppress(FileNotFoundError):
                (self._folder / RunName.of(run).file).unlink()
            crashpoint("lookup.removed")
        sync_folder(self._folder)

    def _pieces(self, runs: Sequence[Entries]) -> Iterator[Entries]:
        for piece in merged(runs, PIECE_PAIRS):
            self._go_on(0)
            yield piece


def _filtered(piece: Entries, positions: PositionSet) -> Entries:
    stay = positions.holds(piece.positions)
    return Entries(piece.hashes[stay], piece.positions[stay])


def first_to_merge(runs: Sequence[KeyRun]) -> int:
    """The number of the first of the runs at the end that are to become one: of one chapter, and none larger than all behind it. Pure."""
    begin, behind = len(runs) - 1, runs[-1].entries.pairs
    while begin > 0 and runs[begin - 1].chapter == runs[-1].chapter and runs[begin - 1].entries.pairs <= behind:
        begin -= 1
        behind += runs[begin].entries.pairs
    return begin
