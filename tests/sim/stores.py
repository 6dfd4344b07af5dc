"""Followers of model stores: the real ``apply_range`` over the real log's reader, into stores whose answers get lost.

A store is ``sinks.memory``'s twin. What can go wrong: a request is refused, taken in part, or taken while its answer is lost; the
follower dies between any two requests and begins again from what the store says; one that was thought dead (a zombie) wakes up later
and goes on with its older view; a request that was under way arrives long after everybody has forgotten it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from cdc.errors import StoreError
from cdc.log.reader import EmbeddedLogReader
from cdc.model.position import Cut
from cdc.spark.apply import Prepared, apply_range
from cdc.spark.rules import Rules
from cdc.spark.survey import survey
from sinks.contract import EpochPassed, Outcome
from sinks.memory import STORES, Answer, Call, MemorySink, Options, Store

Meet = Callable[[str], None]
"""Called with the name of what has gone wrong."""


@dataclass(slots=True)
class Moods:
    """How often each accident happens; all 0 once the faults have stopped."""

    refused: float = 0.0
    partly: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    dies: float = 0.0
    sleeps: float = 0.0


class Died(BaseException):
    """The process is gone, wherever it was."""


class _Sink(MemorySink):
    """Its requests may stay under way for long."""

    def __init__(self, site: Site, options: Options) -> None:
        super().__init__(site.name, options)
        self._site = site

    def send(self, call: Call) -> tuple[Answer, Outcome]:
        if self._site.chance.random() < self._site.moods.late:
            self._site.late.append(call)
        return super().send(call)


class FlakySink:
    """A memory sink behind a bad network. What is not named here goes through."""

    def __init__(self, sink: _Sink, site: Site) -> None:
        self._sink = sink
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        site, chance, moods = self._site, self._site.chance, self._site.moods
        site.accident("refused", "apply")
        if len(changes) > 1 and chance.random() < moods.partly:
            site.met("store took half")
            half = sorted(chance.sample(range(len(changes)), len(changes) // 2))
            self._sink.apply(changes.take(pa.array(half)))
            raise StoreError("took half of it", retryable=True)
        outcome = self._sink.apply(changes)
        site.written()
        site.accident("answer_lost", "apply")
        return outcome

    def commit(self, cut: Cut) -> None:
        self._site.accident("refused", "commit")
        self._sink.commit(cut)
        self._site.written(cut)
        self._site.accident("answer_lost", "commit")


class Site:
    """One store and whoever writes to it."""

    def __init__(self, name: str, *, staged: bool, moods: Moods, chance: Random, met: Meet, batch_rows: int) -> None:
        self.name = name
        self.staged = staged
        self.moods = moods
        self.chance = chance
        self.met = met
        self.late: list[Call] = []
        """Requests that are still under way somewhere, though their sender has long had its answer."""
        self.written: Callable[..., None] = lambda *_: None
        """Told after each write (with the cut after each commit)."""
        self._batch_rows = batch_rows
        self.epoch = 0
        self._options = Options(kind="memory", staged=staged)
        STORES[name] = Store()

    @property
    def store(self) -> Store:
        return STORES[self.name]

    def accident(self, kind: str, what: str) -> None:
        if self.chance.random() < getattr(self.moods, kind):
            self.met(f"store {kind.replace('_', ' ')}")
            raise StoreError(f"{what}: {kind}", retryable=True)

    def deliver_late(self) -> None:
        self.met("late request")
        number = self.chance.randrange(len(self.late))
        self.store.take(self.late[number] if self.chance.random() < 0.5 else self.late.pop(number))
        self.written()

    def close(self) -> None:
        del STORES[self.name]

    def follow(self, reader: EmbeddedLogReader) -> Iterator[str]:
        """One follower's life, as steps; says what it has just done. Ends by dying (Died) only."""
        self.epoch += 1
        epoch = self.epoch
        while True:
            if reader.lineage() is None:
                yield "waits"
                continue
            sink = FlakySink(_Sink(self, self._options), self)
            prepared = Prepared()
            try:
                applied = sink.open(reader, epoch)
            except EpochPassed:
                self.met("follower was replaced")
                raise Died from None
            if applied.position > reader.head().position:
                if applied.position > reader.written().position:
                    raise AssertionError(f"{self.name} holds {applied}, the log ends at {reader.written()}")
                yield "waits"
                continue
            yield "opened"
            try:
                while True:
                    head = reader.head()
                    if head.position == applied.position:
                        if head.commit_lsn > applied.commit_lsn:
                            sink.commit(head)
                            applied = head
                        yield "idle"
                        continue
                    cut = reader.cut_within(applied.position, self._batch_rows, 2**20)
                    timeline = reader.timeline
                    topics = sorted(timeline.numbers) if timeline is not None else []
                    starts = {topic: max(applied.position, sink.held(topic)) for topic in topics}
                    seen = survey(reader, starts, cut.position)
                    apply_range(sink, reader, seen, prepared, Rules(self.name, self._options))
                    yield "applied"
                    if self.chance.random() < self.moods.dies:
                        self.met("follower died before its commit")
                        raise Died
                    sink.commit(cut)
                    applied = cut
                    yield "committed"
            except StoreError:
                yield "refused"
