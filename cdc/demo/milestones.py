"""When the demo had something to show: its page, and the first rows of each store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Milestones:
    """Made when the command begins. ``page_s``: seconds from then until the page answered, None while it does not.

    ``first_rows_s``: store → seconds from the end of the set-up (servers run, the database is filled) until its follower had written rows.
    """

    clock: Callable[[], float] = time.monotonic
    page_s: float | None = None
    first_rows_s: dict[str, float] = field(default_factory=dict)
    _began: float = field(init=False)
    _set_up_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._set_up_at = self.clock()

    def set_up(self) -> None:
        """The daemon is about to start."""
        self._set_up_at = self.clock()

    def look(self, report: dict[str, Any]) -> None:
        """Takes the daemon's report (``/v1/status``), each time that it was asked for."""
        now = self.clock()
        if self.page_s is None:
            self.page_s = now - self._began
        for follower in report["followers"]:
            if follower["written"]:
                self.first_rows_s.setdefault(follower["store"], now - self._set_up_at)
