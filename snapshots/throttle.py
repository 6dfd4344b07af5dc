"""How fast the snapshot may read, and when it has to wait for the stream. The rules are pure; the clock is passed in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

_LEAST_BUDGET: Final = 0.2
"""Below this share of ``max_slot_wal_keep_size`` left, the stream alone gets what the server can do."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """The server's facts about the slot. Bytes."""

    lag: int
    """WAL that the log does not have yet."""
    safe: int | None
    """WAL that can still be written before the slot is lost; None: no limit is set."""
    budget: int | None
    """``max_slot_wal_keep_size``; None: unlimited."""


def reason_to_pause(slot: SlotState, most_lag: int, *, paused: bool) -> str | None:
    """Why nothing more should be read now; None: go on. A pause ends at half the lag that began it."""
    if slot.safe is not None and slot.budget and slot.safe < slot.budget * _LEAST_BUDGET:
        return f"only {slot.safe >> 20} MB of the slot's WAL budget of {slot.budget >> 20} MB are left"
    if slot.lag > (most_lag // 2 if paused else most_lag):
        return f"the log is {slot.lag >> 20} MB of WAL behind the server"
    return None


class Throttle:
    """Shared by the workers. ``rows_per_s`` None: as fast as it goes."""

    def __init__(self, rows_per_s: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._lock = Lock()
        self._paid_until = clock()
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the snapshot stands still; None while it goes on."""
        return self._reason

    def pause(self, reason: str | None) -> None:
        """None: go on."""
        self._reason = reason

    def owed_s(self, rows: int) -> float:
        """Takes so many rows out of the bucket, which holds one second's; returns how long to wait before the next."""
        if self._rows_per_s is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._paid_until = max(self._paid_until, now - 1.0) + rows / self._rows_per_s
            return max(0.0, self._paid_until - now)
