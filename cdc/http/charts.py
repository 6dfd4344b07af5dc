"""The page's charts: the last minutes, a sample for each report, and the last day."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cdc.http.past import Past, save
from cdc.report.shape import Report

HISTORY_SAMPLES: Final = 310
"""The page draws five minutes of averages over ten seconds."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of the charts. The page draws the differences of the counters."""

    at: float
    position: int
    stores: dict[str, tuple[int, float | None, int | None]]
    """store → (written, lag in seconds, lag in changes)"""

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "position": self.position,
            "stores": {name: {"written": w, "lag_s": s, "lag_changes": c} for name, (w, s, c) in self.stores.items()},
        }


def sample_of(report: Report) -> Sample:
    return Sample(
        at=report.at,
        position=report.log.position,
        stores={
            follower.store: (
                follower.written,
                None if follower.lag is None else follower.lag.seconds,
                None if follower.lag is None else follower.lag.changes,
            )
            for follower in report.followers
        },
    )


class Charts:
    """Takes each report in. ``keep``: the folder in which the last day is kept over a restart."""

    def __init__(self, keep: Path | None) -> None:
        self.past = Past()
        self._keep = keep
        self._history: deque[Sample] = deque(maxlen=HISTORY_SAMPLES)
        if keep is not None:
            self.past.load(keep)

    def take(self, report: Report) -> Callable[[], None] | None:
        """Returns what has to be saved, when something has: it waits for the disk."""
        if self._history and self._history[-1].at > report.at:
            self._history.clear()  # the clock was set back
        self._history.append(sample_of(report))
        if self.past.take(report) and self._keep is not None:
            return partial(_save, self._keep, self.past.to_json())
        return None

    def history_json(self) -> list[dict[str, Any]]:
        return [sample.to_json() for sample in self._history]


def _save(folder: Path, past: dict[str, Any]) -> None:
    with suppress(OSError):  # a full disk has a line of its own in the report
        save(folder, past)
