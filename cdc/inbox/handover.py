"""The producer's side of the inbox: opens a producer, hands its groups over one after the other,
and waits until each is in the log.

What waits is written as steps, each of them one look that found nothing yet. ``open`` and ``give``
take all of them in the caller's thread; what brings things forward between two is given as ``Pump``:
with a daemon, time; without one, the writer's side itself, in this process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.errors import HeadwaterError, WaitTimeout
from cdc.inbox.folder import InboxFolder
from cdc.inbox.groupfile import GroupHeader, GroupName, check_producer, encode
from cdc.inbox.verdicts import MAX_EPOCH, InboxMark
from cdc.inbox.writerside import part_of
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.state import stops

Pump = Callable[[], None]
Steps = Generator[None, None, "InboxMark"]
"""Each: the writer has not looked at it yet. Returns the producer's mark in the log."""
LOOK_S: Final = 0.02
ATTEMPTS: Final = 10


def draw_token() -> str:
    """A word that nobody else opens a producer with."""
    return secrets.token_hex(16)


def let_time_pass() -> None:
    """The pump where another process serves the inbox."""
    time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class HandoverDeadline:
    """``at``: by the machine's monotonic clock."""

    at: float
    seconds: float

    @classmethod
    def within(cls, seconds: float) -> HandoverDeadline:
        return cls(time.monotonic() + seconds, seconds)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.at


class Handover:
    """One opening of a producer. ``log``: the log's folder. ``reader``: of this log; left out, the log is opened for each question, which takes milliseconds."""

    def __init__(
        self,
        log: Path,
        run_dir: Path,
        producer: str,
        pump: Pump = let_time_pass,
        token: Callable[[], str] = draw_token,
        reader: LogReader | None = None,
    ) -> None:
        """Raises ConfigError when the inbox's folder is not ours, ValueError for a name that a
        producer cannot have.
        """
        self.producer = check_producer(producer)
        self._log = log
        self._run_dir = run_dir
        self._pump = pump
        self._token = token
        self._given = reader
        self._folder = InboxFolder(log)
        self._number = 0
        self.mark = InboxMark()
        """The producer's mark in the log, as of the last thing that was done here."""

    def open(self, deadline: HandoverDeadline) -> InboxMark:
        """Fences every earlier opening, and returns how far the log holds what the producer handed
        over.

        Raises WaitTimeout, Stopped when the producer is stopped, HeadwaterError when others open it
        again and again.
        """
        return self._drive(self.opening(deadline))

    def opening(self, deadline: HandoverDeadline) -> Steps:
        """``open`` as steps."""
        token = self._token()
        for _ in range(ATTEMPTS):
            found = self._read_mark()
            epoch = max(found.epoch, self._folder.newest_epoch(self.producer)) + 1
            if epoch > MAX_EPOCH:
                break
            name = self._folder.hand_over(self.producer, epoch, 0, encode(GroupHeader(self.producer, token=token)))
            yield from self._await(name, deadline)
            self.mark = self._read_mark()
            if (self.mark.epoch, self.mark.token) == (epoch, token):
                self._number = 0
                return self.mark
            if self.mark.epoch < epoch:
                raise self._refused(name)  # for another reason than somebody else's opening
        raise HeadwaterError(f"producer {self.producer} is opened elsewhere again and again", hint="one process at a time")

    def give(
        self, to: str, topic: str, key: Sequence[str], batches: Sequence[pa.RecordBatch], deadline: HandoverDeadline
    ) -> Position:
        """Hands one group over and returns once it is in the log: the position of the topic's last
        change (0: it has none).

        The group leads from ``self.mark.to`` to ``to``. Raises WaitTimeout while it still waits,
        HeadwaterError with the reason when it was refused, Stopped when the producer is stopped.
        """
        self.deliver(to, topic, key, batches, deadline)
        return self.position(topic)

    def deliver(
        self,
        to: str,
        topic: str,
        key: Sequence[str],
        batches: Sequence[pa.RecordBatch],
        deadline: HandoverDeadline,
        *,
        redefines: bool = False,
    ) -> None:
        """As ``give``, without asking the log for the topic's last change, which costs milliseconds."""
        header = replace(self.header(to, topic, key, batches), redefines=redefines)
        self._drive(self.giving(encode(header, batches), to, deadline))

    def leave(self, to: str) -> None:
        """Hands over a step without changes, and does not wait for it: the next group does. What becomes of it the next group's fate says."""
        raw = encode(self.header(to, "", (), []))
        self._number += 1
        name = self._folder.hand_over(self.producer, self.mark.epoch, self._number, raw)
        self.mark = replace(self.mark, to=to, digest=name.digest)

    def header(self, to: str, topic: str, key: Sequence[str], batches: Sequence[pa.RecordBatch]) -> GroupHeader:
        """The header of the next group."""
        return GroupHeader(self.producer, self.mark.to, to, topic, tuple(key), sum(len(batch) for batch in batches))

    def give_encoded(self, raw: bytes, to: str, topic: str, deadline: HandoverDeadline) -> Position:
        """As ``give``, for a group's bytes."""
        self._drive(self.giving(raw, to, deadline))
        return self.position(topic)

    def giving(self, raw: bytes, to: str, deadline: HandoverDeadline) -> Steps:
        """``give_encoded`` as steps."""
        self._number += 1
        name = self._folder.hand_over(self.producer, self.mark.epoch, self._number, raw)
        yield from self._await(name, deadline)
        found = self._read_mark()
        if (found.to, found.digest) != (to, name.digest):
            raise self._refused(name)
        # The opening stays ours: whoever opened the producer since has fenced us, and adopting its epoch would undo that.
        self.mark = replace(found, epoch=self.mark.epoch, token=self.mark.token)
        return self.mark

    def position(self, topic: str) -> Position:
        """The position of the topic's last change; 0 when it has none."""
        with self._reader() as reader:
            return next((one.last for one in reader.topics() if one.name == topic), Position(0))

    def _drive(self, steps: Steps) -> InboxMark:
        """Takes all of them in this thread."""
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                mark: InboxMark = ended.value
                return mark
            self._pump()

    def _await(self, name: GroupName, deadline: HandoverDeadline) -> Generator[None, None, None]:
        """Returns when the writer has dealt with it."""
        while self._folder.waits(name):
            stops.check(self._run_dir, part_of(self.producer))
            if deadline.over:
                raise WaitTimeout(
                    f"what producer {self.producer} handed over is not in the log after {deadline.seconds:g} s; it waits in the inbox",
                    hint="cdc status says whether capture runs; the same command again goes on where this one ended",
                )
            yield
        stops.check(self._run_dir, part_of(self.producer))

    def _refused(self, name: GroupName) -> HeadwaterError:
        reason = self._folder.reason(name) or "the reason is no longer kept"
        return HeadwaterError(f"the log refuses what producer {self.producer} handed over: {reason}", hint="docs/inbox.md")

    def _read_mark(self) -> InboxMark:
        with self._reader() as reader:
            raw = reader.marks().get(self.producer)
        try:
            return InboxMark.decode(raw)
        except ValueError:
            raise HeadwaterError(
                f"the log's mark of producer {self.producer} is not one of the inbox", hint="choose another --producer"
            ) from None

    @contextmanager
    def _reader(self) -> Iterator[LogReader]:
        if self._given is not None:
            yield self._given
            return
        with closing(open_reader(self._log)) as reader:
            yield reader
