"""The thread that makes states of topics that are kept for ever (``LogReader.state``), so that how a table was can be asked without reading it from its beginning.

A state takes room, so each has to be worth it: it has at most ``SHARE`` as many changes, and bytes, as the topic has got since the state before. So all of a topic's states
together are never more than that share of the topic, and nobody reads much more than a state and ``1 / SHARE`` times as many changes behind it. A table to which rows are only ever added gets none: they would be the table again. To find that out takes a look at the whole of it, so
what was found is noted beside the states, and the next look waits until the topic has grown accordingly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import structlog

from cdc.background import BackgroundPart, Interrupted, Notes
from cdc.compaction.space import Space
from cdc.compaction.worker import LONGEST_PAUSE_S, NONE, Postponed
from cdc.diskspace import free_bytes
from cdc.log.contract import LogReader, LogStates, StateFacts, StateTooLarge, Topic
from cdc.log.home import open_reader, states_of
from cdc.model.position import START
from cdc.settings.models import Log, Settings
from sinks.past import condensed

SHARE: Final = 0.1
LOOK_S: Final = 60.0
BEGIN_ROWS: Final = 500_000
"""Fewer changes than this are read in a second or two."""

_log = structlog.get_logger("states")


def due(since: int, newest: StateFacts | None, share: float, begin_rows: int) -> bool:
    """Whether a state may be worth it: the topic has got ``since`` changes after its newest state. ``newest``: the newest note, be it of a state or of one that
    was not made. Pure."""
    return since >= max(begin_rows, (0 if newest is None else newest.rows) / share)


class StateKeeping(BackgroundPart):
    """``start`` and ``join`` from one thread. ``in_force``: says the configuration as it is now."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        *,
        in_force: Callable[[], Settings] | None = None,
        free: Callable[[Path], int] = free_bytes,
        begin_rows: int = BEGIN_ROWS,
        share: float = SHARE,
    ) -> None:
        """``free``: the bytes that are free on the disk of a folder."""
        super().__init__("states")
        self._settings = settings
        self._stop = stop
        self._in_force = in_force or (lambda: settings)
        self._space = Space(settings.log, free)
        self._begin_rows = begin_rows
        self._share = share
        self._tidied: set[str] = set()
        """Topics in whose folders nothing is left over."""
        self._failed: dict[str, Postponed] = {}
        self._notes = Notes("states of tables are not being made", "making a state failed", _log)

    def _run(self) -> None:
        with closing(open_reader(self._settings.log.dir)) as reader:
            while not self._stop.wait(LOOK_S):
                problems: list[str] = []
                self.look(reader, problems)
                self._problem = next(iter(problems), None)

    def look(self, reader: LogReader, problems: list[str]) -> None:
        """Makes every state that is worth it, and removes those of topics that have none any longer. Notes in ``problems`` what went wrong, with which
        capture goes on. Raises Interrupted."""
        with self._notes.noting(problems):
            log, states = self._in_force().log, states_of(self._settings.log.dir, reader)
            topics = [topic for topic in reader.topics() if has_states(log, topic)]
            self._tidied &= {topic.name for topic in topics}
            states.remove_others(topic.name for topic in topics)
            for topic in topics:
                self._try(reader, states, topic, problems)

    def _try(self, reader: LogReader, states: LogStates, topic: Topic, problems: list[str]) -> None:
        """Where something goes wrong, the topic is left alone for a while: each attempt reads much of the log."""
        before = self._failed.get(topic.name, NONE)
        if before.until > time.monotonic():
            problems.append(before.problem)
            return
        said: list[str] = []
        with self._notes.noting(said):
            self._keep(reader, states, topic)
        self._failed.pop(topic.name, None)
        if said:
            pause_s = min(max(2 * before.pause_s, LOOK_S), LONGEST_PAUSE_S)
            self._failed[topic.name] = Postponed(pause_s, time.monotonic() + pause_s, said[0])
            problems += said

    def _keep(self, reader: LogReader, states: LogStates, topic: Topic) -> None:
        if topic.name not in self._tidied:
            states.tidy(topic.name)
            self._tidied.add(topic.name)
        newest, rows, _ = _since(reader, states, topic.name)
        if not due(rows, newest, self._share, self._begin_rows):
            return
        self._space.check(replaces=False)  # before the topic is read for it
        # What is damaged is found when it is read, and then it is not there for what follows.
        found = reader.state(topic.name, reader.head().position)
        states.tidy(topic.name, START if found is None else found.cut)
        self._tidied.discard(topic.name)  # unless it gets to the end
        self._make(reader, states, topic.name)
        states.tidy(topic.name)
        self._tidied.add(topic.name)

    def _make(self, reader: LogReader, states: LogStates, topic: str) -> None:
        """A state as of the head; or a note of how large it would be."""
        cut = reader.head().position
        _, rows, size = _since(reader, states, topic)
        with condensed(reader, topic, cut, go_on=self._go_on) as found:
            if found.rows > self._share * rows:
                states.keep(topic, cut, found.rows, None)
                return
            most_bytes = int(self._share * size)
            self._space.check(min(most_bytes, size * found.rows // max(1, rows)), replaces=False)
            try:
                made = states.keep(topic, cut, found.rows, found.batches, most_bytes)
            except StateTooLarge:
                states.keep(topic, cut, max(found.rows, int(2 * self._share * rows)), None)
                return
        _log.info(
            f"made a state of {topic} at position {cut}: {made.rows} changes",
            facts={"topic": topic, "position": int(cut), "rows": made.rows, "bytes": made.bytes},
        )

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Interrupted


def has_states(log: Log, topic: Topic) -> bool:
    """Whether states are made of the topic: it is kept for ever, and nothing of it is gone."""
    untouched = not (topic.kept_from or topic.floor or topic.clean_from)
    return untouched and log.keeps_states(topic.table)


def _since(reader: LogReader, states: LogStates, topic: str) -> tuple[StateFacts | None, int, int]:
    """The newest note of the topic, and the changes, with their bytes, that it has got after its newest state."""
    newest, after = None, START
    for one in states.standing(topic):
        newest = newest or one
        if one.kept:
            after = one.cut
            break
    pieces = reader.slices([topic], after, reader.head().position, 1 << 62)
    return newest, sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces)
