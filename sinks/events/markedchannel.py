"""The common part of event stores whose place keeps the mark: events that it cannot take are held back, and that is kept beside the mark, in one step with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import StoreError
from cdc.model.position import Position
from sinks.contract import Outcome
from sinks.deadletters import Letter, LetterState
from sinks.events.event import EventBatch
from sinks.events.heldback import GONE, At, HeldBack, letter_at, letter_id, letters_of
from sinks.events.sink import Recall

STEP: Final = 100
"""So many events that waited go on at once."""


class MarkedChannel(ABC):
    """See ``sinks.events.sink.Channel``: all of it that has to do with letters."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._held: HeldBack | None = None
        """None while nobody writes here."""
        self._recall: Recall | None = None

    # --- what a kind does ------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _kept(self) -> Mapping[str, str]:
        """The texts that the place keeps now of what is held back, by id."""

    @abstractmethod
    def _unfit(self, events: EventBatch) -> Mapping[int, str]:
        """Which of these the place can never take as they are, by row, and why, without their values."""

    @abstractmethod
    def _hand_over(self, events: EventBatch, upto: Position) -> None:
        """Delivers them; with what has changed of ``_held`` everything up to there is done."""

    @abstractmethod
    def _settle(self) -> None:
        """Makes durable what was handed over, and what has changed of ``_held``."""

    @abstractmethod
    def _send_again(self, events: EventBatch, taken: Callable[[], None]) -> str | None:
        """Delivers events from before. ``taken``: changes ``_held`` accordingly, in one step with them. Returns why they cannot be taken, where that shows only now."""

    def _doubtful(self, events: EventBatch) -> int:
        """The first of these that may turn out to be unfit when it is sent, and so has to go alone."""
        return len(events)

    # --- events ----------------------------------------------------------------------------------------------------------------------

    def resume(self, recall: Recall) -> None:
        held, self._recall = self._holding, recall
        held.resume(recall(held.lacking))
        for name in held.free_queues:
            self._release(name)

    def deliver(self, events: EventBatch, upto: Position) -> Outcome:
        held = self._holding
        known = set(held.letters.by_id)
        divided = held.divide(events, self._unfit(events))
        if divided.count == len(events):
            self._hand_over(divided.free, upto)
        elif divided.count:
            self._hand_over(divided.free, Position(int(events.positions[divided.count - 1])))
        if divided.count < len(events) or len(held.letters.by_id) > len(known):
            self._settle()
            held.check(known, divided.count)
        if divided.count < len(events):
            raise held.no_room()
        return Outcome(len(divided.free))

    def look(self) -> None:  # noqa: B027 (nothing comes of what is held back by itself)
        ...

    @property
    def first_waiting(self) -> Position | None:
        return None if self._held is None else self._held.first

    # --- letters ---------------------------------------------------------------------------------------------------------------------

    @property
    def letters(self) -> tuple[Letter, ...]:
        if self._held is not None:
            return self._held.letters.all
        with _reading(self._store):
            return letters_of(self._kept())

    def keep(self, letters: Collection[Letter]) -> None:
        self._holding.note(one for one in letters if one.state is LetterState.ASIDE)
        self.forget([one.id for one in letters if one.state is not LetterState.ASIDE])
        self._settle()

    def forget(self, ids: Collection[str]) -> None:
        held = self._holding
        for one in ids:
            letter = held.letters.by_id.get(one)
            queue = None if letter is None else held.queue(letter_at(letter))
            if letter is None or queue is None:
                continue
            held.remove([letter_at(letter)])
            self._release(queue)
        self._settle()

    def again(self, at: At) -> str | None:
        held = self._holding
        queue = held.queue(at)
        if queue is None or letter_id(at) not in held.letters.by_id:
            return None
        found = self._recalled([at])
        if found is None:
            return GONE
        refused = self._unfit(found).get(0) or self._send_again(found, lambda: held.remove([at]))
        if refused is None:
            self._release(queue)
        return refused

    def _release(self, queue: str) -> None:
        """Delivers what has waited, in order, until one cannot be."""
        held = self._holding
        while waiting := held.waiting(queue, STEP):
            found = self._recalled(waiting)
            there = 0 if found is None else _leading(found, waiting)
            if found is None or not there:
                held.set_aside(waiting[0], queue, GONE)
                break
            events = found.slice(0, there)
            unfit = self._unfit(events)
            first = min(unfit, default=there)
            count = first and max(1, min(first, self._doubtful(events)))
            refused = unfit.get(0) if not count else self._send_again(events.slice(0, count), _removal(held, waiting[:count]))
            if refused is not None:
                held.set_aside(waiting[0], queue, refused)
                break
        self._settle()

    def _recalled(self, wanted: list[At]) -> EventBatch | None:
        """Those of one topic that the log still has."""
        assert self._recall is not None
        batches = [one.rows for one in self._recall({wanted[0][0]: [position for _, position in wanted]}) if len(one)]
        if not batches:
            return None
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return EventBatch(whole.take(pc.sort_indices(whole.column(0))))

    @property
    def _holding(self) -> HeldBack:
        if self._held is None:
            raise StoreError(f"store {self._store} is not open", retryable=True)
        return self._held

    def _take_hold(self) -> None:
        """Reads what is held back, as a writer."""
        with _reading(self._store):
            self._held = HeldBack(self._store, self._kept())

    def _let_go(self) -> None:
        self._held = None


def _removal(held: HeldBack, events: Sequence[At]) -> Callable[[], None]:
    return lambda: held.remove(events)


def _leading(found: EventBatch, wanted: Sequence[At]) -> int:
    """How many of these are there, from the first one on."""
    positions = np.array([position for _, position in wanted[: len(found)]], np.int64)
    differ = np.flatnonzero(found.positions != positions)
    return int(differ[0]) if len(differ) else len(found)


@contextmanager
def _reading(store: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StoreError(
            f"store {store}: what it keeps of its dead letters is not as it was written",
            retryable=False,
            hint="put the right copy back; or give the store another name, and its events another place to go, with which it begins again",
        ) from None
