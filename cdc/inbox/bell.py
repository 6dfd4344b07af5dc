"""When the log's writer looks into the inbox: now and then, and at once when the inbox's bell has rung, where the system says that something was handed over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from cdc.background import BackgroundPart
from cdc.inbox.folder import FOLDER
from cdc.state.filewatch import Watch

LOOK_S: Final = 0.05
"""How often an empty inbox is looked into."""
LISTENS_S: Final = 0.2
"""How long the bell's end may go unnoticed."""


class InboxLooks:
    """By a clock that is the caller's."""

    def __init__(self) -> None:
        self.rung = threading.Event()
        """Set by whoever knows that something was handed over."""
        self._at = float("-inf")

    def due(self, now: float) -> bool:
        return now >= self._at or self.rung.is_set()

    def looking(self, now: float) -> None:
        """From here on whatever is handed over rings again."""
        self.rung.clear()
        self._at = now + LOOK_S

    def again(self) -> None:
        """There may be more."""
        self._at = float("-inf")


def _nobody() -> None:
    pass


class InboxBell(BackgroundPart):
    """Sets ``rung`` whenever a file comes into the inbox. ``log``: the log's folder, which has an inbox. Ends with ``stop``."""

    def __init__(self, log: Path, rung: threading.Event, stop: threading.Event) -> None:
        super().__init__("inbox-bell", nice=0)
        self._folder = log / FOLDER
        self._rung = rung
        self._stop = stop
        self._wake: Callable[[], None] = _nobody

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Meanwhile it also calls ``wake``, in a thread of its own."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = _nobody

    def _run(self) -> None:
        with closing(Watch(self._folder)) as watch:
            while not watch.blind and not self._stop.is_set():
                if watch.wait(LISTENS_S):
                    self._rung.set()
                    self._wake()
