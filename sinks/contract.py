"""The contract of every store's sink. The suite in tests/contract/test_sinks.py holds each sink and its in-memory twin to it.

A follower drives a sink like this, again and again::

    applied = sink.open(log, epoch)
    sink.finish()
    for each range of the log (applied, cut]:
        sink.prepare(schema)           # once per topic and definition, before its first batch
        sink.apply(batch) …            # a topic's batches in position order; a TRUNCATE or SCHEMA in its turn
        sink.commit(cut)               # now, and only now, the store says "I hold everything up to cut"

**The guard.** Whatever is written again, late, or by somebody who was replaced meanwhile changes nothing. Stores do it in two ways:

- *versioned* (``Traits.sequenced`` is False): each row carries its position as a version, so a row written at position p loses against the same
  key's row at p' > p, and against a commit that already covers p. Rows may come in any order and any number of times.
- *sequenced*: one chain of calls per topic, in order. Each call names the stretch (from, to] of the topic that it brings and the writer's
  epoch, and the store takes it, atomically, only when the topic's progress there is exactly ``from`` and no higher epoch has been seen.
  A call that was taken already changes nothing; a gap, a higher epoch or a missing ledger refuses it.

**The marks.** Every unit of a store that can be lost or restored by itself (an index, a Redis server, an Iceberg table) carries a mark
(``cdc.model.lineage.Mark``), written with or after its rows and never onto a unit that is not the one the rows went to. On ``open``, after
any error and before each commit a unit counts as whole if and only if its mark is believed and reaches the log's last change of its
topics at or below what is applied (``LogReader.last_change``); otherwise ``open`` goes back to the least mark. So a store that was
flushed, restored, replaced or partly lost at any moment is noticed and filled again from the log, and never reported whole meanwhile.

**Schemas.** A sink knows what it holds as topics with a schema (``cdc.model.topic``): fields with an Arrow type and a structure. The source's tables,
Postgres's type numbers and modifiers end before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema


@dataclass(frozen=True, slots=True)
class Traits:
    """All that the product has to know of a store before it is opened. Nothing outside a store's folder asks for its kind instead."""

    sequenced: bool = False
    """How the guard works: see above."""
    parallel: bool = False
    """``apply`` may run in several processes at once (each with its own opened sink). Only versioned stores may say so."""
    staged: bool = False
    """Rows show only after ``commit``."""
    refreshes: bool = False
    """What is applied becomes visible to every way of reading only by ``make_visible``, for which whoever waits has to ask."""
    gathers: bool = False
    """Each ``apply`` costs it a pause, whatever the number of rows: it is given as many as there are at once."""
    needs_spark: bool = False
    """Opening it takes a Spark session (``sinks.sparksession``)."""
    exclusive: bool = False
    """Only its follower and an audit open it: `cdc doctor` and `cdc plan` leave it alone."""
    evolves: bool = False
    """A column takes another name or type in place; rows that are there are not written again for it."""
    passing: bool = False
    """It keeps neither rows nor a mark: what it was given has gone on. So it may begin anywhere: a cut that is committed before it is opened is the
    place (`cdc follow NAME --from`). A store that keeps rows begins where its own marks say, and nowhere else."""
    events: bool = False
    """It keeps a mark, but no rows: each change goes on to others as an event. So it is given every change, also of rows that a later one takes away. A cut that
    is committed before it is opened is where it was last seen: there it goes on if its place knows nothing of it any more."""

    @property
    def keeps_rows(self) -> bool:
        """There are rows that can be compared with the database, or built again."""
        return not self.passing and not self.events


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A change that the store cannot hold: named and counted, never silently dropped. Carries no row values."""

    table: str
    position: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one batch: every row is in exactly one of the three."""

    written: int
    stale: int = 0
    dead: tuple[DeadLetter, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.written + other.written, self.stale + other.stale, self.dead + other.dead)


NOTHING = Outcome(0)


class EpochPassed(StoreError):
    """The store has seen a writer with the same or a higher epoch. ``seen``: that epoch. The lease goes above it, and the sink is opened again."""

    def __init__(self, store: str, seen: int) -> None:
        super().__init__(f"store {store} was opened by a later writer (epoch {seen})", retryable=True)
        self.seen = seen


@dataclass(frozen=True, slots=True)
class Shape:
    """The definition that a store's rows of one topic stand under, and the change (0: none yet) that made it so."""

    schema: TopicSchema
    position: Position


@dataclass(frozen=True, slots=True)
class CameRows:
    """Rows as a store holds them. ``rows``: reads under one definition, each at the position by which the store knows it: of the change that brought
    it, or of a later one after which it was written again. ``came``: int64, the positions of the changes that brought them."""

    rows: pa.RecordBatch
    came: pa.Array


@dataclass(frozen=True, slots=True)
class TopicAsOf:
    """One topic as a store holds it that has followed the log up to a cut. ``rows``: gives them from the beginning, each time that it is called."""

    shape: Shape
    rows: Callable[[], Iterator[CameRows]]
    dropped: bool = False
    """The table is gone, or has another name: there are no rows, and no more come."""
    earlier: tuple[TopicSchema, ...] = ()
    """The definitions that its rows have stood under before."""


class Sink(Protocol):
    """One derived store. Not thread-safe; each task opens its own."""

    name: str
    """The store's name in the configuration."""

    @property
    def traits(self) -> Traits:
        """As its module's ``traits`` gives them for its options."""
        ...

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises ConfigError where the store's options do not fit these topics, which are all that it is to hold. An unopened sink may be
        asked, too (`cdc doctor`, `cdc plan`)."""
        ...

    def projected(self) -> str | None:
        """The change, in words, that the next writer makes to every row because the options are different now; None: none. Raises ConfigError
        where it cannot. For a sink that was opened to read (`cdc plan`)."""
        ...

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        """Shows what the store would be given for each of these rows: the name of each part (such as ``index``, ``id``, ``document``) → its text. A batch
        as ``apply`` takes it, without deletes. An unopened sink is asked, and touches no store. Raises ConfigError as ``prepare`` does."""
        ...

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        """Connects, checks that the store is usable, compares its marks with the log, returns what is applied: the highest cut that every
        unit holds.

        ``epoch``: the writer's, from its lease (``cdc.state.lease``); a sink opened without one only reads, and creates nothing. With one the
        ledger is created when there is none. Raises StoreError (``retryable`` when the store is merely down), EpochPassed when the store has
        seen a higher epoch, Stopped when a mark belongs to another log, to a history that this one never had, or to a place from before a
        DELETE that is gone from the log (``sinks.followedlog``). What is written afterwards is marked with the history that the marks were
        compared with; once the log is in another, everything that writes raises StoreError (retryable), and the store is opened again.
        """
        ...

    def finish(self) -> None:
        """Finishes what an earlier writer began, and what is done to every row because the options are different now. Called once after ``open``
        with an epoch, when it is known which columns the store holds (``sinks.heldlog``): the log is read for it, and gave something else before.
        Raises as ``apply`` does."""
        ...

    def held(self, topic: str) -> Position:
        """Rows of this topic at or below are in the store already: at least ``applied``, more where other topics rewound the store."""
        ...

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        """Replaces everything that this store name ever put there, whatever that is, by these topics as of the cut. An unopened sink is asked;
        afterwards it has to be opened, and holds the cut.

        A row that was there before and is among ``topics`` is there at every moment: rows go over rows, and what is left over goes at the end; or all
        of a unit is replaced at once. Meanwhile the store says of itself that it holds nothing, and whoever wrote to it before writes nothing more.
        Interrupted, it is asked again, and begins again from what is there. Returns what was written, and what cannot be held. Raises StoreError,
        EpochPassed; ConfigError before it has changed anything.
        """
        ...

    def erase(self) -> None:
        """Removes everything that this store name ever put there, ledger included, by any process; nothing else. An opened or unopened sink
        may be asked; afterwards it has to be opened again. Done twice, or interrupted and done again, it comes to the same."""
        ...

    def prepare(self, schema: TopicSchema) -> None:
        """Makes or evolves the place for this topic's rows so that ``apply`` of its batches can succeed. Idempotent.

        The first definition of a topic becomes its ``shape``; any other leaves it as it is.
        """
        ...

    def shape(self, topic: str) -> Shape | None:
        """The definition that the rows of this topic (``schema.table``) stand under, read from the store; None before the first."""
        ...

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        """Writes one batch (see ``cdc.model.batch``) and returns when the store has taken it.

        A batch holds either rows or exactly one TRUNCATE or SCHEMA record; these come after everything before them was applied and
        before anything after them is. A SCHEMA record makes its schema the topic's ``shape``: afterwards every row that is there is what
        it would be had it been written under that definition (a dropped column's value is gone from documents and values, a renamed
        one has its new name), or no row at all when the record empties the topic. Within a batch the last change of a key wins. A store that commits as a whole may stage the rows
        until ``commit``. Raises StoreError when the batch as a whole was not taken; calling again is then safe.
        """
        ...

    def commit(self, cut: Cut) -> None:
        """Records durably, inside the store, that everything up to ``cut`` is applied. A lower cut than recorded is ignored.

        Raises StoreError (retryable) when a unit is not the one, or not at the mark, that this sink wrote last: nothing is then recorded.
        """
        ...

    def applied(self) -> Cut:
        """The highest cut that every unit holds, read from the store itself now. Lower than what was committed last when something was lost:
        the caller has to close the sink and open it again. Raises as ``open`` does."""
        ...

    def make_visible(self) -> None:
        """Returns once everything committed is visible to every way of reading (OpenSearch: refresh)."""
        ...

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """The source's rows as ``scan`` and ``fetch`` give them: each value as what it means in this store.

        rows: canonical text, ``audit_schema(schema)``; further columns stay as they are. A store that holds the text itself gives it back.
        """
        ...

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        """Every live row of the topic, in any order, for the audit. Schema: ``audit_schema(schema)``, values as ``as_held`` has them."""
        ...

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The live rows with these keys (absent ones left out), in any order. ``keys``: the key's columns as ``as_held`` has them."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Returning(Protocol):
    """A sink that comes back to changes at or below what is applied, such as events that were not taken yet."""

    def returns_to(self) -> Position | None:
        """The first change that it may have to read again; None: none. Of an opened sink."""
        ...


@runtime_checkable
class Deferring(Protocol):
    """A sink that learns only by its commit which of the rows it was given its store cannot hold (``Traits.staged``)."""

    def refused(self) -> tuple[DeadLetter, ...]:
        """Those of the last commit; ``apply`` has counted them as written."""
        ...


@runtime_checkable
class Expiring(Protocol):
    """A sink of whose rows some go by themselves."""

    def expired(self, keys: pa.RecordBatch, schema: TopicSchema) -> npt.NDArray[np.bool_]:
        """Which of these keys, that are not there, are not there because their time has passed. ``keys``: as ``fetch`` takes them."""
        ...


@runtime_checkable
class Helped(Protocol):
    """A sink that asks another process of ours for what it reads."""

    def helped_s(self) -> float:
        """CPU time that the process has used so far for the thread that asks, in seconds. Raises nothing: 0 where that process is not there (any more)."""
        ...


@runtime_checkable
class Entitled(Protocol):
    """A sink whose store gives accounts rights one by one."""

    def missing_rights(self, schemas: Sequence[TopicSchema]) -> Iterator[StoreError]:
        """Everything that the store's account may not do and has to, to hold these topics; each with the statement that allows it. Changes nothing. An unopened sink may
        be asked, too. Raises StoreError where the store does not answer."""
        ...


def audit_schema(schema: TopicSchema) -> pa.Schema:
    """All of the topic's fields as the text that Postgres gives under the pinned settings; NULL is SQL NULL."""
    return pa.schema([pa.field(name, pa.utf8()) for name in schema.names])
