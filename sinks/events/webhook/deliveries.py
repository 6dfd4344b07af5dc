"""Which event goes next: the order, the retries and what is set aside. Pure; moments are seconds of one clock that is passed in.

Events stand in *queues*, one for each key (or one for each event, where their order makes no difference). A *request* carries one event, or several where the options
say so, from the heads of their queues, and nothing else of these queues goes until it was taken. So:

- **The next event of a key goes only after the one before it was taken**; other keys do not wait for it.
- **A request that was not taken rests and is sent again as it was**, with the same events under the same id: it may have arrived. One of several events that is
  refused, or fails a second time though somebody answers, is sent again event by event, since one of them may be the reason.
- **An event that is refused, or was not taken for too long, is a letter**, behind which its queue waits until an operator has decided.
- **A receiver that is silent** several times in a row is *down*: then one request at a time asks whether it is back, also one that would still rest.

An object for each event is affordable here: each costs a request.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sinks.events.heldback import At
from sinks.events.webhook.retries import Retry
from sinks.events.webhook.verdict import RequestFate, RequestVerdict

DOWN_AFTER: Final = 4
"""A receiver that has been silent so often in a row is down."""
ASK_AGAIN_S: Final = 15.0
"""The longest pause between two questions whether it is back."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One event on its way. ``target``: path and query. ``unaddressed``: why it has none. ``headers``: of a request that carries it alone."""

    topic: str
    position: int
    id: str
    queue: str
    target: str
    body: bytes
    unaddressed: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def at(self) -> At:
        return self.topic, self.position


@dataclass(slots=True)
class EventRequest:
    """Events that go together, each queue's in order."""

    events: tuple[Outgoing, ...]
    failed: int = 0
    """So many attempts were not taken."""
    since: float = 0.0
    """The moment of the first of them."""
    due: float = 0.0
    """It rests until then."""
    silent: bool = False
    """Nobody answered the last of them."""
    reason: str = ""
    """Why the last of them was not taken."""

    @property
    def id(self) -> str:
        """The same whenever it is sent: the event's own, or made of those of all."""
        if len(self.events) == 1:
            return self.events[0].id
        digest = hashlib.sha256(b"\0".join(one.id.encode() for one in self.events)).hexdigest()
        return f"batch_{digest[:32]}"


@dataclass(slots=True)
class _Queue:
    name: str
    events: deque[Outgoing] = field(default_factory=deque)
    request: EventRequest | None = None
    """The one that carries its head."""
    letter: str | None = None
    """Why its head is set aside."""
    alone: int = 0
    """So many of its events go in requests of their own."""
    listed: bool = False
    """Among the ready ones."""
    past: EventRequest | None = None
    """The request of several that its head was in before it went alone."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """``batch``: the most events of a request."""

    retry: Retry
    batch: int = 1


@dataclass(slots=True)
class Health:
    """The receiver as a whole, as its last answers show it."""

    silences: int = 0
    """Attempts in a row that nobody answered."""
    ask_at: float = 0.0
    """While it is down: nothing goes before."""
    rests_until: float = 0.0
    """It has asked for a pause."""
    gone: str | None = None
    """It wants nothing any more: what it answered."""
    reason: str = ""
    """Of the last silence."""

    @property
    def down(self) -> bool:
        return self.silences >= DOWN_AFTER


class Deliveries:
    """Not thread-safe."""

    def __init__(self, rules: RequestRules, chance: random.Random) -> None:
        self.health = Health()
        self._rules = rules
        self._chance = chance
        self._queues: dict[str, _Queue] = {}
        self._ready: deque[_Queue] = deque()
        self._resting: list[tuple[float, int, EventRequest]] = []
        self._number = 0
        self._flying: list[EventRequest] = []
        self._letters: dict[At, _Queue] = {}
        self._count = 0
        self.bytes = 0
        """Of the bodies of all that are here."""

    # --- what there is -----------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many events are here: not taken yet, or set aside."""
        return self._count

    @property
    def fresh(self) -> int:
        """How many queues have something that could go now."""
        return len(self._ready)

    @property
    def letters(self) -> dict[At, str]:
        """Events that are set aside, and why."""
        return {at: queue.letter or "" for at, queue in self._letters.items()}

    @property
    def events(self) -> Iterator[Outgoing]:
        """All that are here, those of a queue in order."""
        for queue in self._queues.values():
            yield from queue.events

    @property
    def failing(self) -> tuple[EventRequest, ...]:
        """Requests that were not taken when they were last sent, and those that are under way."""
        rested = tuple(request for _, _, request in sorted(self._resting, key=lambda one: one[:2]))
        alone = tuple(
            EventRequest((queue.events[0],), past.failed, past.since) for queue in self._ready if (past := queue.past) is not None
        )
        return (*rested, *self._flying, *alone)

    def idle(self, now: float) -> bool:
        """Whether nothing goes on at present but attempts that have failed before: whoever waits for the rest waits for the receiver or an operator."""
        if self.health.down or self.health.gone is not None or self.health.rests_until > now:
            return not any(request.failed == 0 for request in self._flying)
        return not self._ready and all(request.failed for request in self._flying)

    def asking(self, now: float) -> bool:
        """Whether the receiver is down and is just being asked, or is about to be, if it is back."""
        return self.health.down and (bool(self._flying) or self.health.ask_at <= now)

    # --- events come -------------------------------------------------------------------------------------------------------------

    def add(self, events: Iterable[Outgoing]) -> None:
        """Those of a queue in order, behind what is there."""
        for event in events:
            queue = self._queues.setdefault(event.queue, _Queue(event.queue))
            queue.events.append(event)
            self._count += 1
            self.bytes += len(event.body)
            self._list(queue)

    def restore(self, requests: Iterable[EventRequest], letters: Iterable[tuple[At, str]]) -> None:
        """Goes on from what ``failing`` and ``letters`` were when these events were here before, in another process. A request whose events are not the first of
        their queues any more, since the options order them otherwise now, is given up: its events go when their turn comes."""
        heads = {queue.events[0].at: queue for queue in self._queues.values() if queue.events}
        for at, reason in letters:
            if (head := heads.get(at)) is not None and head.letter is None:
                self._unlist(head)
                self._set_aside(head, reason)
        for request in requests:
            carried: dict[str, list[Outgoing]] = {}
            for one in request.events:
                carried.setdefault(one.queue, []).append(one)
            if all(self._leads(name, events) for name, events in carried.items()):
                for name in carried:
                    self._queues[name].request = request
                    self._unlist(self._queues[name])
                self._rest(request)

    # --- events go ---------------------------------------------------------------------------------------------------------------

    def next(self, now: float) -> EventRequest | None:
        """A request to be sent now, whose outcome ``answered`` has to be given; None: there is none at present."""
        health = self.health
        if health.gone is not None or now < health.rests_until:
            return None
        if health.down:
            if self._flying or now < health.ask_at:
                return None
            request = self._formed() or self._rested(None)
        else:
            request = self._rested(now) or self._formed()
        if request is not None:
            self._flying.append(request)
        return request

    def next_at(self, now: float) -> float | None:
        """The moment from which on ``next`` may give something, if nothing else happens; None: there is none."""
        health = self.health
        if health.gone is not None or (health.down and self._flying):
            return None
        if health.down:
            return max(health.ask_at, health.rests_until) if self._ready or self._resting else None
        due = now if self._ready else self._resting[0][0] if self._resting else None
        return None if due is None else max(due, health.rests_until)

    def answered(self, request: EventRequest, verdict: RequestVerdict, now: float) -> None:
        """The outcome of an attempt."""
        self._flying.remove(request)
        self._note(verdict, now)
        if verdict.fate is RequestFate.TAKEN:
            self._taken(request)
        elif verdict.fate is RequestFate.REFUSED:
            self._refused(request, verdict.reason)
        else:
            self._failed(request, verdict, now)

    # --- an operator decides ------------------------------------------------------------------------------------------------------

    def retried(self, at: At) -> EventRequest | None:
        """A letter's event, to be sent now; ``answered_retried`` has to be given the outcome. None where no such letter is left."""
        queue = self._letters.get(at)
        return None if queue is None else EventRequest((queue.events[0],))

    def answered_retried(self, request: EventRequest, verdict: RequestVerdict, now: float) -> None:
        """Its queue goes on if it was taken, else the letter stays."""
        self._note(verdict, now)
        queue = self._letters.get(request.events[0].at)
        if queue is None:
            return
        if verdict.fate is RequestFate.TAKEN:
            self.drop(request.events[0].at)
        else:
            queue.letter = verdict.reason

    def drop(self, at: At) -> None:
        """The letter's event is given up: its queue goes on."""
        queue = self._letters.pop(at, None)
        if queue is not None:
            queue.letter = None
            self._pop(queue)
            self._list(queue)

    # --- how -----------------------------------------------------------------------------------------------------------------------

    def _formed(self) -> EventRequest | None:
        """The next request of events that have not been sent yet."""
        events: list[Outgoing] = []
        taken: list[_Queue] = []
        passed: list[_Queue] = []
        most, past = self._rules.batch, None
        while self._ready and len(events) < most and len(passed) < most:
            queue = self._ready.popleft()
            if queue.events[0].unaddressed is not None:
                queue.listed = False
                self._set_aside(queue, queue.events[0].unaddressed)
            elif events and (queue.alone or queue.events[0].target != events[0].target):
                passed.append(queue)
            else:
                queue.listed = False
                if queue.alone:
                    most, past, queue.past = 1, queue.past, None
                taken.append(queue)
                events += _together(queue, most - len(events), events)
        self._ready.extendleft(reversed(passed))
        if not events:
            return None
        events.sort(key=lambda one: one.position)
        request = EventRequest(tuple(events), *((past.failed, past.since) if past is not None else ()))
        for queue in taken:
            queue.request = request
        return request

    def _rested(self, now: float | None) -> EventRequest | None:
        """The one that rests no longer, or with None the one that would be the first."""
        if self._resting and (now is None or self._resting[0][0] <= now):
            return heapq.heappop(self._resting)[2]
        return None

    def _leads(self, name: str, events: list[Outgoing]) -> bool:
        """Whether these are the queue's first events, and nothing holds it up."""
        queue = self._queues.get(name)
        if queue is None or queue.request is not None or queue.letter is not None:
            return False
        return list(islice(queue.events, len(events))) == events

    def _rest(self, request: EventRequest) -> None:
        self._number += 1
        heapq.heappush(self._resting, (request.due, self._number, request))

    def _note(self, verdict: RequestVerdict, now: float) -> None:
        health = self.health
        if verdict.fate is RequestFate.SILENT:
            health.silences += 1
            health.reason = verdict.reason
            if health.down:
                tried = min(health.silences - DOWN_AFTER, 30)
                health.ask_at = now + min(0.2 * 2.0**tried, ASK_AGAIN_S) * self._chance.uniform(0.75, 1.0)
            return
        if health.down:  # it is back: whoever rests because it was silent need not rest any longer
            for _, _, request in self._resting:
                request.due = now if request.silent else request.due
            self._resting = [(request.due, number, request) for _, number, request in self._resting]
            heapq.heapify(self._resting)
        health.silences = 0
        if verdict.fate is RequestFate.GONE:
            health.gone = verdict.reason
        if verdict.after_s is not None:
            health.rests_until = max(health.rests_until, now + min(verdict.after_s, self._rules.retry.most_s))

    def _taken(self, request: EventRequest) -> None:
        for queue in self._left(request):
            queue.alone = max(0, queue.alone - 1)
        for event in request.events:
            self._pop(self._queues[event.queue])
        for name in dict.fromkeys(event.queue for event in request.events):
            if (left := self._queues.get(name)) is not None:
                self._list(left)

    def _refused(self, request: EventRequest, reason: str) -> None:
        queues = self._left(request)
        if len(request.events) > 1:
            self._apart(request, queues, None)
        else:
            self._set_aside(queues[0], reason)

    def _failed(self, request: EventRequest, verdict: RequestVerdict, now: float) -> None:
        retry = self._rules.retry
        request.since = request.since if request.failed else now
        request.failed += 1
        request.silent, request.reason = verdict.fate is RequestFate.SILENT, verdict.reason
        several = len(request.events) > 1
        ends = request.since + retry.for_s
        if verdict.fate is not RequestFate.GONE and now >= ends and not several:
            hours = f"{retry.for_hours:g} hours"
            self._set_aside(self._left(request)[0], f"{verdict.reason}, after {hours} and {request.failed} attempts")
        elif several and (now >= ends or (request.failed >= 2 and not request.silent)):
            self._apart(request, self._left(request), request)
        else:
            pause = max(retry.pause_s(request.failed, self._chance), verdict.after_s or 0.0)
            request.due = min(now + pause, ends) if ends > now else now + pause  # the last attempt is made when its time is over
            self._rest(request)

    def _apart(self, request: EventRequest, queues: list[_Queue], past: EventRequest | None) -> None:
        """Its events go one by one, each as if it had failed as often as all of them have."""
        counts = {queue.name: 0 for queue in queues}
        for event in request.events:
            counts[event.queue] += 1
        for queue in queues:
            queue.alone, queue.past = counts[queue.name], past
            self._list(queue)

    def _left(self, request: EventRequest) -> list[_Queue]:
        """The queues whose heads the request carried, which carries them no longer."""
        queues = [self._queues[name] for name in dict.fromkeys(one.queue for one in request.events)]
        for queue in queues:
            queue.request = None
        return queues

    def _set_aside(self, queue: _Queue, reason: str) -> None:
        queue.letter = reason
        queue.alone = max(0, queue.alone - 1)
        self._letters[queue.events[0].at] = queue

    def _pop(self, queue: _Queue) -> None:
        self.bytes -= len(queue.events.popleft().body)
        self._count -= 1
        if not queue.events:
            del self._queues[queue.name]

    def _list(self, queue: _Queue) -> None:
        if queue.events and not queue.listed and queue.request is None and queue.letter is None:
            queue.listed = True
            self._ready.append(queue)

    def _unlist(self, queue: _Queue) -> None:
        if queue.listed:
            queue.listed = False
            self._ready.remove(queue)


def _together(queue: _Queue, most: int, before: list[Outgoing]) -> list[Outgoing]:
    """The queue's first events that can go in one request with those before."""
    found: list[Outgoing] = []
    target = (before or queue.events)[0].target
    for event in queue.events:
        if len(found) == most or event.target != target or event.unaddressed is not None:
            break
        found.append(event)
    return found
