"""The thread that moves sealed files to the tier when they are old, or back. Capture, readers and compaction never wait for it."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Final

import structlog

from cdc.background import BackgroundPart, Interrupted
from cdc.compaction.worker import LONGEST_PAUSE_S, LOOK_S
from cdc.diskspace import described
from cdc.errors import HeadwaterError, LogCorrupt
from cdc.log.contract import LogTiering, LogWriter
from cdc.log.home import open_reader, tiering_of
from cdc.replay.place import cut_before_time
from cdc.settings.models import Settings
from cdc.settings.tier import Tier

SWEEP_S: Final = 3600.0
GIVE_UP: Final = 2
"""After so many failures one behind the other the store, or the disk, is taken not to answer at all: the next look asks again."""

_log = structlog.get_logger("tier")


class Tiering(BackgroundPart):
    """``start`` and ``join`` from the thread that owns the writer."""

    def __init__(self, settings: Settings, tier: Tier, moves: LogTiering, stop: threading.Event) -> None:
        super().__init__("tier")
        self._folder = settings.log.dir
        self._tier = tier
        self._moves = moves
        self._stop = stop
        self._swept = -SWEEP_S
        self._look_s = min(LOOK_S, max(0.2, 360 * tier.after_hours))

    def _run(self) -> None:
        pause_s = self._look_s
        with closing(self._moves):
            while not self._stop.wait(pause_s):
                try:
                    self.look(time.monotonic())
                    pause_s, self._problem = self._look_s, None
                except Interrupted:
                    raise
                except Exception as error:
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    self._note(error)

    def look(self, now_s: float) -> None:
        """Moves what is to be moved now, and goes on behind a file that fails. Raises as LogTiering does, the first failure at the end; what was moved
        stays moved."""
        self._moves.begin()
        with closing(open_reader(self._folder)) as reader:
            end_us = min(time.time_ns() // 1000, reader.head().commit_ts_us)
            old = 2**62 if self._tier.back else cut_before_time(reader, end_us - int(self._tier.after_hours * 3_600_000_000))
        failed = self._move(old)
        if now_s - self._swept >= SWEEP_S:
            try:
                self._moves.sweep()
                self._swept = now_s
            except (HeadwaterError, OSError) as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _move(self, old: int) -> Exception | None:
        """Returns what failed first."""
        moved = size = in_a_row = 0
        first: Exception | None = None
        for place in self._moves.closed(old):
            if place.away is self._tier.back and in_a_row < GIVE_UP:
                self._go_on()
                try:
                    done = self._moves.bring_back(place) if self._tier.back else self._moves.put_away(place, self._go_on)
                except (HeadwaterError, OSError) as error:
                    first, in_a_row = first or error, in_a_row + (not isinstance(error, LogCorrupt))
                else:
                    moved, size, in_a_row = moved + bool(done), size + done, 0
        if moved:
            way = "back from" if self._tier.back else "to"
            _log.info(f"{moved} sealed files went {way} the log's tier", facts={"files": moved, "bytes": size})
        return first

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Interrupted

    def _note(self, error: Exception) -> None:
        if isinstance(error, HeadwaterError):
            said = error.line()
        elif isinstance(error, OSError):
            said = f"{described(error)} → make room, or let the account of cdc run write there; it then goes on by itself"
        else:
            _log.exception("moving sealed files failed", problem=type(error).__name__)
            said = f"unexpected {type(error).__name__} → restart cdc run, and report it"
        line = f"nothing moves to or from the log's tier: {said}"
        if line != self._problem:
            _log.warning(line)
        self._problem = line


def tiering_for(settings: Settings, writer: LogWriter, stop: threading.Event) -> Tiering | None:
    """None where no tier is configured. Raises ConfigError for an invalid address."""
    tier = settings.log.tier
    moves = tiering_of(writer, tier.url, tier.cache_mb * 2**20) if tier else None
    return Tiering(settings, tier, moves, stop) if tier and moves else None
