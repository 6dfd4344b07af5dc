"""The writer's side of the inbox: takes what was handed over into the log, one group as one cut, by
the thread that owns the writer.

A group's changes and its producer's mark become durable together, and only then does its file go.
So at whatever step a process ends, the next one finds the file and takes it, or finds its mark in
the log and only removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import structlog

from cdc.clock import MACHINE, Clock
from cdc.crashpoint import crashpoint
from cdc.diskspace import described
from cdc.errors import ConfigError, HeadwaterError, Stopped, StopState
from cdc.inbox.bell import InboxLooks
from cdc.inbox.changes import changes
from cdc.inbox.definition import numbered, refuses
from cdc.inbox.folder import InboxFolder
from cdc.inbox.groupfile import GroupName, GroupRefused, HandedOver, decode
from cdc.inbox.verdicts import InboxMark, InboxVerdict, after, judge
from cdc.log.contract import LogReader, LogWriter
from cdc.log.home import open_reader
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.state import stops

STRANGE_AT_ONCE: Final = 100
"""How many files that are not groups are put aside in one go."""
PASS_OVER_S: Final = 30.0
"""How long a file is left alone that can neither be removed nor put aside, as while the disk is full."""
RIDE_S: Final = 1.0
"""How long a mark without changes waits for a cut that somebody else makes."""

_log = structlog.get_logger("inbox")

_REASONS: Final = {
    InboxVerdict.FENCED: "its producer was opened again since",
    InboxVerdict.UNOPENED: "its producer was never opened with this epoch",
    InboxVerdict.GAP: "it does not begin where the log's mark of its producer stands",
}


def part_of(producer: str) -> str:
    """The name under which a producer stops."""
    return f"inbox-{producer}"


def check_names(log: LogReader, tables: Sequence[str]) -> None:
    """Raises ConfigError when ``source.tables`` selects a topic that another producer brings: a
    table of that name could not be captured.
    """
    for topic in log.topics():
        if topic.table.derived and matches(tables, topic.table):
            raise ConfigError(
                f"source.tables selects {topic.name}, which is a topic of producer {topic.producer}",
                hint=f'take it out: add "!{topic.name}" to source.tables',
            )


class Inbox:
    """One for the process that writes the log. ``log``: the log's folder. ``source``: the source's
    name as a producer. ``tables``: the patterns of the names that topics of capture's own have, or
    may get; no other producer's may have one.
    """

    def __init__(
        self, log: Path, writer: LogWriter, run_dir: Path, *, source: str, tables: Sequence[str], clock: Clock = MACHINE
    ) -> None:
        """Raises ConfigError when the inbox's folder is not ours, OSError."""
        self._log_folder = log
        self._writer = writer
        self._run_dir = run_dir
        self._source = source
        self._tables = tables
        self._clock = clock
        self._folder = InboxFolder(log)
        self._folder.left_over()
        self._known: dict[str, tuple[Table, str]] | None = None
        self._riding: dict[GroupName, tuple[InboxMark, float]] = {}
        self._last = ""
        self.looks = InboxLooks()
        self._blind = False

    def serve(self) -> bool:
        """Deals with at most one group, if nothing is staged in the writer; returns whether there
        may be more to do at once.

        Raises what the writer does for a disk that refuses, and then nothing is staged.
        """
        writer, now = self._writer, self._clock.monotonic()
        if writer.next_position != writer.head.position + 1 or not self.looks.due(now):
            return False
        self.looks.looking(now)
        names, strange = self._waiting(now)
        self._ride(now, self._folder.followed)
        for file in strange[:STRANGE_AT_ONCE]:
            self._put_aside(file, "its name is not that of a group")
        if any(self._deal_with(name, now) for name in self._in_turn(names)) or strange:
            self.looks.again()
            return True
        return False

    def _waiting(self, now: float) -> tuple[Sequence[GroupName], Sequence[str]]:
        """What the folder holds. One that cannot be read must not stop the source's changes."""
        try:
            return self._folder.waiting(now)
        except OSError as error:
            if not self._blind:
                _log.warning("the inbox cannot be read", problem=described(error))
            self._blind = True
            return (), ()

    def _in_turn(self, names: Sequence[GroupName]) -> Iterator[GroupName]:
        """Each producer's first group, beginning behind the producer whose turn was last."""
        first = {name.producer: name for name in names}
        riding = {name.producer for name in self._riding}
        for producer in sorted(first, key=lambda producer: (producer <= self._last, producer)):
            if producer not in riding:
                yield first[producer]

    def _deal_with(self, name: GroupName, now: float) -> bool:
        """False where it has to wait."""
        if stops.held_by(self._run_dir, part_of(name.producer)) is not None:
            return False
        self._last = name.producer
        try:
            group = decode(self._read(name), name)
            mark = InboxMark.decode(self._writer.marks().get(name.producer))
            self._decide(group, mark, now)
        except FileNotFoundError:
            return True
        except (GroupRefused, ValueError) as refused:
            # A ValueError is the writer's, and names what cannot be staged; or the mark's, which is not one of ours.
            self._put_aside(name.file, str(refused))
        return True

    def _read(self, name: GroupName) -> bytes:
        try:
            return self._folder.read(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise GroupRefused(f"it cannot be read: {described(error)}") from None

    def _decide(self, group: HandedOver, mark: InboxMark, now: float) -> None:
        name = group.name
        match verdict := judge(mark, group.step):
            case InboxVerdict.TAKE | InboxVerdict.OPEN:
                self._take(group, after(mark, group.step), now)
            case InboxVerdict.REPEAT:
                self._remove(name)
            case InboxVerdict.CONFLICT:
                self._stop(name)
            case _:
                raise GroupRefused(_REASONS[verdict])

    def _take(self, group: HandedOver, mark: InboxMark, now: float) -> None:
        producer = group.name.producer
        if producer == self._source:
            raise GroupRefused("the source's own name cannot be a producer's of the inbox")
        defines = group.header.redefines or self._defines(group.table)
        if not (group.header.token or group.batches or defines):
            self._riding[group.name] = (mark, now)
            self._ride(now)
            return
        try:
            table = self._stage(group, producer)
            crashpoint("inbox.take.appended")
            self._writer.mark(producer, mark.encode())
            crashpoint("inbox.take.marked")
            self._writer.commit()
        except Exception:
            self._take_back()
            raise
        if table is not None:
            self._topics()[table.qualified] = (table, producer)
        crashpoint("inbox.take.durable")
        self._remove(group.name)
        crashpoint("inbox.take.removed")

    def _defines(self, table: Table | None) -> bool:
        """Whether the group makes a topic known, or defines it otherwise, also without a row."""
        if table is None:
            return False
        known, _ = self._topics().get(table.qualified, (None, ""))
        return known is None or numbered(table, known, 0) != known

    def _take_back(self) -> None:
        """Drops what is staged, on the way out of an error: that one counts, also where the writer
        takes nothing more, not even this. What the log knows is asked again: an error may have come behind the commit.
        """
        self._known = None
        with suppress(HeadwaterError, OSError):
            self._writer.rollback()

    def _stage(self, group: HandedOver, producer: str) -> Table | None:
        """Returns the definition that the topic has with this group."""
        table = group.table
        if table is None:
            return None
        if matches(self._tables, table):
            raise GroupRefused(
                f"source.tables selects {table.qualified}, or outbox.topic makes that name; a topic of another producer has another"
            )
        known, owner = self._topics().get(table.qualified, (None, producer))
        if owner != producer:
            raise GroupRefused(f"topic {table.qualified} is brought by {owner}")
        if known is not None and not group.header.redefines and (why := refuses(known, table)) is not None:
            raise GroupRefused(f"topic {table.qualified} cannot go on so: {why}")
        head = self._writer.head
        table = numbered(table, known, head.position + 1)
        for batch in changes(table, group.batches, known, head):
            self._writer.append(batch, producer)
        return table

    def _ride(self, now: float, hurried: Collection[str] = ()) -> None:
        """Marks without changes go with the next cut, whoever makes it, or by themselves after a
        while; at once where their producer's next group waits (``hurried``).
        """
        if not self._riding:
            return
        durable = self._writer.marks()
        for name, (mark, since) in list(self._riding.items()):
            try:
                if durable.get(name.producer) != mark.encode():
                    self._writer.mark(name.producer, mark.encode())
                    if now - since < RIDE_S and name.producer not in hurried:
                        continue
                    self._writer.commit()
            except ValueError as refused:
                # Staged, it would come back in every commit, the source's too.
                self._take_back()
                del self._riding[name]
                self._put_aside(name.file, str(refused))
                continue
            except Exception:
                self._take_back()
                raise
            del self._riding[name]
            self._remove(name)

    def _topics(self) -> dict[str, tuple[Table, str]]:
        """Topics as the log knows them: definition and producer. Those of others that come later
        the writer itself refuses.
        """
        if self._known is None:
            with closing(open_reader(self._log_folder)) as reader:
                self._known = {topic.name: (topic.table, topic.producer) for topic in reader.topics()}
        return self._known

    def _stop(self, name: GroupName) -> None:
        """Stops the producer, and nobody else. First the stop: a process that ends here finds the
        file again, and stops again.
        """
        part = part_of(name.producer)
        stopped = Stopped(
            StopState.INBOX_CONFLICT,
            f"producer {name.producer} handed over another content for a step that is in the log already",
            hint=f"deploy/runbook.md, {StopState.INBOX_CONFLICT}; then cdc resume {StopState.INBOX_CONFLICT}:{part}",
        )
        stops.record(self._run_dir, part, stopped)
        self._put_aside(name.file, str(stopped))

    def _put_aside(self, file: str, reason: str) -> None:
        _log.warning("refused what was handed over", file=file, problem=reason)
        try:
            self._folder.put_aside(file, reason)
        except OSError as error:
            self._pass_over(file, error)

    def _remove(self, name: GroupName) -> None:
        try:
            self._folder.remove(name)
        except OSError as error:
            self._pass_over(name.file, error)

    def _pass_over(self, file: str, error: OSError) -> None:
        """What the inbox's files do must not stop the source's changes; the group itself is in the
        log, or it is not.
        """
        _log.warning("a file stays in the inbox for now", file=file, problem=described(error), again_in_s=PASS_OVER_S)
        self._folder.pass_over(file, self._clock.monotonic() + PASS_OVER_S)
