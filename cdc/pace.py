"""How long to rest after a little work, so that what one group costs is shared by more changes (pure); and how slow this machine is now.

Under small steady traffic nearly all of a group's cost is that of a group, however few changes are in it. Whoever has just done one rests for a
multiple of what it took, so its share of a core is bounded whatever the rate. A change that comes alone finds nobody resting and never waits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

SLOWEST: Final = 20.0
"""Beyond this nobody waits longer: something may hang after all."""


@dataclass(frozen=True, slots=True)
class Pace:
    """``times``: a rest is so many times what the work before it took."""

    times: float
    most_s: float
    """A rest is never longer than this …"""
    interval_s: float = 0.0
    """… but two groups never begin closer together than this."""

    def rest_s(self, took_s: float) -> float:
        """After work that took so long."""
        return max(min(self.times * took_s, self.most_s), self.interval_s - took_s)


def slowness() -> float:
    """How many times longer than usual work takes here now: 1 while every runnable process has a core, at most ``SLOWEST``.

    For limits on time that say "it hangs": what is only slow, because others want the cores too, must not be taken for dead.
    """
    try:
        waiting = os.getloadavg()[0]
    except OSError:
        return 1.0
    return min(SLOWEST, max(1.0, waiting / (os.cpu_count() or 1)))


class Rate:
    """Rows per second over the last few commits: at least over ``WINDOW_S``, however far apart they come."""

    WINDOW_S: Final = 10.0

    def __init__(self, now: float) -> None:
        self._seen: list[tuple[float, int]] = [(now, 0)]

    def per_s(self, rows: int, now: float) -> float:
        """``rows``: all since the beginning."""
        if rows != self._seen[-1][1]:
            self._seen.append((now, rows))
        while len(self._seen) > 1 and now - self._seen[1][0] >= self.WINDOW_S:
            del self._seen[0]
        began, before = self._seen[0]
        return round((rows - before) / max(now - began, 1.0), 1)
