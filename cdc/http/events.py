"""The report, taken at most once a second however many ask, its recent past, and the stream of both to browsers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
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
from cdc.http.past import Past, save
from cdc.report.shape import Report

_log = structlog.get_logger("http")

PERIOD_S: Final = 1.0
UNSEEN_PERIOD_S: Final = 5.0
"""While no page is open: for the charts, whose points are averages over ten seconds, and for the last day."""
HISTORY_SAMPLES: Final = 310
"""The page draws five minutes of averages over ten seconds."""
MAX_READERS: Final = 64
"""Each open page holds one connection; more than this are asked to come again later."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The report could not be made: the log itself cannot be read."""

    error: str
    hint: str | None

    def to_json(self) -> dict[str, Any]:
        return {"error": self.error, "hint": self.hint}


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


class Feed:
    """Takes the report once a second while ``run`` runs and somebody reads, less often while nobody does. Everything here lives on one event loop; ``take`` runs in a thread."""

    def __init__(self, take: Callable[[], Report], keep: Path | None = None) -> None:
        """``keep``: the folder in which the last day is kept over a restart."""
        self._take = take
        self._keep = keep
        self._past = Past()
        if keep is not None:
            self._past.load(keep)
        self._latest: Report | Failure | None = None
        self._taken_at = float("-inf")
        self._version = 0
        self._changed = asyncio.Condition()
        self._taking = asyncio.Lock()
        self._history: deque[Sample] = deque(maxlen=HISTORY_SAMPLES)
        self._readers = 0
        self._seen = asyncio.Event()
        """There are readers."""
        self._ending = False
        self._event: tuple[Report | Failure, bytes] | None = None
        self._unforeseen: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            started = time.monotonic()
            await self.latest(max_age_s=PERIOD_S / 2)
            await asyncio.sleep(max(0.05, PERIOD_S - (time.monotonic() - started)))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._seen.wait(), UNSEEN_PERIOD_S - PERIOD_S)

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
            if self._history and self._history[-1].at > report.at:
                self._history.clear()  # the clock was set back
            self._history.append(sample_of(report))
            if self._past.take(report) and self._keep is not None:
                await run_in_threadpool(_save, self._keep, self._past.to_json())
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

    def enter(self) -> bool:
        """Counts one more reader of ``stream``, who has to ``leave``; False when there are too many."""
        if self._readers >= MAX_READERS:
            return False
        self._readers += 1
        self._seen.set()
        return True

    def leave(self) -> None:
        self._readers -= 1
        if not self._readers:
            self._seen.clear()

    def end(self) -> None:
        """Ends every stream with the next report, so that the server can end. May be called from any thread."""
        self._ending = True

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events: ``history`` and ``past`` once, then ``status`` for every new report (``failure`` when there is none).

        A reader that is slow skips reports; none are kept for it.
        """
        latest = await self.latest()
        yield _event("history", [sample.to_json() for sample in self._history])
        yield _event("past", self._past.to_json())
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
            self._feed.leave()


def _save(folder: Path, past: dict[str, Any]) -> None:
    with suppress(OSError):  # a full disk has a line of its own in the report
        save(folder, past)


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
