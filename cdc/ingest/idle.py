"""How far the source has come by what is not ours, and whether that is worth an empty group by now: only then can it be confirmed and its WAL freed."""

from __future__ import annotations

from typing import Final

IDLE_RECORD_S: Final = 10.0
"""How often the position of a database without changes of ours is recorded …"""
IDLE_RECORD_BYTES: Final = 16 * 2**20
"""… or after this much WAL (one WAL file)."""


class Idle:
    """Measures by the clock whose ``monotonic`` is given as ``now``."""

    def __init__(self, now: float) -> None:
        self._recorded_at = now
        self._unrecorded = 0

    def passed(self, lsn: int) -> None:
        """The source has come this far without a change of ours behind the log's head."""
        self._unrecorded = max(self._unrecorded, lsn)

    def recorded(self, now: float) -> None:
        """A group has become durable."""
        self._recorded_at = now

    def due(self, durable_lsn: int, now: float, *, force: bool) -> int | None:
        """The LSN to record now. force: however little it is ahead."""
        ahead = self._unrecorded - durable_lsn
        if ahead <= 0:
            return None
        if force or ahead >= IDLE_RECORD_BYTES or now - self._recorded_at >= IDLE_RECORD_S:
            return self._unrecorded
        return None
