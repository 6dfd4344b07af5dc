"""The contract of a log, whichever home it has. tests/contract/test_log.py holds the embedded log and the in-memory twin to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import PositionGone, StopState
from cdc.model.lineage import Lineage
from cdc.model.position import START, Cut, Lsn, Position
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.model.topic import TopicSchema

SOURCE_NAME: Final = "postgres"
"""The source's name as a producer, where nobody gives it another."""
COMES_WITH_CAPTURE: Final = "capture makes it when it begins; cdc status says whether it runs"
"""What helps whoever finds no log yet."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One table's changes in the log, as far as they are durable. ``table`` is its newest definition.

    ``rows`` and ``bytes`` are what the log still keeps, which may be less than was ever appended; no change is before ``first``.
    """

    name: str
    table: Table
    rows: int
    bytes: int
    first: Position
    last: Position
    producer: str
    """Who brings its changes: the source, or another of the log's producers."""
    clean_from: Position = START
    """At cuts from here on the topic shows what it showed when they were made. Below, changes that were superseded since may be missing."""
    floor: Position = START
    """DELETEs below this may be missing: whoever has read up to a position below it, but not 0, cannot go on, unless he began after they went."""
    raised: int = 0
    """The raising that made the floor what it is (``cdc.model.lineage.Lineage.raised``); 0 where it is 0."""
    kept_from: Position = START
    """Changes below this are gone, whatever they were: nobody can begin before it …"""
    whole: bool = False
    """… but at 0, where the topic was emptied since, and ``read`` is given the present history; he has all of it from ``clean_from`` on."""
    held: TopicSchema | None = None
    """What one store holds of it (``sinks.heldlog``); None: whoever asks is not one that holds less than all."""

    @property
    def schema(self) -> TopicSchema:
        """Its newest definition, as stores know it."""
        return TopicSchema.of(self.table) if self.held is None else self.held


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of one topic that one task reads: positions in (after, upto]. ``rows`` is an upper bound."""

    topic: str
    after: Position
    upto: Position
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A file of one topic's changes, all under one definition, with positions in [first, last]. It never changes, and may be removed once the
    log no longer needs it. ``schema`` is that of its batches (``cdc.model.batch``)."""

    path: Path
    first: Position
    last: Position
    rows: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ClosedRange:
    """A stretch of one topic that is written no more, and can be replaced as a whole: its changes with positions in [first, last]. ``bytes``: as
    appended or, once ``rewritten``, as they lie on the disk."""

    topic: str
    first: int
    last: int
    rows: int
    bytes: int
    rewritten: bool


class LogUpkeep(Protocol):
    """How compaction reaches a log. May be used by any one thread beside the writer's; what it hands over is recorded by the writer's next commit."""

    def waiting(self) -> bool:
        """Whether the next commit has something to record, so that one has to be made also when there are no changes."""
        ...

    def ranges(self, topic: str) -> list[ClosedRange]:
        """The topic's, in order, from its beginning to the first that cannot be replaced yet. Raises ValueError for a topic that the log
        does not have."""
        ...

    def batches(self, closed: ClosedRange, only: Callable[[pa.Schema], pa.Schema] | None = None) -> Iterator[pa.RecordBatch]:
        """The changes of one of ``ranges``, checked. ``only``: these columns of them. Raises LogCorrupt."""
        ...

    def retire(self, topic: str, *, floor: int, clean_from: int, kept_from: int | None = None, whole: bool | None = None) -> None:
        """Changes below ``kept_from`` (None: as before) will be gone, DELETEs below ``floor`` may be, and below ``clean_from`` others may be that later ones below
        it have superseded. ``whole``: the topic was emptied between the first of these and the last (None: as before, where nothing more is gone). None of the three ever falls, and each is at least the one before. Raises ValueError when that contradicts
        the log, or something of this topic still waits."""
        ...

    def rewrite(self, topic: str, first: int, last: int, batches: Iterable[pa.RecordBatch]) -> int:
        """These changes stand in the place of the ranges from ``first`` to ``last``. Returns the bytes that were written. Raises ValueError
        as ``retire``, OSError when the disk refuses: then nothing is replaced."""
        ...

    def close_newest(self, topic: str, begun: int) -> None:
        """The segment that is being written gets no more changes if it was begun at or before this position, once the writer commits; so that it
        can be sealed, and retired when the topic goes on. Nothing happens where it is closed already, or something is just being added to it: it can be asked
        again."""
        ...

    def remove_replaced(self, grace_s: float = 0.0) -> None:
        """Frees the space of what was replaced or retired so long ago. Until then whoever was reading it reads on undisturbed; after a restart of the
        writer it is gone. Raises OSError when the disk refuses some of it, having freed the rest; it can be asked again."""
        ...


@dataclass(frozen=True, slots=True)
class SealedPlace:
    """One of a topic's sealed files; ``away``: it is in the tier."""

    topic: str
    file: str
    away: bool


class TopicState(Protocol):
    """A topic's changes up to ``cut`` without those that make no difference any longer: whoever takes these, and then the log's behind the cut, comes to
    the same rows, under the same definitions, as one who has taken all."""

    @property
    def cut(self) -> Position: ...

    def batches(self, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        """Those in (after, upto], in position order, as ``LogReader.read`` gives them: the last change of each row that there is at the cut, and the SCHEMA
        records since the topic was last emptied."""
        ...


@dataclass(frozen=True, slots=True)
class StateFacts:
    """One state: its cut, its changes, the bytes of its files. ``kept``: it is there; else it would have had so many changes and was not worth it."""

    cut: Position
    rows: int
    bytes: int
    kept: bool = True


class LogStates(Protocol):
    """Where states are kept (``LogReader.state``). For one thread, of the process that writes the log."""

    def standing(self, topic: str) -> Iterator[StateFacts]:
        """The topic's, the newest first. Their records are looked at, not their files; each when it is asked for."""
        ...

    def keep(
        self, topic: str, cut: Position, rows: int, batches: Iterable[pa.RecordBatch] | None, most_bytes: int = 1 << 62
    ) -> StateFacts:
        """Keeps the topic's state as of a durable cut, durable on return; ``rows``: how many changes it has. Without batches only notes that it would have had so
        many. Raises StateTooLarge when its files come to more than ``most_bytes``, and OSError when the disk refuses: then there is nothing of it."""
        ...

    def tidy(self, topic: str, beyond: Position | None = None) -> None:
        """Removes what is left over of the topic's, what is not of this log as it is, and with ``beyond`` all that have a later cut. Raises OSError."""
        ...

    def remove_others(self, topics: Iterable[str]) -> None:
        """Removes every state of every topic but these. Raises OSError."""
        ...


class StateTooLarge(Exception):
    """A state's files come to more bytes than they may."""


class LogTiering(Protocol):
    """How sealed files leave the log's disk for a tier, and come back. May be used by any one thread beside the writer's and upkeep's.

    Every method may raise LogAway when the tier does not do what it is asked, LogCorrupt for damage, OSError when the disk refuses: then
    nothing is lost, and it can be asked again.
    """

    def begin(self) -> None:
        """Tells readers where the tier is, durably."""
        ...

    def closed(self, upto: int) -> Iterator[SealedPlace]:
        """The sealed files that end at or below this position and can be away."""
        ...

    def put_away(self, place: SealedPlace, go_on: Callable[[], None] = lambda: None) -> int:
        """Moves one to the tier; returns its bytes, 0 when it is no longer there. ``go_on`` may raise whatever is to end this."""
        ...

    def bring_back(self, place: SealedPlace) -> int:
        """Moves one back; returns its bytes, 0 when it is no longer there, or has to be tried again."""
        ...

    def sweep(self) -> int:
        """Removes from the tier what the log no longer names; returns how many files that were."""
        ...

    def close(self) -> None: ...


class LogWriter(Protocol):
    """The only writer. Appends are staged and invisible until ``commit`` has made them durable.

    Changes come from *producers*: the source, and others that hand over what they have made. Each cut carries a *mark* of every producer, which
    says how far the log holds what it brought. The source's mark is its commit LSN; what the others' mean is theirs to know. A cut repeats
    the marks of those who brought nothing: so the commit LSN never falls because of another producer.
    """

    @property
    def head(self) -> Cut:
        """The last durable cut."""
        ...

    @property
    def next_position(self) -> Position:
        """The position that the next appended change must carry."""
        ...

    def append(self, batch: pa.RecordBatch, producer: str | None = None) -> None:
        """Stages one batch of a producer's (None: the source's) changes. Its positions rise strictly, within the batch and within its topic; batches of different tables may
        interleave. Between two commits the appended positions together are dense from ``head.position + 1``.

        Raises ValueError for a batch that can never fit, or whose topic another producer brings (what was staged before stays), OSError when
        the disk refuses (everything staged is then dropped). An empty batch is ignored.
        """
        ...

    def mark(self, producer: str, value: bytes) -> None:
        """Stages the mark of a producer other than the source: the next commit carries it, and those after it repeat it. A mark that
        has not changed costs nothing. Raises ValueError for one of more than 4096 bytes."""
        ...

    def marks(self) -> Mapping[str, bytes]:
        """The durable mark of each producer other than the source that has one."""
        ...

    def commit(self, commit_lsn: Lsn | None = None, commit_ts_us: int = 0) -> Cut:
        """Makes everything staged durable and visible as one cut (group commit), and returns that cut.

        ``commit_lsn``, ``commit_ts_us``: the source's. Without an LSN the cut is another producer's, and repeats the head's.
        With nothing staged it records the LSN alone, as a cut at the same position, unless the head already has that LSN.
        Raises ValueError when the staged positions are not dense, OSError when the disk refuses: nothing is then visible.
        """
        ...

    def begin_history(self) -> None:
        """A new history (``cdc.model.lineage``) begins behind the head, durably: what stores hold of the former one beyond it is not this
        log's. To be called with nothing staged. Raises OSError when the disk refuses."""
        ...

    def rollback(self) -> None:
        """Drops everything staged; the next position is again ``head.position + 1``."""
        ...

    def alarm(self) -> str | None:
        """Says what the disk refuses, and what helps, while the log goes on without it; else None."""
        ...

    def close(self) -> None: ...


class LogReader(Protocol):
    """Any number of readers, in any process. Sees durable cuts only."""

    def head(self) -> Cut:
        """The last durable cut (``ZERO_CUT`` when the log is empty or does not exist yet)."""
        ...

    def written(self) -> Cut:
        """The last whole cut that stands in the log, whether or not a reader may see it yet. Beyond the head while a group is being written,
        and after a power loss until a writer has opened the log: then the head may be older than what was durable."""
        ...

    def wait(self, after: Position, timeout_s: float) -> Cut:
        """Returns the head as soon as its position is > ``after``, or after the timeout (long poll)."""
        ...

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:
        """The furthest cut such that (after, cut] holds at most so many rows and bytes, but at least the next cut.

        Rows are counted as positions, so that where changes were dropped there are fewer. The head when ``after`` is at or beyond it.
        """
        ...

    def cut_at_lsn(self, lsn: Lsn) -> Cut | None:
        """The first cut whose commit LSN is >= ``lsn``; None when the log has not come that far. Where LSNs have fallen (the source was
        restored, or is another cluster), only the cuts since then count."""
        ...

    def marks(self, upto: Position | None = None) -> Mapping[str, bytes]:
        """The mark of each producer that has one, by its name, as of the head, or as of the last cut at or below a position. The source's is
        its commit LSN as Postgres writes it."""
        ...

    def last_commit(self) -> Cut:
        """The last cut that brought changes together with a new LSN (``ZERO_CUT``: none has), so that it is one of the source's commits."""
        ...

    def lineage(self) -> Lineage | None:
        """The log's id and its histories; None when there is no log yet. Asked again, it knows of histories begun meanwhile."""
        ...

    def topics(self) -> Sequence[Topic]: ...

    def last_change(self, topic: str, upto: Position) -> Position:
        """The position of the last change of the topic at or below ``upto``, which is a cut, that the log still has, or where a DELETE may have
        stood that it has no longer: whoever holds an earlier place lacks something. 0 when there is none. As changes are dropped the answer for the
        same place may fall; it never rises. Reads no rows, at most positions where changes were dropped."""
        ...

    def read(
        self,
        topic: str,
        after: Position,
        upto: Position,
        history: str | None = None,
        *,
        old_rows: bool = False,
        keys_only: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The topic's changes in (after, upto], in position order; each batch stands under one definition and holds either rows or
        exactly one TRUNCATE. Nothing for a topic that the log does not have (yet), nor beyond the head. Positions rise and may have gaps,
        also beyond those that other topics fill. Raises PositionGone when changes behind ``after`` are gone that a reader there needs.

        ``history``: the one of this log (``Lineage.history``) in which whoever asks came to ``after``, having begun at 0. Of DELETEs that were gone by then
        he has never had the rows, so he may go on; without it nobody may who is before the topic's floor.
        ``old_rows``: with the column of the rows that changes replaced, where the log has it (``cdc.model.oldrows``).
        ``keys_only``: with our own columns and the key's, and no others. The schema's metadata says all of the definition none the less."""
        ...

    def changes_at(self, topic: str, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """The topic's changes at these positions (rising), as far as the log has them (still), in position order; each batch stands under one
        definition. For whoever knows where the changes stand that he needs: it says nothing of those between, and so nothing is refused."""
        ...

    def slices(
        self, topics: Sequence[str], after: Position, upto: Position, target_bytes: int, history: str | None = None
    ) -> Sequence[Slice]:
        """Covers (after, upto] of these topics with slices of about ``target_bytes`` each; empty pieces are left out. Whoever begins at 0 names the present
        history when he reads them. Raises PositionGone exactly when ``read`` of one of these topics over all of (after, upto] would."""
        ...

    def state(self, topic: str, upto: Position) -> TopicState | None:
        """The topic's newest state as of a cut at or below ``upto`` that is whole; None where there is none, or the log no longer has all of the topic's
        changes. It has been read and checked once on return."""
        ...

    def close(self) -> None: ...


def selected(log: LogReader, patterns: Sequence[str]) -> list[Topic]:
    """The topics whose tables the patterns select. Asked of the tables, not of the topics' names: one name may read as several tables'."""
    return [topic for topic in log.topics() if matches(patterns, topic.table)]


def captured(log: LogReader) -> list[Topic]:
    """The topics of the source's tables, without those that another producer brings."""
    return [topic for topic in log.topics() if not topic.table.derived]


def retired_before(topic: str, after: int, kept_from: int) -> PositionGone:
    """Says that nobody can read the topic from ``after`` on, because its changes before ``kept_from`` are gone."""
    return PositionGone(
        f"the log no longer keeps {topic} from position {after} on: its changes before position {kept_from} are gone",
        hint=f"leave the table out of the store's tables, then cdc resume {StopState.POSITION_GONE} --rebuild; what is left of it is read "
        f"with --from {kept_from} (Spark: startPosition {kept_from - 1})",
    )


def left_between(log: LogReader, patterns: Sequence[str], after: Position, upto: Position) -> list[Slice]:
    """Slices of all that the log still has in (after, upto] of the tables that the patterns select, whether or not whoever stands there could go on."""
    found: list[Slice] = []
    for topic in selected(log, patterns):
        start = after
        while topic.last > start:
            try:
                found += log.slices([topic.name], start, upto, 1 << 62, present_history(log))
                break
            except PositionGone:
                # Retired, perhaps since the topics were asked for.
                kept_from = next(one.kept_from for one in log.topics() if one.name == topic.name)
                start = max(Position(kept_from - 1), Position(start + 1))
    return found


def present_history(log: LogReader) -> str | None:
    """For whoever only looks at what the log still has, and holds nothing that a DELETE could be missing for."""
    lineage = log.lineage()
    return None if lineage is None else lineage.history
