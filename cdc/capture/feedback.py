"""Feedback to the walsender: only LSNs that the log's fsync has covered. Pure."""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import Final

from cdc.capture.messages import POSTGRES_EPOCH_US

_STATUS: Final = struct.Struct("!cQQQqB")


def standby_status(durable_lsn: int, now_us: int, *, inquires: bool = False) -> bytes:
    """A Standby Status Update (manual, "Streaming Replication Protocol"): written, flushed and applied are the same here.

    now_us: microseconds since 1970-01-01 UTC. inquires: the server is to answer at once.
    """
    return _STATUS.pack(b"r", durable_lsn, durable_lsn, durable_lsn, now_us - POSTGRES_EPOCH_US, inquires)


class Feedback:
    """When to say what. The LSN never goes back."""

    def __init__(self, durable_lsn: int, *, interval_s: float = 1.0, min_interval_s: float = 0.05) -> None:
        self.durable_lsn = durable_lsn
        self._interval_s = interval_s
        self._min_interval_s = min_interval_s
        self._said = -1
        self._said_at = float("-inf")
        self._asked = False
        self.inquires = False
        """The next status asks the server for an answer."""

    def confirm(self, lsn: int) -> None:
        """Everything that ends at or before ``lsn`` is durable."""
        self.durable_lsn = max(self.durable_lsn, lsn)

    def ask(self) -> None:
        """The server wants an answer now."""
        self._asked = True

    def inquire(self) -> None:
        """We want an answer now."""
        self._asked = self.inquires = True

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next status is due (0: now). ``now_s`` is a monotonic clock."""
        if self._asked:
            return 0.0
        interval = self._min_interval_s if self.durable_lsn > self._said else self._interval_s
        return max(0.0, self._said_at + interval - now_s)

    def said(self, lsn: int, now_s: float) -> None:
        self._said, self._said_at = lsn, now_s
        self._asked = self.inquires = False


class Quiet(Enum):
    """The steps to take with a server that says nothing."""

    WAIT = auto()
    ASK = auto()
    DEAD = auto()


class Silence:
    """One silence, from the moment at which the server was last heard. ``now_s`` is a monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._asked_at_s: float | None = None

    def step(self, now_s: float, limit_s: float) -> Quiet:
        """Asks once after half the limit. Dead is only who has been asked, half the limit ago: we ourselves may have been stopped."""
        if self._asked_at_s is not None:
            return Quiet.DEAD if now_s - self._asked_at_s >= limit_s / 2 else Quiet.WAIT
        if now_s - self._since_s < limit_s / 2:
            return Quiet.WAIT
        self._asked_at_s = now_s
        return Quiet.ASK
