"""``/v1/wait``'s waiting: it ends with the client's connection, so that nobody can leave waits behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import BoundedSemaphore, Event
from typing import Final

from cdc.client import wait as waiting
from cdc.client.wait import Waited
from cdc.clock import MACHINE, Clock
from cdc.errors import WaitTimeout
from cdc.log.contract import LogReader
from cdc.model.position import Lsn, format_lsn
from cdc.settings.models import Settings

LOOK_S: Final = 0.5
"""How long a wait may go on without a look at whether anybody is still there."""


SOURCE_CONNECTIONS: Final = 4
"""How many of the waits may ask the source at the same moment. The role has few connections, and capture needs some of them to connect again."""
_asking: Final = BoundedSemaphore(SOURCE_CONNECTIONS)


class Waits:
    """All that are under way. ``end`` may be called from any thread, all else lives on the event loop's."""

    def __init__(self) -> None:
        self.ended = False
        self._under_way: set[Event] = set()

    @contextmanager
    def one(self) -> Iterator[Event]:
        """One more: it has to end when the event is set."""
        gone = Event()
        self._under_way.add(gone)
        if self.ended:
            gone.set()
        try:
            yield gone
        finally:
            gone.set()
            self._under_way.discard(gone)

    def end(self) -> None:
        """The server is to end."""
        self.ended = True
        for gone in list(self._under_way):
            gone.set()


def wait_while_asked(
    settings: Settings, reader: LogReader, store: str, lsn: Lsn | None, timeout_s: float, gone: Event, clock: Clock = MACHINE
) -> Waited:
    """As ``cdc.client.wait.wait``, but until ``gone`` is set at most: it then raises WaitTimeout."""
    began = clock.monotonic()
    dsn = settings.source.dsn.get_secret_value()
    if lsn is None:
        with _turn(store, began + timeout_s, gone, clock):
            wanted = waiting.current_lsn(dsn)
    else:
        wanted = lsn
    nudged = lsn is not None
    while True:
        left_s = timeout_s - (clock.monotonic() - began)
        try:
            waited = waiting.wait(
                settings,
                reader,
                store,
                lsn=wanted,
                timeout_s=max(0.0, min(left_s, LOOK_S if nudged else waiting.NUDGE_AFTER_S)),
                clock=clock,
            )
        except WaitTimeout as late:
            if gone.is_set() or clock.monotonic() - began >= timeout_s:
                _, _, why = str(late).partition(" s: ")
                raise WaitTimeout(
                    f"{store} does not show {format_lsn(wanted)} after {timeout_s:g} s: {why}", hint=late.hint
                ) from None
        else:
            return replace(waited, seconds=clock.monotonic() - began)
        # While others ask, the store may get there, and what moves the stream for one moves it for all.
        if not nudged and _asking.acquire(blocking=False):
            try:
                waiting.nudge(dsn)
            finally:
                _asking.release()
            nudged = True


@contextmanager
def _turn(store: str, deadline: float, gone: Event, clock: Clock) -> Iterator[None]:
    """One of the few connections to the source. Raises WaitTimeout when none is free until the deadline (by the clock), or nobody
    waits any more."""
    while not _asking.acquire(timeout=min(LOOK_S, max(0.0, deadline - clock.monotonic()))):
        if gone.is_set() or clock.monotonic() >= deadline:
            raise WaitTimeout(
                f"{store} was not waited for: the source is being asked for {SOURCE_CONNECTIONS} others",
                hint="give an lsn, or wait longer",
            )
    try:
        yield
    finally:
        _asking.release()
