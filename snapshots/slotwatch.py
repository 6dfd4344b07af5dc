"""Looks at the slot now and then: the snapshot pauses while the stream needs all that the server can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from snapshots.queries import SlotNow
from snapshots.steps import Steps
from snapshots.throttle import SlotState, Throttle, reason_to_pause

_EVERY_S: Final = 1.0

log = structlog.get_logger("snapshot")


class SlotWatch:
    """``most_lag``: bytes of WAL that the log may be behind."""

    def __init__(self, slot: str, most_lag: int, throttle: Throttle, clock: Callable[[], float]) -> None:
        self._slot = slot
        self._most_lag = most_lag
        self._throttle = throttle
        self._clock = clock
        self._looked_at = float("-inf")

    def look(self) -> Steps[None]:
        """Pauses the workers, or lets them go on, if it is time for a look."""
        if self._clock() - self._looked_at < _EVERY_S:
            return
        self._looked_at = self._clock()
        slot: SlotState | None = yield SlotNow(self._slot)
        if slot is None:
            return
        before = self._throttle.reason
        why = reason_to_pause(slot, self._most_lag, paused=before is not None)
        if why is not None and before is None:
            log.warning("the snapshot pauses", reason=why)
        elif why is None and before is not None:
            log.info("the snapshot goes on")
        self._throttle.pause(why)
