"""The thread that keeps the runs of every table that configuration wants looked up, while capture goes on beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import structlog

from cdc.background import BackgroundPart, Interrupted, Notes
from cdc.diskspace import MAKE_ROOM, free_bytes
from cdc.errors import HeadwaterError
from cdc.log.contract import LogReader, Topic
from cdc.log.home import open_reader
from cdc.lookup.shelf import FOLDER, folder_of
from cdc.lookup.upkeep import RunUpkeep
from cdc.model.position import START
from cdc.settings.models import Settings
from sinks.places import named_by_others

LOOK_S: Final = 1.0
RUN_POSITIONS: Final = 100_000
"""A run is written once the log is so far ahead of the last one …"""
RUN_S: Final = 30.0
"""… or so long after it. Each run costs a file and two waits for the disk."""

_log = structlog.get_logger("lookup")


def _wanted(settings: Settings, topic: Topic) -> bool:
    """Whether this topic's rows are to be looked up: somebody has said so, or a store needs it."""
    return settings.log.looks_up(topic.table) or named_by_others(settings.stores.values(), topic.schema)


class Keeping(BackgroundPart):
    """``start`` and ``join`` from one thread. ``in_force``: says the configuration as it is now."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        *,
        in_force: Callable[[], Settings] | None = None,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """``free``: the bytes that are free on the disk of a folder."""
        super().__init__("lookup")
        self._settings = settings
        self._stop = stop
        self._in_force = in_force or (lambda: settings)
        self._free = free
        self._kept: dict[str, RunUpkeep] = {}
        self._tried_at: dict[str, float] = {}
        self._has_read = False
        self._looked_at = START
        self._looked_with: Settings | None = None
        """With which the last look came to its end."""
        self._failed: dict[str, str] = {}
        """What went wrong with a topic the last time it was tried."""
        self._notes = Notes("keyed look-ups are not being kept up", "keeping look-ups failed", _log)

    def _run(self) -> None:
        with closing(open_reader(self._settings.log.dir)) as reader:
            while not self._stop.wait(LOOK_S):
                problems: list[str] = []
                had_read, self._has_read = self._has_read, False
                self.look(reader, problems)
                self._problem = next(iter(problems), None)
                if had_read and not self._has_read:
                    # At rest it keeps no file of the log open: the room of one that compaction has replaced would not become free.
                    reader.close()

    def look(self, reader: LogReader, problems: list[str]) -> None:
        """Brings every topic's runs up to date. Notes in ``problems`` what went wrong, with which capture goes on. Raises Interrupted."""
        with self._notes.noting(problems):
            settings = self._in_force()
            asked = any(options.lookup for options in settings.log.tables.values())
            if not asked and not settings.stores:
                self._kept.clear()
                self._remove_others(set())
                return
            before, self._looked_at = self._looked_at, reader.head().position
            if self._looked_with is settings and before == self._looked_at and not self._kept and not self._failed:
                return  # nothing is looked up, and nothing has come that could be
            self._looked_with = None
            self._has_read = before != self._looked_at  # what topics are there is in the log's files, too
            topics = [topic for topic in reader.topics() if _wanted(settings, topic) and topic.kept_from <= 1]
            for name in self._kept.keys() - {topic.name for topic in topics}:
                del self._kept[name]
            self._remove_others({topic.name for topic in topics})
            for topic in topics:
                said: list[str] = []
                with self._notes.noting(said):
                    self._keep(reader, topic)
                if said:
                    self._failed[topic.name] = said[0]
                problems += [self._failed[topic.name]] if topic.name in self._failed else []
            self._looked_with = settings

    def _keep(self, reader: LogReader, topic: Topic) -> None:
        upkeep = self._kept.get(topic.name)
        if upkeep is None:
            self._has_read = True
            upkeep = self._kept[topic.name] = RunUpkeep(reader, self._settings.log.dir, topic.name, self._go_on)
        upkeep.look()
        since = time.monotonic() - self._tried_at.get(topic.name, -RUN_S)
        far = topic.last - upkeep.reached >= RUN_POSITIONS and topic.name not in self._failed
        if topic.last > upkeep.reached and (far or since >= RUN_S):
            # Before it is tried: what fails has read much of the log, and is not to do so again at every look.
            self._tried_at[topic.name] = time.monotonic()
            self._has_read = True
            while upkeep.advance():
                pass
            self._failed.pop(topic.name, None)
        elif topic.last <= upkeep.reached:
            self._failed.pop(topic.name, None)
        self._has_read = upkeep.thin(topic) or self._has_read

    def _remove_others(self, wanted: set[str]) -> None:
        """Runs of tables that are not looked up any longer, or were dropped from the log."""
        folder = self._settings.log.dir / FOLDER
        stay = {folder_of(self._settings.log.dir, name) for name in wanted}
        for other in folder.iterdir() if folder.is_dir() else ():
            if other not in stay and other.is_dir():
                for path in other.iterdir():
                    path.unlink(missing_ok=True)
                other.rmdir()

    def _go_on(self, more: int) -> None:
        """``more``: bytes that are about to be written. Raises Interrupted, HeadwaterError, OSError."""
        if self._stop.is_set():
            raise Interrupted
        log = self._settings.log
        if more and self._free(log.dir) - more < log.reserve_mb * 10**6:
            raise HeadwaterError(
                f"less than {log.reserve_mb} MB (log.reserve_mb) would be left on the disk of {log.dir}", hint=MAKE_ROOM
            )
