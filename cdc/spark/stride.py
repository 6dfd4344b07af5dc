"""How many rows a store takes between two commits, so that it commits every few seconds whatever its pace. Pure.

A load shows how far it has come, and is stopped or begins again after an accident, only at its commits. How long one takes is the store's and
the machine's affair: so the next one's size follows from what the last ones took.
"""

from __future__ import annotations

from typing import Final

GOAL_S: Final = 3.0
COMMIT_TIMES: Final = 25.0
"""… unless committing itself takes long: then so many times what that took, so that it costs a twenty-fifth of the time."""
START_ROWS: Final = 2_000
"""Something shows at once, also in a store whose pace nobody knows yet."""
LEAST_ROWS: Final = 100
GROWTH: Final = 4.0
"""The first rows tell little of the pace: tables are made, code is loaded. So a step is never longer than so many times the one before."""


class Stride:
    """``rows``: how many to take now. ``most_rows``: never more."""

    def __init__(self, most_rows: int) -> None:
        self._most = most_rows
        self.rows = min(START_ROWS, most_rows)

    def took(self, rows: int, apply_s: float, commit_s: float) -> None:
        """So many rows were written and committed. What is far from a full step, as live changes are, says nothing of one."""
        if 2 * rows < self.rows:
            return
        goal_s = max(GOAL_S, COMMIT_TIMES * commit_s)
        wanted = rows * (goal_s - commit_s) / max(apply_s, 1e-3)
        self.rows = min(self._most, max(LEAST_ROWS, int(min(wanted, self.rows * GROWTH))))

    def failed(self) -> None:
        """A step did not succeed. A store that is too slow for it within its own limit on time gets a smaller one, until it can."""
        self.rows = min(self._most, max(LEAST_ROWS, self.rows // 2))


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
