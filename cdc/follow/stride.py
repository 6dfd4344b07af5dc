"""How many rows a store takes between two commits, so that it commits every few seconds whatever its pace. Pure.

A load shows how far it has come, and is stopped or begins again after an accident, only at its commits. How long one takes is the store's and
the machine's affair: so the next one's size follows from what the last ones took.
"""

from __future__ import annotations

from typing import Final

GOAL_S: Final = 6.0
"""Each step ends with a moment in which the store has nothing to do: of a search index's backlog steps of 3 s cost a twentieth."""
COMMIT_TIMES: Final = 25.0
"""… unless committing itself takes long: then so many times what that took, so that it costs a twenty-fifth of the time."""
START_ROWS: Final = 2_000
"""Something shows at once, also in a store whose pace nobody knows yet."""
LEAST_ROWS: Final = 100
GROWTH: Final = 64.0
"""A step is never longer than so many times the one before …"""
DOUBT: Final = 4.0
"""… nor than so many times what the last step's own pace allows: what a step costs however small it is, is guessed from two measurements."""


class Stride:
    """``rows``: how many to take now. ``most_rows``: never more."""

    def __init__(self, most_rows: int) -> None:
        self._most = most_rows
        self._before: tuple[int, float] | None = None
        self.rows = min(START_ROWS, most_rows)

    def took(self, rows: int, apply_s: float, commit_s: float) -> None:
        """Learns from rows that were written and committed. Far fewer than a full step, as with live changes, say nothing of one."""
        if 2 * rows < min(self.rows, START_ROWS):
            return
        left_s = max(GOAL_S, COMMIT_TIMES * commit_s) - commit_s
        even = rows * left_s / max(apply_s, 1e-3)
        wanted = max(even, min(self._without_fixed(rows, apply_s, left_s), DOUBT * even))
        self._before = rows, apply_s
        if 2 * rows < self.rows and wanted < self.rows:
            return
        self.rows = min(self._most, max(LEAST_ROWS, int(min(wanted, self.rows * GROWTH))))

    def _without_fixed(self, rows: int, apply_s: float, left_s: float) -> float:
        """How many rows fit when only what each of them adds grows with their number; 0 where nothing is known of that."""
        before, before_s = self._before or (rows, apply_s)
        if rows < 2 * before or apply_s > left_s:
            return 0.0
        each_s = (apply_s - before_s) / (rows - before)
        return rows + (left_s - apply_s) / each_s if each_s > 0 else DOUBT * rows * left_s / max(apply_s, 1e-3)

    def failed(self) -> None:
        """A step did not succeed. A store that is too slow for it within its own limit on time gets a smaller one, until it can."""
        self.rows = min(self._most, max(LEAST_ROWS, self.rows // 2))
