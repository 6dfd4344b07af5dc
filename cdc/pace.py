"""How long to rest after a little work, so that what one group costs is shared by more changes. Pure.

Under small steady traffic nearly all of a group's cost is that of a group, however few changes are in it. Whoever has just done one rests for a
multiple of what it took, so its share of a core is bounded whatever the rate. A change that comes alone finds nobody resting and never waits.
"""

from __future__ import annotations

from dataclasses import dataclass


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
