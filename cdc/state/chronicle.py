"""The parts' states in the daemon's log: one line each time a store's or capture's state, or the reason for it, changes. Pure.

A part that changes its mind quickly is looked at again a second later, so that nobody's log fills with it; what it says then is how it is then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cdc.state.status import CaptureStatus, FollowerStatus

LOADING_ROWS: Final = 5_000
"""A store that lacks this many changes is loading, or catching up; one that lacks fewer is merely behind."""
INTERVAL_S: Final = 1.0
_STORE_HELP: Final = "see whether the store is up"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log. ``facts``: what the words say, for machines."""

    words: str
    level: Literal["info", "warning", "error"] = "info"
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Loading:
    """A store's work since it was found far behind."""

    since: float
    rows_before: int
    first: bool
    """It began with nothing."""

    def line(self, status: FollowerStatus, now: float) -> Line:
        rows, seconds = status.written + status.stale - self.rows_before, now - self.since
        per_s = rows / max(seconds, 1e-3)
        words = f"{'loaded' if self.first else 'caught up'}: {_rows(rows, 'change')} in {_span(seconds)} ({per_s:,.0f}/s)"
        return Line(words, facts={"changes": rows, "seconds": round(seconds, 1), "per_s": round(per_s)})


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of changes that a store lacked when last counted; it may have written some of them since."""

    missing: int
    """Changes that it had yet to take, those of its tables that the snapshot had yet to read among them."""
    rows: int
    """Written until then, or passed over."""
    empty: bool
    """It held nothing."""


class StoreChronicle:
    """One store's lines. ``look`` it at each turn; time is monotonic, in seconds."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._said = ("starting", "")
        self._said_at = float("-inf")
        self._opened = False
        self._trouble_since: float | None = None
        self._loading: _Loading | None = None

    def look(self, status: FollowerStatus, counted: Counted, now: float) -> Line | None:
        if now - self._said_at < INTERVAL_S and status.state not in ("stopped", "exited"):
            return None
        line = self._line(status, counted, now)
        if line is not None:
            self._said_at = now
            line = Line(line.words, line.level, {"store": self._store, "state": status.state, **line.facts})
        return line

    def _line(self, status: FollowerStatus, counted: Counted, now: float) -> Line | None:
        key = (status.state, without_figures(status.error or ""))
        if key == self._said:
            return self._progress(status, counted, now) if status.state == "following" and status.error is None else None
        self._said = key
        if status.state == "following" and status.error is None:
            return self._following(status, counted, now)
        if status.state == "exited":
            return Line("closed", facts={"position": status.position})
        if status.state == "starting" and status.error is None:
            return None
        if status.state == "rebuilding":
            return Line("is built from the log")
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        return self._trouble(status)

    def _trouble(self, status: FollowerStatus) -> Line:
        why = status.error or "it does not say why"
        if status.state == "stopped":
            resume = f"cdc resume {status.stop}:follow-{self._store}"
            words = why if "cdc resume" in why else f"{why}; then {resume}" if " → " in why else f"{why} → {resume}"
            shown = words if words.startswith(f"{status.stop}: ") else f"{status.stop}: {words}"
            return Line(f"stopped: {shown}", "error", {"stop": status.stop, "why": why, "resume": resume})
        if status.state == "waiting":
            return Line(f"waits: {why if ' → ' in why else f'{why} → {_STORE_HELP}'}", "warning", {"why": why})
        return Line(why, "warning", {"why": why})

    def _following(self, status: FollowerStatus, counted: Counted, now: float) -> Line:
        since, self._trouble_since = self._trouble_since, None
        if not self._opened:
            self._opened = True
            late = "" if since is None else f" after {_span(now - since)}"
            words, facts = self._begin(status, counted, now)
            return Line(f"opened{late}; {words}", facts=facts)
        left = f", {_rows(counted.missing, 'change')} left" if self._loading is not None else ""
        if since is None:
            return Line(f"follows again{left}")
        return Line(f"follows again after {_span(now - since)}{left}", facts={"after_s": round(now - since, 1)})

    def _progress(self, status: FollowerStatus, counted: Counted, now: float) -> Line | None:
        """The line about a store that follows as it did when it was last looked at."""
        if self._loading is None:
            if counted.missing < LOADING_ROWS:
                return None
            words, facts = self._begin(status, counted, now)
            return Line(words, facts=facts)
        if counted.missing >= LOADING_ROWS:
            return None
        loading, self._loading = self._loading, None
        return loading.line(status, now)

    def _begin(self, status: FollowerStatus, counted: Counted, now: float) -> tuple[str, Mapping[str, object]]:
        missing = counted.missing
        if missing < LOADING_ROWS:
            return "follows", {"position": status.position}
        self._loading = _Loading(now, counted.rows, counted.empty)
        return f"{'loads' if counted.empty else 'catches up'}: {_rows(missing, 'change')} to write", {"changes": missing}


class CaptureChronicle:
    """Capture's lines: that it reads tables, and has read them. Why a stream broke, or capture stopped, is said where it happens."""

    def __init__(self) -> None:
        self._state = "starting"
        self._reading_since: float | None = None
        self._read_before = 0

    def look(self, status: CaptureStatus, now: float) -> Line | None:
        before, self._state = self._state, status.state
        if status.state == "snapshot" and self._reading_since is None:
            left = [entry for entry in status.snapshot if not entry.finished]
            if not left:
                self._state = before  # which tables there are is found out in a moment
                return None
            rows = sum(max(entry.total - entry.done, 0) for entry in left)
            self._reading_since, self._read_before = now, _done(status)
            words = f"reads {_rows(len(left), 'table')}: about {_rows(rows, 'row')}, while changes are streamed"
            return Line(words, facts={"tables": len(left), "rows": rows})
        if status.state == before:
            return None
        if status.state == "streaming" and self._reading_since is not None:
            rows, seconds = _done(status) - self._read_before, now - self._reading_since
            self._reading_since = None
            words = f"every table is in the log after {_span(seconds)} ({rows / max(seconds, 1e-3):,.0f} rows/s); streams"
            return Line(words, facts={"rows": rows, "seconds": round(seconds, 1)})
        return None


def without_figures(text: str) -> str:
    """The text without its digits: ports, sizes and seconds in a reason change at each attempt, the reason does not."""
    return "".join(letter for letter in text if not letter.isdigit())


def _done(status: CaptureStatus) -> int:
    return sum(entry.done for entry in status.snapshot)


def _rows(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _span(seconds: float) -> str:
    """As people say it.

    >>> [_span(seconds) for seconds in (0.34, 12.3, 75, 7260)]
    ['0.3 s', '12 s', '1 min 15 s', '2 h 1 min']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
