"""The report, taken at most once a second however many ask, its recent past, and the stream of both to browsers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cdc.errors import HeadwaterError
from cdc.http.charts import Charts
from cdc.report.shape import Report

_log = structlog.get_logger("http")

PERIOD_S: Final = 1.0
UNSEEN_PERIOD_S: Final = 5.0
"""While no page is open: for the charts, whose points are averages over ten seconds, and for the last day."""
MAX_READERS: Final = 64
"""Each open page holds one connection; more than this are asked to come again later."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The report could not be made: the log itself cannot be read."""

    error: str
    hint: str | None

    def to_json(self) -> dict[str, Any]:
        return {"error": self.error, "hint": self.hint}


class Readers:
    """Those who read the stream now."""

    def __init__(self) -> None:
        self.count = 0
        self._some = asyncio.Event()

    def enter(self) -> bool:
        """Counts one more, who has to ``leave``; False when there are too many."""
        if self.count >= MAX_READERS:
            return False
        self.count += 1
        self._some.set()
        return True

    def leave(self) -> None:
        self.count -= 1
        if not self.count:
            self._some.clear()

    async def some(self, timeout_s: float) -> None:
        """Returns once there are some, or when the time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._some.wait(), timeout_s)


class Feed:
    """Takes the report once a second while ``run`` runs and somebody reads, less often while nobody does. Everything here lives on one event loop; ``take`` runs in a thread."""

    def __init__(self, take: Callable[[], Report], keep: Path | None = None) -> None:
        """``keep``: the folder in which the last day is kept over a restart."""
        self.readers = Readers()
        self._take = take
        self.charts = Charts(keep)
        self._latest: Report | Failure | None = None
        self._taken_at = float("-inf")
        self._version = 0
        self._changed = asyncio.Condition()
        self._taking = asyncio.Lock()
        self._ending = False
        self._event: tuple[Report | Failure, bytes] | None = None
        self._unforeseen: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            started = time.monotonic()
            await self.latest(max_age_s=PERIOD_S / 2)
            await asyncio.sleep(max(0.05, PERIOD_S - (time.monotonic() - started)))
            await self.readers.some(UNSEEN_PERIOD_S - PERIOD_S)

    async def latest(self, max_age_s: float = PERIOD_S) -> Report | Failure:
        """The report, not older than that. Many askers at once share one look."""
        async with self._taking:
            if self._latest is not None and time.monotonic() - self._taken_at <= max_age_s:
                return self._latest
            latest = await self._taken()
            self._latest, self._taken_at = latest, time.monotonic()
        async with self._changed:
            self._version += 1
            self._changed.notify_all()
        return latest

    async def _taken(self) -> Report | Failure:
        """The report, which is part of the past then; whatever goes wrong, the page lives on and says so."""
        try:
            report = await run_in_threadpool(self._take)
            if (save := self.charts.take(report)) is not None:
                await run_in_threadpool(save)
        except HeadwaterError as error:
            return Failure(str(error), error.hint)
        except Exception as error:
            kind = type(error).__name__
            if kind != self._unforeseen:  # not each second
                self._unforeseen = kind
                _log.exception("the report cannot be made")
            return Failure(f"the report cannot be made: unexpected {kind}", "the log of cdc run shows where")
        self._unforeseen = None
        return report

    def end(self) -> None:
        """Ends every stream with the next report, so that the server can end. May be called from any thread."""
        self._ending = True

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events: ``history`` and ``past`` once, then ``status`` for every new report (``failure`` when there is none).

        A reader that is slow skips reports; none are kept for it.
        """
        latest = await self.latest()
        yield _event("history", self.charts.history_json())
        yield _event("past", self.charts.past.to_json())
        while not self._ending:
            seen = self._version
            yield self._encoded(latest)
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != seen)  # noqa: B023 (awaited here)
            assert self._latest is not None
            latest = self._latest

    def _encoded(self, latest: Report | Failure) -> bytes:
        """Once for all readers."""
        if self._event is None or self._event[0] is not latest:
            self._event = latest, _event("failure" if isinstance(latest, Failure) else "status", latest.to_json())
        return self._event[1]


class EventStream(StreamingResponse):
    """The stream as an answer to a reader that has entered."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed.stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.readers.leave()


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
