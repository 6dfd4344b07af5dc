"""Events that are not delivered for now, queue by queue: dead letters, and what waits behind each. Pure.

An event that its place can never take as it is, since it is too long, becomes a dead letter. Later events of its *queue* (of one key, usually) wait behind it in their
order, and others go on. The events themselves stay in the log; here stand their positions, and for each the text that a store keeps beside its mark: the letter's,
or none for one that waits.

They are bounded: a store that holds back more than ``WAITING_MAX`` reads no further, and letters have a bound of their own (``sinks.deadletters``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import StoreError
from cdc.model.position import Position
from sinks.deadletters import Letter, Letters, check_share
from sinks.events.event import EventBatch

WAITING_MAX: Final = 10_000
"""Events that were not taken yet, or stand behind a dead letter. Beyond so many the store reads no further."""
SHARE_MAX: Final = 0.5
LETTERS_MIN: Final = 100
"""A place that refuses more than this share of a stretch, and more than so many events, is at fault itself."""
GONE: Final = "the log no longer has this change, or the store no longer asks for it (`when`)"

At = tuple[str, int]
"""An event's topic and position."""


@dataclass(frozen=True, slots=True)
class Divided:
    """``free``: the events that go on. ``count``: so many of all were looked at; behind them there is no room."""

    free: EventBatch
    count: int


class HeldBack:
    """One writer's knowledge of what its store holds back. Not thread-safe."""

    def __init__(self, store: str, found: Mapping[str, str]) -> None:
        """``found``: the texts that were kept, by id. Raises ValueError, KeyError, TypeError for what nobody here wrote."""
        self._store = store
        self.letters = Letters(store, letters_of(found))
        self._lacking = {at_of(one) for one in found}
        """Those whose queues are not known yet."""
        self._queues: dict[str, deque[At]] = {}
        self._queue_of: dict[At, str] = {}
        self._changed: set[At] = set()

    def __len__(self) -> int:
        return len(self._queue_of) + len(self._lacking)

    # --- after a restart -----------------------------------------------------------------------------------------------------------

    @property
    def lacking(self) -> Mapping[str, list[int]]:
        """Positions by topic, rising, of the events that ``resume`` needs."""
        return _by_topic(self._lacking)

    def resume(self, events: Iterable[EventBatch]) -> None:
        """Goes on from what was kept. What is not among ``events`` is gone from the log: a letter, behind which nothing waits."""
        found: dict[At, str] = {}
        for batch in events:
            topics, queues = batch.column("topic").to_pylist(), queue_names(batch).to_pylist()
            found |= dict(zip(zip(topics, batch.positions.tolist(), strict=True), queues, strict=True))
        missing = self._lacking - found.keys()
        for at in sorted(self._lacking & found.keys(), key=lambda one: one[1]):
            self._join(at, found[at])
        self._lacking = set()
        for at in sorted(missing):
            self._queue_of.pop(at, None)
            self.set_aside(at, f"@{at[1]}", GONE)

    @property
    def free_queues(self) -> list[str]:
        """Those that begin with no letter: since the options order events otherwise now, or a writer ended before it could go on."""
        return [name for name, events in self._queues.items() if letter_id(events[0]) not in self.letters.by_id]

    # --- events come ---------------------------------------------------------------------------------------------------------------

    def divide(self, events: EventBatch, unfit: Mapping[int, str], *, bounded: bool = True) -> Divided:
        """Holds back those that stand behind a letter, and those that the place cannot take. ``unfit``: why, by row. ``bounded``: ends where there is no room."""
        if not self._queues and not unfit:
            return Divided(events, len(events))
        queues = queue_names(events)
        behind = pc.is_in(queues, value_set=pa.array(list(self._queues), pa.utf8()))
        if not unfit and not behind.true_count:
            return Divided(events, len(events))
        free: list[int] = []
        topics, names, positions = events.column("topic").to_pylist(), queues.to_pylist(), events.positions.tolist()
        for row, at in enumerate(zip(topics, positions, strict=True)):
            if at in self._queue_of:
                continue
            waits = names[row] in self._queues
            if not waits and row not in unfit:
                free.append(row)
                continue
            if bounded and (len(self) >= WAITING_MAX or (not waits and self.letters.room <= 0)):
                return Divided(_picked(events, free), row)
            if waits:
                self._join(at, names[row])
                self._changed.add(at)
            else:
                self.set_aside(at, names[row], unfit[row])
        return Divided(_picked(events, free), len(events))

    def set_aside(self, at: At, queue: str, reason: str) -> None:
        """A letter. Where it is held back already it is the first of its queue."""
        if at not in self._queue_of:
            self._join(at, queue)
        known = self.letters.by_id.get(letter_id(at))
        fresh = Letter(at[0], Position(at[1]), reason, key=letter_id(at), at_s=time.time())
        self.letters.add([fresh if known is None else replace(known, reason=reason)])
        self._changed.add(at)

    # --- events go -----------------------------------------------------------------------------------------------------------------

    def queue(self, at: At) -> str | None:
        """The one that it stands in."""
        return self._queue_of.get(at)

    def waiting(self, queue: str, most: int) -> list[At]:
        """The first events of the queue, up to a letter."""
        found: list[At] = []
        for at in self._queues.get(queue, ()):
            if len(found) == most or letter_id(at) in self.letters.by_id:
                break
            found.append(at)
        return found

    def remove(self, events: Iterable[At]) -> None:
        """They are delivered, or given up."""
        for at in events:
            name = self._queue_of.pop(at)
            queue = self._queues[name]
            queue.remove(at)
            if not queue:
                del self._queues[name]
            self.letters.remove([letter_id(at)])
            self._changed.add(at)

    def note(self, letters: Iterable[Letter]) -> None:
        """These letters as they are from now on; those of events that are not held back any more are passed over."""
        there = [one for one in letters if letter_at(one) in self._queue_of]
        self.letters.add(there)
        self._changed |= {letter_at(one) for one in there}

    # --- what is kept ----------------------------------------------------------------------------------------------------------------

    @property
    def first(self) -> Position | None:
        """The first event that is held back; None: there is none."""
        heads = [queue[0][1] for queue in self._queues.values()]
        return Position(min([*heads, *(at[1] for at in self._lacking)])) if heads or self._lacking else None

    @property
    def has_changed(self) -> bool:
        """Whether ``changes`` would give something."""
        return bool(self._changed)

    def changes(self, upto: int) -> dict[At, str | None]:
        """The texts to be kept from here on of events up to there, and was not given yet: the new texts; None of what is held back no longer. A place must never
        keep more than that beside a mark that says ``upto``: what is held back already is not looked at again, and what goes on before it comes would come twice."""
        given = sorted((at for at in self._changed if at[1] <= upto), key=lambda one: one[1])
        self._changed.difference_update(given)
        return {at: self._text(at) for at in given}

    def check(self, known: set[str], given: int) -> None:
        """Raises StoreError where too much is set aside. ``known``: the ids of letters that were there before the last ``given`` events came."""
        fresh = [one.as_outcome() for one in self.letters.all if one.id not in known]
        check_share(self._store, fresh, given, share_max=SHARE_MAX, rows_min=LETTERS_MIN)

    def no_room(self) -> StoreError:
        """The error of a store that can hold back no more."""
        return self.letters.too_many() if self.letters.room <= 0 else too_many_wait(self._store, len(self))

    def _text(self, at: At) -> str | None:
        if at not in self._queue_of:
            return None
        letter = self.letters.by_id.get(letter_id(at))
        return "" if letter is None else letter.to_json()

    def _join(self, at: At, queue: str) -> None:
        self._queue_of[at] = queue
        self._queues.setdefault(queue, deque()).append(at)


def queue_names(events: EventBatch) -> pa.Array:
    """The queue that each event waits in, utf8: its topic and group; one without a group, such as a TRUNCATE, has a queue of its own."""
    alone = pc.binary_join_element_wise("", events.column("position").cast(pa.utf8()), "@")
    return pc.coalesce(pc.binary_join_element_wise(events.column("topic"), events.column("group"), "\n"), alone)


def too_many_wait(store: str, count: int, where: str = "") -> StoreError:
    """``where``: who has not taken them, where that may be said."""
    taken = f"have not been taken by {where}, or wait" if where else "wait, or are dead letters: what waits stands"
    return StoreError(
        f"store {store}: {count} events {taken} behind a dead letter of their key",
        retryable=True,
        hint=f"see which, and why: cdc dlq ls {store}; then cdc dlq replay or drop",
    )


def letter_id(at: At) -> str:
    """As ``Letter.id`` says of an event."""
    return f"{at[0]}@{at[1]}"


def letter_at(letter: Letter) -> At:
    return letter.table, int(letter.position)


def at_of(text: str) -> At:
    """The way back from ``letter_id``. Raises ValueError."""
    topic, _, position = text.rpartition("@")
    return topic, int(position)


def letters_of(found: Mapping[str, str]) -> tuple[Letter, ...]:
    """The letters among what was kept. Raises ValueError, KeyError, TypeError for what nobody here wrote."""
    return tuple(Letter.from_json(text) for text in found.values() if text)


def _by_topic(events: Iterable[At]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, position in sorted(events, key=lambda one: one[1]):
        found.setdefault(topic, []).append(position)
    return found


def _picked(events: EventBatch, rows: Sequence[int]) -> EventBatch:
    return EventBatch(events.rows.take(pa.array(np.array(rows, np.int64))))
