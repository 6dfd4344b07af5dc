"""How old the changes of derived topics are. They come through the inbox, and their cuts repeat the time of the source's last commit, so the log itself does not
know: the head is noted now and then, and every change at or below it is at least as old as the note.

While a process watches, time counts by its steady clock alone. From one process to the next it counts by this machine's clock, as far as that is ahead of all it
is known to have reached: so nothing becomes old by a clock that jumps ahead under a process, or that is behind when one starts and is put right for the next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cdc.errors import HeadwaterError
from cdc.log.contract import LogReader
from cdc.settings.models import Log
from cdc.state.statefile import StateFile

AGES_FILE: Final = "ages.json"
NOTES_IN_AGE: Final = 50
"""Nothing stays longer than by this part of its age; or by this part of the shortest age that counts and the time between two looks, where that is more."""


@dataclass(frozen=True, slots=True)
class Ages:
    """``log``, ``history``: the log's id, and that of its history. ``passed_us``: how much time has been counted, and ``clock_us``: what this machine's
    clock has reached by then. ``notes``: (``passed_us``, the head's position) as they were, rising."""

    log: str
    history: str
    passed_us: int = 0
    clock_us: int = 0
    notes: tuple[tuple[int, int], ...] = ()

    def at(self, clock_us: int, watched_us: int | None = None) -> Ages:
        """The same when the clock says this. ``watched_us``: what has passed since by the steady clock of the process that saw it; None: none did."""
        unseen_us = max(0, clock_us - self.clock_us) if self.clock_us else 0
        passed = unseen_us if watched_us is None else watched_us
        return replace(self, passed_us=self.passed_us + passed, clock_us=max(clock_us, self.clock_us + passed))

    def noted(self, head: int, hours: Sequence[float]) -> Ages:
        """With a note of the head where it is time for one. ``hours``: the ages that count, at least one."""
        notes = [note for note in self.notes if note[1] <= head]
        if not notes or self.passed_us - notes[-1][0] >= _us(min(hours)) // NOTES_IN_AGE:
            notes.append((self.passed_us, head))
        while len(notes) > 1 and self.passed_us - notes[1][0] >= _us(max(hours)):
            del notes[0]
        return replace(self, notes=self._spaced(notes, _us(min(hours))))

    def _spaced(self, notes: Sequence[tuple[int, int]], least_us: int) -> tuple[tuple[int, int], ...]:
        """Without those between two others that are near enough to each other: a few hundred are left, however far apart the ages are."""
        found: list[tuple[int, int]] = []
        for note in notes:
            near_us = max(least_us, self.passed_us - note[0]) // NOTES_IN_AGE
            if len(found) > 1 and note[0] - found[-2][0] <= near_us:
                found.pop()
            found.append(note)
        return tuple(found)

    def upto(self, hours: float) -> int:
        """Changes up to this position are so old; -1 when none is."""
        return max((head for passed_us, head in self.notes if self.passed_us - passed_us >= _us(hours)), default=-1)


AGES: Final = StateFile(
    format=2,
    encode=lambda ages: {
        "log": ages.log,
        "history": ages.history,
        "passed_us": ages.passed_us,
        "clock_us": ages.clock_us,
        "notes": ages.notes,
    },
    decode=lambda raw: Ages(
        str(raw["log"]),
        str(raw["history"]),
        int(raw["passed_us"]),
        int(raw["clock_us"]),
        tuple((int(at), int(head)) for at, head in raw["notes"]),
    ),
    unreadable=lambda path, what: HeadwaterError(
        f"{path} {what}", hint="cdc run writes it again; until then nothing counts as old"
    ),
)


class AgeKeeper:
    """Counts and notes, in one process at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._steady_s: float | None = None

    def look(self, reader: LogReader) -> None:
        """Notes the head, where any derived topic goes by its age. Raises OSError."""
        hours = sorted(_hours(self._log, reader))
        ages = known(self._log.dir, reader)
        if not hours or ages is None:
            return
        before, self._steady_s = self._steady_s, time.monotonic()
        watched_us = None if before is None else int((self._steady_s - before) * 1e6)
        now = ages.at(time.time_ns() // 1000, watched_us).noted(reader.head().position, hours)
        AGES.save(self._log.dir / AGES_FILE, now)


def known(folder: Path, reader: LogReader) -> Ages | None:
    """The ages as they were noted last; without any notes where the file is missing, damaged, or not this log's. None as long as there is no log. Raises OSError."""
    lineage = reader.lineage()
    if lineage is None:
        return None
    found = None
    with suppress(HeadwaterError):
        found = AGES.load(folder / AGES_FILE)
    head, present = reader.head().position, lineage.histories[-1].id
    until = None if found is None or found.log != lineage.log else lineage.until(found.history)
    if found is None or until is None:
        return Ages(lineage.log, present)
    # Beyond where a history was given up its positions mean other changes here.
    notes = tuple(note for note in found.notes if note[1] <= until)
    if any(position > head for _, position in notes):  # a future that this log has lost, and who knows since when
        return Ages(lineage.log, present)
    return replace(found, history=present, notes=notes)


def _hours(log: Log, reader: LogReader) -> set[float]:
    """The ages that count. For none at all nothing has to be noted."""
    found: set[float | None] = set()
    for table in (topic.table for topic in reader.topics() if topic.table.derived):
        cleanup = log.cleanup_of(table)
        if cleanup == "compact":
            found |= {log.history_hours, log.deletes_hours}
        elif cleanup == "delete":
            found.add(log.limits_of(table).hours)
    return {hours for hours in found if hours}


def _us(hours: float) -> int:
    return int(hours * 3_600_000_000)
