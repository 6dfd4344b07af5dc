"""The way of events to a webhook's receiver, with what we keep of it in a file.

``deliver`` hands events over to the courier's threads and waits until each of them was taken, or has failed once, or stands behind one that has: those go on being
tried while the log is read on, and are among ``KeptDeliveries.waiting`` until they were taken. So a key that fails holds up neither the others nor the cut. That is
bounded by ``WAITING_MAX`` and ``staged_bytes``: beyond, the store waits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from cdc.clock import MACHINE, Clock
from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, Stopped, StopState, StoreError
from cdc.model.position import Cut, Position
from sinks.contract import EpochPassed, Outcome
from sinks.deadletters import Letter, Letters, LetterState, check_share
from sinks.events.event import EventBatch
from sinks.events.heldback import GONE, LETTERS_MIN, SHARE_MAX, WAITING_MAX, At, letter_at, letter_id, queue_names, too_many_wait
from sinks.events.sink import Recall
from sinks.events.standing import EventStanding
from sinks.events.webhook.address import PLACES, Unaddressed
from sinks.events.webhook.courier import Courier
from sinks.events.webhook.deliveries import Deliveries, EventRequest, Outgoing, RequestRules
from sinks.events.webhook.eventheaders import as_headers
from sinks.events.webhook.kept import KeptDeliveries, KeptFile, Tried, Waiting
from sinks.events.webhook.options import Options
from sinks.events.webhook.receiver import Receiver
from sinks.events.webhook.verdict import RequestFate, RequestVerdict, silent
from sinks.retry import down

SAVE_S: Final = 1.0
"""While many events are delivered in one go the file is written so often."""
STEP: Final = 200
"""So many events are handed over at once."""
PATIENCE_S: Final = 3600.0


class WebhookChannel:
    """See ``sinks.events.sink.Channel``. For one thread, beside those of its courier."""

    def __init__(self, store: str, options: Options, clock: Clock = MACHINE) -> None:
        if options.state_dir is None:
            raise ConfigError(f"stores.{store}.state_dir is missing", hint="name a folder for what the store keeps")
        self._store = store
        self._options = options
        self._clock = clock
        self._file = KeptFile(store, options.state_dir / f"{store}.json")
        self._receiver: Receiver | None = None
        self._courier: Courier | None = None
        """None before ``begin``. It outlasts ``close``, so that what is known of the receiver does."""
        self._letters = Letters(store)
        self._lacking: tuple[Waiting, ...] = ()
        self._handed = Position(0)
        """Everything up to here was handed over."""
        self._saved_at = 0.0
        self._past_s = time.time() - clock.monotonic()
        """From the clock's moments to Unix time."""

    # --- how far -----------------------------------------------------------------------------------------------------------------

    def standing(self) -> EventStanding | None:
        found = self._file.found()
        return None if found is None else found.standing

    def begin(self, standing: EventStanding) -> None:
        found = self._file.found()
        if found is not None and found.standing.epoch > standing.epoch:
            raise EpochPassed(self._store, found.standing.epoch)
        if not self._goes_on(found, standing):
            kept = found or KeptDeliveries(standing)
            deliveries = Deliveries(RequestRules(self._options.retry, self._options.batch), random.Random())
            self._courier = Courier(f"webhook-{self._store}", deliveries, self._post, self._options.in_flight, self._clock)
            self._letters = Letters(self._store, kept.letters)
            self._lacking, self._handed = kept.waiting, kept.standing.progress
        else:
            assert self._file.kept is not None
            kept = self._file.kept
        crashpoint("webhook.begin")
        if self._receiver is None:
            self._receiver = Receiver(self._options)
        self._file.write(replace(kept, standing=replace(standing, progress=max(standing.progress, self._handed))))

    def _goes_on(self, found: KeptDeliveries | None, standing: EventStanding) -> bool:
        """Whether what is known here still counts: nobody else has written the file since. One that was merely removed is written again."""
        if self._courier is None or self._file.kept is None or self._lacking:
            return False
        return found is self._file.kept or (found is None and self._file.kept.standing.log == standing.log)

    @property
    def first_waiting(self) -> Position | None:
        """The first event that is noted as not taken yet; None: there is none."""
        kept = self._file.kept
        return Position(kept.waiting[0].position) if kept is not None and kept.waiting else None

    def resume(self, recall: Recall) -> None:
        """Begins to send, first of all what was waiting. What is gone from the log becomes a letter."""
        wanted: dict[str, list[int]] = {}
        for one in self._lacking:
            wanted.setdefault(one.topic, []).append(one.position)
        with self._begun.held() as deliveries:
            if self._lacking:
                assert self._file.kept is not None
                events = sorted(self._outgoing(recall(wanted)), key=lambda one: one.position)
                self._restore(deliveries, self._file.kept, events)
                self._lacking = ()
        self._begun.start()

    def _restore(self, deliveries: Deliveries, kept: KeptDeliveries, found: Sequence[Outgoing]) -> None:
        here = {one.at: one for one in found}
        for lost in [one for one in kept.waiting if (one.topic, one.position) not in here]:
            gone = Outgoing(lost.topic, lost.position, f"{lost.topic}:{lost.position}", f"@{lost.position}", "", b"", GONE)
            here[gone.at] = gone
        deliveries.add(sorted(here.values(), key=lambda one: one.position))
        carried: dict[int, list[Outgoing]] = {}
        for one in kept.waiting:
            carried.setdefault(one.request, []).append(here[one.topic, one.position])
        requests = []
        for number, tried in enumerate(kept.requests):
            events = tuple(carried.get(number, ()))
            if events and all(one.unaddressed is None for one in events):
                requests.append(EventRequest(events, tried.failed, tried.since_s - self._past_s, tried.due_s - self._past_s))
        aside = (((one.table, int(one.position)), one.reason) for one in kept.letters if one.state is LetterState.ASIDE)
        deliveries.restore(requests, aside)

    # --- events ------------------------------------------------------------------------------------------------------------------

    def deliver(self, events: EventBatch, upto: Position) -> Outcome:
        self._file.refuse_others()
        known, handed = set(self._letters.by_id), 0
        behind = int(np.searchsorted(events.positions, self._handed, side="right"))
        for first in range(behind, len(events), STEP):
            self._make_room()
            step = events.slice(first, STEP)
            handed += len(step)
            with self._begun.held() as deliveries:
                deliveries.add(self._outgoing([step]))
                self._handed = Position(int(step.positions[-1]))
            if self._clock.monotonic() - self._saved_at > SAVE_S:
                self._save()
                self._check_letters(known, handed)
        self._begun.wait(lambda deliveries: deliveries.idle(self._clock.monotonic()), PATIENCE_S)
        self._handed = max(self._handed, upto)
        self._save()
        self._check_letters(known, handed)
        return Outcome(handed)

    def commit(self, cut: Cut) -> None:
        crashpoint("webhook.commit")
        self._save(cut)

    def look(self) -> None:
        """Notes what has been taken meanwhile. Raises StoreError while nobody answers, Stopped where nothing more is wanted."""
        self._file.refuse_others()
        self._save()
        self._check_receiver()

    def erase(self) -> None:
        self.close()
        self._courier = None
        self._letters = Letters(self._store)
        self._file.remove()

    def close(self) -> None:
        if self._courier is not None:
            self._courier.stop(self._options.timeout_s + 1.0)
            if self._file.ours and not self._lacking:
                self._save()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    # --- letters -----------------------------------------------------------------------------------------------------------------

    @property
    def letters(self) -> tuple[Letter, ...]:
        if self._courier is None:
            found = self._file.found()
            return () if found is None else found.letters
        return self._letters.all

    def keep(self, letters: Collection[Letter]) -> None:
        """As ``sinks.deadletters.LetterBox.keep``. Nothing is left of one that is accepted."""
        self._file.refuse_others()
        self._letters.add(one for one in letters if one.state is LetterState.ASIDE)
        self.forget([one.id for one in letters if one.state is not LetterState.ASIDE])

    def forget(self, ids: Collection[str]) -> None:
        """Gives their events up, where they were not taken yet: what stands behind them goes on."""
        self._file.refuse_others()
        with self._begun.held() as deliveries:
            for one in ids:
                if (letter := self._letters.by_id.get(one)) is not None:
                    deliveries.drop(letter_at(letter))
        self._letters.remove(ids)
        self._save()

    def again(self, at: At) -> str | None:
        """Sends a letter's event once more, now. Returns why it was not taken; None once it was."""
        self._file.refuse_others()
        with self._begun.held() as deliveries:
            request = deliveries.retried(at)
        if request is None:
            return None
        verdict = self._post(request)
        with self._begun.held() as deliveries:
            deliveries.answered_retried(request, verdict, self._clock.monotonic())
        return None if verdict.fate is RequestFate.TAKEN else verdict.reason

    # --- how ---------------------------------------------------------------------------------------------------------------------

    @property
    def _begun(self) -> Courier:
        if self._courier is None:
            raise StoreError(f"store {self._store} is not open", retryable=True)
        return self._courier

    @property
    def _where(self) -> str:
        return self._options.address.where

    def _post(self, request: EventRequest) -> RequestVerdict:
        receiver = self._receiver
        if receiver is None:
            return silent("the store was closed")
        crashpoint("webhook.send")
        verdict = receiver.post(request)
        crashpoint("webhook.sent")
        return verdict

    def _outgoing(self, events: Iterable[EventBatch]) -> list[Outgoing]:
        address = self._options.address
        found = []
        for one in events:
            for event, queue in zip(one.rows.to_pylist(), queue_names(one).to_pylist(), strict=True):
                target, why = "", None
                try:
                    target = address.target({place: event[place] for place in PLACES})
                except Unaddressed as error:
                    why = str(error)
                body = event["body"] or b""
                headers = tuple(as_headers(event["headers"]).items()) if self._options.batch == 1 else ()
                found.append(Outgoing(event["topic"], event["position"], event["id"], queue, target, body, why, headers))
        return found

    def _make_room(self) -> None:
        """Waits until there is something to do for the threads. Raises StoreError where that does not help."""
        enough = 2 * self._options.in_flight * self._options.batch

        def is_room(deliveries: Deliveries) -> bool:
            return deliveries.fresh < enough and not self._is_full(deliveries)

        def is_over(deliveries: Deliveries) -> bool:
            now = self._clock.monotonic()
            return is_room(deliveries) or (deliveries.idle(now) and not deliveries.asking(now))

        self._begun.wait(is_over, PATIENCE_S)
        self._check_receiver()
        with self._begun.held() as deliveries:
            if is_room(deliveries):
                return
            count, pause_s = len(deliveries), deliveries.health.rests_until - self._clock.monotonic()
        if pause_s > 0:
            raise StoreError(
                f"store {self._store}: {self._where} asks for a pause of {pause_s:.0f} s (Retry-After)",
                retryable=True,
                hint="events go on by themselves",
            )
        raise too_many_wait(self._store, count, self._where)

    def _is_full(self, deliveries: Deliveries) -> bool:
        return len(deliveries) >= WAITING_MAX or deliveries.bytes >= self._options.staged_bytes

    def _check_receiver(self) -> None:
        with self._begun.held() as deliveries:
            health = replace(deliveries.health)
        if health.gone is not None:
            raise Stopped(
                StopState.RECEIVER_GONE,
                f"store {self._store}: {self._where} wants no more events ({health.gone})",
                hint=f"set `url` in stores.{self._store}, or take the store out; then cdc resume {StopState.RECEIVER_GONE}",
            )
        if health.down:
            raise down(self._store, self._where, health.reason.removeprefix("no answer (").removesuffix(")"))

    def _check_letters(self, known: set[str], handed: int) -> None:
        if self._letters.room < 0:
            raise self._letters.too_many()
        fresh = [one.as_outcome() for one in self._letters.all if one.id not in known]
        check_share(self._store, fresh, handed, share_max=SHARE_MAX, rows_min=LETTERS_MIN)

    def _save(self, cut: Cut | None = None) -> None:
        """Notes durably what is here. ``cut``: everything up to there was handed over."""
        self._file.refuse_others()
        known = self._file.kept
        assert known is not None
        standing = replace(known.standing, progress=max(known.standing.progress, self._handed))
        kept = self._as_it_is(standing if cut is None else standing.at(cut))
        if kept != known:
            crashpoint("webhook.save")
            self._file.write(kept)
            crashpoint("webhook.saved")
        self._handed = kept.standing.progress
        self._saved_at = self._clock.monotonic()

    def _as_it_is(self, standing: EventStanding) -> KeptDeliveries:
        past_s = self._past_s
        with self._begun.held() as deliveries:
            requests = deliveries.failing
            carried = {one.at: number for number, request in enumerate(requests) for one in request.events}
            events = sorted((one.at for one in deliveries.events), key=lambda at: at[1])
            self._note_letters(deliveries.letters)
        return KeptDeliveries(
            standing,
            tuple(Waiting(*at, carried.get(at, -1)) for at in events),
            tuple(Tried(one.failed, round(one.since + past_s, 3), round(one.due + past_s, 3)) for one in requests),
            self._letters.all,
        )

    def _note_letters(self, aside: Mapping[At, str]) -> None:
        """Letters of what was set aside since."""
        there = {letter_at(one): one for one in self._letters.all}
        fresh = []
        for at, reason in aside.items():
            known = there.get(at)
            if known is None or known.state is not LetterState.ASIDE:
                fresh.append(Letter(at[0], Position(at[1]), reason, key=letter_id(at), at_s=time.time()))
            elif known.reason != reason:
                fresh.append(replace(known, reason=reason))
        if fresh:
            self._letters.add(fresh)
