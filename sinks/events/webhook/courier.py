"""The threads that carry requests to the receiver, and whoever waits for them. What goes when is decided in ``deliveries``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cdc.clock import MACHINE, Clock
from sinks.events.webhook.deliveries import Deliveries, EventRequest
from sinks.events.webhook.verdict import RequestVerdict, silent


class Courier:
    """Thread-safe. ``deliveries`` is touched only inside ``held``."""

    def __init__(
        self,
        name: str,
        deliveries: Deliveries,
        post: Callable[[EventRequest], RequestVerdict],
        in_flight: int,
        clock: Clock = MACHINE,
    ) -> None:
        """``post``: one attempt, which takes its time."""
        self.deliveries = deliveries
        self._name = name
        self._post = post
        self._in_flight = in_flight
        self._clock = clock
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Something may go."""
        self._news = threading.Condition(self._lock)
        """Something was answered."""
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._stopping = True
        self._broken: BaseException | None = None

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    @contextmanager
    def held(self) -> Iterator[Deliveries]:
        """Nothing else happens to them inside."""
        with self._lock:
            yield self.deliveries
            self._wake()

    def wait(self, until: Callable[[Deliveries], bool], timeout_s: float) -> bool:
        """Whether this is so, at the latest after a while. Raises what has ended a thread."""
        end = self.now + timeout_s
        with self._lock:
            while not until(self.deliveries):
                if self._broken is not None:
                    raise self._broken
                left = end - self.now
                if left <= 0:
                    return False
                self._news.wait(left)
            return True

    def start(self) -> None:
        with self._lock:
            self._stopping, self._broken = False, None
            self._wake()

    def stop(self, timeout_s: float) -> None:
        """Lets the requests that are under way end, but for so long only: later they change nothing but what is known here."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            threads, self._threads = self._threads, []
        end = self.now + timeout_s
        for one in threads:
            one.join(max(0.0, end - self.now))

    def _wake(self) -> None:
        """One more thread for what could go now; it wakes the next one."""
        if self._stopping or self.deliveries.next_at(self.now) is None:
            return
        if self._idle:
            self._work.notify()
        elif len(self._threads) < self._in_flight:
            one = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(one)
            one.start()

    def _run(self) -> None:
        while (request := self._taken()) is not None:
            verdict, broken = silent("the attempt broke off"), None
            try:
                verdict = self._post(request)
            except BaseException as error:  # whoever waits raises it
                broken = error
            with self._lock:
                self._broken = self._broken or broken
                self.deliveries.answered(request, verdict, self.now)
                self._news.notify_all()

    def _taken(self) -> EventRequest | None:
        """The next request, for which it waits; None once it is to stop."""
        with self._lock:
            while not self._stopping and threading.current_thread() in self._threads:
                request = self.deliveries.next(self.now)
                if request is not None:
                    self._wake()
                    return request
                at = self.deliveries.next_at(self.now)
                self._idle += 1
                try:
                    self._work.wait(None if at is None else max(0.0, at - self.now))
                finally:
                    self._idle -= 1
            return None
