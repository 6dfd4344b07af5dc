"""Producers of the inbox: the product's own (``cdc.inbox.handover``), each of which brings a topic of its own, group by group.

They live on capture's machine, end at any moment, begin again from the log's mark, and are outdone by newer openings of themselves. Now and then
one hands over what the log has already, and now and then something else under its mark, which has to stop it, and nobody else.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa

from cdc.errors import HeadwaterError, Stopped, StopState
from cdc.inbox.folder import FOLDER
from cdc.inbox.groupfile import GroupHeader, GroupName, digest_of, encode
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.inbox.writerside import part_of
from cdc.model.batch import OP
from cdc.state import stops
from tests.sim.checker import Checker, Violation
from tests.sim.course import Course
from tests.sim.process import Process
from tests.sim.stores import Died

STEP_LIKELY: Final = 0.35
"""Between two steps of others, how likely a producer takes one."""
NEVER: Final = HandoverDeadline.within(10**6)
GIVES_UP: Final = 0.3
"""Of the conflicts, how many nobody ends."""


@dataclass(frozen=True, slots=True)
class Row:
    """``tag``: None where the row of this key is deleted."""

    key: str
    number: int
    tag: str | None


@dataclass(frozen=True, slots=True)
class Sent:
    """A group as it was handed over."""

    raw: bytes
    name: str
    """One that its file may have had."""


@dataclass
class Producer:
    name: str
    groups: int
    """How many it has to hand over."""
    lives: list[Iterator[None]] = field(default_factory=list)
    """The newest first, those that it has outdone behind."""
    sent: dict[int, Sent] = field(default_factory=dict)
    """By where each led: the one that the log acknowledged."""
    outdone: bool = False
    """It was opened while an earlier opening lived still: from then on each of them may have been fenced."""
    done: bool = False
    given_up: bool = False
    """It was stopped for good."""

    @property
    def topic(self) -> str:
        return f"inbox.{self.name}"


class Producers:
    """All of a run; their chance is their own, so that the other parts of a run without them are what they always were."""

    def __init__(self, course: Course, seed: int, folder: Path, run_dir: Path, process: Process, checker: Checker) -> None:
        self._course = course
        self._chance = chance = Random(f"{seed} producers")
        self._folder = folder
        self._run_dir = run_dir
        self._process = process
        self._check = checker.inbox
        self._producers = [Producer(f"p{number}", chance.randrange(2, 7)) for number in range(course.rare.producers)]
        self._tags = 0
        self._alters = chance.random() < 0.4

    def step(self) -> None:
        """One of theirs, or none."""
        chance, process = self._chance, self._process
        if not self._producers or chance.random() >= STEP_LIKELY:
            return
        producer = chance.choice(self._producers)
        head = process.head
        if process.unrecovered or producer.done or head is None or not head.commit_lsn:
            return
        number = 0
        if self._course.faulty and producer.lives and chance.random() < 0.02:
            self._course.fault("a producer sleeps, another opens it")
            producer.lives.insert(0, self._life(producer))
            producer.outdone = True
        elif len(producer.lives) > 1 and chance.random() < 0.3:
            number = chance.randrange(1, len(producer.lives))
        elif self._course.faulty and producer.lives and chance.random() < 0.01:
            self._course.fault("a producer dies")
            producer.lives.clear()
        if not producer.lives:
            producer.lives.append(self._life(producer))
        self._live(producer, producer.lives[number])

    def lose_power(self) -> None:
        """A file that was taken may be there again: that it went is not synced."""
        for producer in self._producers:
            producer.lives.clear()
            for sent in producer.sent.values():
                if self._chance.random() < 0.3:
                    (self._folder / FOLDER / sent.name).write_bytes(sent.raw)
                    self._course.met("groups that were there again after a power loss")

    def left(self) -> list[str]:
        """What is not done yet."""
        left = [f"producer {one.name} is not done" for one in self._producers if not one.done]
        return left or [f"producer {name} was stopped for nothing" for name in self._stopped_for_nothing()]

    def _stopped_for_nothing(self) -> Iterator[str]:
        for one in self._producers:
            if not self._check.contradicted(one.name) and stops.held_by(self._run_dir, part_of(one.name)) is not None:
                yield one.name

    def _live(self, producer: Producer, life: Iterator[None]) -> None:
        newest = life is producer.lives[0]
        try:
            next(life)
            return
        except StopIteration:
            producer.done = newest
        except Died:
            self._course.met("producers died where a crash matters")
        except OSError:
            self._course.met("what a producer handed over was refused by the disk")
        except Stopped:
            self._operate(producer)
        except HeadwaterError as error:
            if not producer.outdone:
                raise Violation("n", f"producer {producer.name} was refused: {error}") from None
            self._course.met("producers that were outdone")
        if life in producer.lives:  # the power may have been lost meanwhile, or an operator given up
            producer.lives.remove(life)

    def _operate(self, producer: Producer) -> None:
        """An operator ends the stop state, or nobody ever does."""
        if self._chance.random() < GIVES_UP:
            producer.done = producer.given_up = True
            producer.lives[1:] = []
            self._course.met("producers stopped for good")
            return
        for stop in stops.held(self._run_dir):
            if stop.part == part_of(producer.name):
                stops.clear(self._run_dir, stop.name)

    # --- one of them --------------------------------------------------------------------------------------------------------------

    def _life(self, producer: Producer) -> Iterator[None]:
        chance, check = self._chance, self._check
        if stops.held_by(self._run_dir, part_of(producer.name)) is not None:
            self._operate(producer)
            if producer.given_up:
                return
        handover = Handover(self._folder, self._run_dir, producer.name, token=lambda: f"{chance.getrandbits(128):032x}")
        mark = yield from handover.opening(NEVER)
        self._process.look()
        check.opened(producer.name, mark)
        at = int(mark.to or 0)
        while at < producer.groups:
            if at in producer.sent and chance.random() < 0.15:
                self._course.met("groups handed over again")
                yield from handover.giving(producer.sent[at].raw, str(at), NEVER)
            if at and self._course.faulty and chance.random() < 0.04:
                yield from self._contradict(producer, handover, at)
            at += 1
            yield from self._give(producer, handover, at)
            while chance.random() < 0.5:
                yield

    def _give(self, producer: Producer, handover: Handover, at: int) -> Generator[None, None, None]:
        rows = [] if self._chance.random() < 0.15 else self._rows(producer.name)
        raw = self._encoded(producer, at, rows)
        epoch = handover.mark.epoch
        self._check.offers(producer.name, at, rows, epoch)
        yield from handover.giving(raw, str(at), NEVER)
        self._process.look()
        self._check.acknowledged(producer.name, at, rows, handover.mark)
        producer.sent[at] = Sent(raw, GroupName(producer.name, epoch, at + 1, digest_of(raw)).file)
        self._course.counts["groups of producers"] += 1

    def _contradict(self, producer: Producer, handover: Handover, at: int) -> Generator[None, None, None]:
        """Has to stop the producer."""
        self._course.fault("a producer contradicts itself")
        self._check.contradicts(producer.name)
        try:
            yield from handover.giving(self._encoded(producer, at, self._rows(producer.name)), str(at), NEVER)
        except Stopped as stopped:
            if stopped.state is not StopState.INBOX_CONFLICT:
                raise Violation("n", f"producer {producer.name} is stopped as {stopped.state}") from None
            raise
        except HeadwaterError:
            if not producer.outdone:
                raise Violation("n", f"producer {producer.name} contradicted itself, and goes on") from None
            raise
        raise Violation("n", f"producer {producer.name} contradicted itself, and was acknowledged")

    def _rows(self, name: str) -> list[Row]:
        chance, rows = self._chance, dict[str, Row]()
        for _ in range(chance.randrange(1, 5)):
            self._tags += 1
            key = f"k{chance.randrange(6)}"
            rows[key] = Row(key, self._tags, None if chance.random() < 0.25 else f"{name} {self._tags}")
        return list(rows.values())

    def _encoded(self, producer: Producer, at: int, rows: list[Row]) -> bytes:
        begin = str(at - 1) if at > 1 else ""
        if not rows:
            return encode(GroupHeader(producer.name, begin, str(at)))
        columns = {
            OP: pa.array(["d" if row.tag is None else "u" for row in rows]),
            "k": pa.array([row.key for row in rows]),
            "n": pa.array([None if row.tag is None else row.number for row in rows], pa.int64()),
            "tag": pa.array([row.tag for row in rows], pa.utf8()),
        }
        if self._alters and at % 3 == 0:
            columns["more"] = pa.nulls(len(rows), pa.utf8())
        header = GroupHeader(producer.name, begin, str(at), producer.topic, ("k",), len(rows))
        return encode(header, [pa.RecordBatch.from_pydict(columns)])
