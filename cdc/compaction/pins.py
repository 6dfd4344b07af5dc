"""Who holds compaction and retention back: the stores that have not read on yet.

A store that is behind keeps what it still has to read, so that it shows whole commits all the way. One that reads may take as long as it needs. One that
does not (it is down, has stopped, or nobody follows it) no longer counts once it has stood still for ``[log] pin_hours``; nor does one that runs and yet
has not got on for so long, or for an hour where that is longer. And none counts that lacks more than ``[log] pin_mb``.
Changes that a store has passed and may have to read again (``FollowerStatus.returns_to``) are held in the same way, apart from those that come next.
A generation of a store that is being built, or kept, counts as a store of its own does, as long as it has a status. So does a view, once it has been built,
and its next generation while that is built, and its former one for as long as it is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from cdc.log.contract import LogReader, Topic, left_between
from cdc.model.position import Position
from cdc.model.selection import literal, matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import Cleanup, Log, Settings, StoreOptions
from cdc.state import status
from cdc.state.status import FollowerStatus, GenerationStatus, ViewStatus
from sinks.places import named_by_others

SILENT_S = 3600.0
"""A follower that has not written its status for so long does not read at present."""
STUCK_S = 3600.0
"""A store that runs may need so long for one step."""


LEFT: Final = " (events not taken)"
"""Behind a store's name: what it has passed, and may have to read again."""


@dataclass(frozen=True, slots=True)
class StorePin:
    """A store, or a generation of one, that has read up to ``position``. ``lapsed``: why it no longer counts; None while it does."""

    store: str
    tables: tuple[str, ...]
    position: int
    lapsed: str | None = None

    def holds(self, schema: TopicSchema) -> bool:
        """Whether it counts for this topic."""
        return matches(self.tables, schema)


def cleanup_of(log: Log, stores: Iterable[StoreOptions], topic: Topic) -> Cleanup:
    """How the topic's changes are kept: all of them, whatever the configuration says of it, where one of the stores needs them (``sinks.places``)."""
    said = log.cleanup_of(topic.table)
    return "keep" if said != "keep" and named_by_others(stores, topic.schema) else said


class Pins:
    """Looks at the stores' status again and again. ``now``: by this process's clock of ``time.monotonic``.

    ``in_force``: says the configuration as it is now: followers take up a new store at once, so it has to count at once.
    """

    def __init__(self, in_force: Callable[[], Settings]) -> None:
        self._in_force = in_force
        self._since: dict[str, tuple[int, float]] = {}
        """Each store's position, and since when it stands there though the log goes on."""

    def cleanup(self, log: Log, topic: Topic) -> Cleanup:
        """How the topic's changes are kept now, as ``cleanup_of``."""
        return cleanup_of(log, self._in_force().stores.values(), topic)

    def look(self, now: float, log: LogReader | None = None) -> list[StorePin]:
        """The stores that count now. One that has never run has read nothing."""
        return [pin for pin in self.every(now, log) if pin.lapsed is None]

    def every(self, now: float, log: LogReader | None = None) -> list[StorePin]:
        """The same, and those that no longer count. ``log``: says who lacks nothing and who lacks too much; without it, everybody lacks something."""
        found = []
        settings = self._in_force()
        for name, options in settings.stores.items():
            told = status.read_follower(settings.run_dir, name)
            reads = told is not None and told.state in ("starting", "rebuilding", "following")
            found.append(self._pin(settings.log, StorePin(name, options.tables, 0), told, now, log, reads=reads))
            if told is not None and told.returns_to is not None:
                left = replace(told, position=told.returns_to - 1)
                found.append(self._pin(settings.log, StorePin(f"{name}{LEFT}", options.tables, 0), left, now, log, reads=reads))
            for one in status.read_generations(settings.run_dir, name):
                pin = StorePin(f"{name}@{one.number}", options.tables, 0)
                found.append(self._pin(settings.log, pin, one, now, log, reads=one.error is None))
        for name in settings.views:
            view = status.read_view(settings.run_dir, name)
            # One that has computed nothing yet begins with its sources' rows as they are then, and lacks no change.
            if view is not None and view.position:
                pin = StorePin(f"view {name}", tuple(map(literal, view.topics)), 0)
                reads = view.state in ("starting", "following")
                found.append(self._pin(settings.log, pin, view, now, log, reads=reads))
                for beside in (beside for beside in view.generations if beside.state != "live" and beside.position):
                    pin, building = replace(pin, store=f"view {name}@{beside.number}"), beside.state == "building"
                    at = replace(view, position=beside.position, moved_at=view.moved_at if building else beside.left_at)
                    found.append(self._pin(settings.log, pin, at, now, log, reads=reads and building))
        return found

    def _pin(
        self,
        settings: Log,
        pin: StorePin,
        told: FollowerStatus | GenerationStatus | ViewStatus | None,
        now: float,
        log: LogReader | None,
        *,
        reads: bool,
    ) -> StorePin:
        position = 0 if told is None else told.position
        still_s = self._still_s(pin.store, position, told, now, log)
        reads = reads and told is not None and status.silent_s(told) < SILENT_S
        lapsed = _stood_too_long(settings, still_s, reads=reads) or _lacks_too_much(settings, pin.tables, position, log)
        return replace(pin, position=position, lapsed=lapsed)

    def _still_s(
        self,
        name: str,
        position: int,
        told: FollowerStatus | GenerationStatus | ViewStatus | None,
        now: float,
        log: LogReader | None,
    ) -> float:
        """For how long the store has been standing at its position while the log had more."""
        if log is not None and position >= log.head().position > 0:
            self._since[name] = position, now
        elif name not in self._since:
            # What it did before this process began is known by its own last word, and by when what it lacks was committed.
            stood_at = 0.0 if told is None else told.moved_at or told.updated_at
            lacks_at = log.cut_within(Position(position), 1, 1).commit_ts_us / 1e6 if log is not None else 0.0
            self._since[name] = position, now - (max(0.0, time.time() - max(stood_at, lacks_at)) if stood_at else 0.0)
        elif self._since[name][0] != position:
            self._since[name] = position, now
        return now - self._since[name][1]


def _stood_too_long(log: Log, still_s: float, *, reads: bool) -> str | None:
    limit_s = max(3600.0 * log.pin_hours, STUCK_S if reads else 0.0)
    if still_s < limit_s:
        return None
    return f"it has stood still for {limit_s / 3600:g} hours (log.pin_hours)" if limit_s else "log.pin_hours is 0"


def _lacks_too_much(log: Log, tables: tuple[str, ...], position: int, reader: LogReader | None) -> str | None:
    if log.pin_mb is None or reader is None:
        return None
    lacks = sum(piece.bytes for piece in left_between(reader, tables, Position(position), reader.head().position))
    return f"it lacks more than {log.pin_mb} MB (log.pin_mb)" if lacks > log.pin_mb * 10**6 else None
