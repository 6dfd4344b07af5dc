"""What we tell the walsender: only LSNs that the log's fsync has covered. Pure."""

from __future__ import annotations

import struct
from typing import Final

from cdc.capture.messages import POSTGRES_EPOCH_US

_STATUS: Final = struct.Struct("!cQQQqB")


def standby_status(durable_lsn: int, now_us: int) -> bytes:
    """A Standby Status Update (manual, "Streaming Replication Protocol"): written, flushed and applied are the same here.

    now_us: microseconds since 1970-01-01 UTC.
    """
    return _STATUS.pack(b"r", durable_lsn, durable_lsn, durable_lsn, now_us - POSTGRES_EPOCH_US, 0)


class Feedback:
    """When to say what. The LSN never goes back."""

    def __init__(self, durable_lsn: int, *, interval_s: float = 1.0, min_interval_s: float = 0.05) -> None:
        self.durable_lsn = durable_lsn
        self._interval_s = interval_s
        self._min_interval_s = min_interval_s
        self._said = -1
        self._said_at = float("-inf")
        self._asked = False

    def confirm(self, lsn: int) -> None:
        """Everything that ends at or before ``lsn`` is durable."""
        self.durable_lsn = max(self.durable_lsn, lsn)

    def ask(self) -> None:
        """The server wants an answer now."""
        self._asked = True

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next status is due (0: now). ``now_s`` is a monotonic clock."""
        if self._asked:
            return 0.0
        interval = self._min_interval_s if self.durable_lsn > self._said else self._interval_s
        return max(0.0, self._said_at + interval - now_s)

    def said(self, lsn: int, now_s: float) -> None:
        self._said, self._said_at, self._asked = lsn, now_s, False
