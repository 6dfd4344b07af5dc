"""The clock of a run: it goes on from step to step, and nobody waits by it."""

from __future__ import annotations

from threading import Event


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def worked(self) -> float:
        return self.now

    def wait(self, stop: Event, seconds: float) -> bool:  # noqa: ARG002
        return stop.is_set()
