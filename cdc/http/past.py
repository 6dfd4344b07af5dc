"""The last day as the daemon saw it: one entry a minute, and what was wrong from when to when. Bounded, and kept over a restart."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc.log.contract import COMES_WITH_CAPTURE
from cdc.report.problems import STARTS
from cdc.report.shape import Report
from cdc.state import jsonfile
from cdc.state.chronicle import without_figures

MINUTES: Final = 24 * 60
EPISODES: Final = 200
BEGINS_S: Final = 60.0
"""A part that starts takes no longer, as a rule."""
_BEGINNINGS: Final = (STARTS, COMES_WITH_CAPTURE)
"""So end the lines of parts that are starting, and of those that wait for one."""
FILE: Final = "past.json"
_FORMAT: Final = 1


@dataclass(slots=True)
class Minute:
    """``at``: its first second, Unix time. ``stores``: store → (changes applied, the longest lag in seconds)."""

    at: int
    captured: int = 0
    stores: dict[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Episode:
    """A problem from its first to its last appearance. ``until``: None while it lasts."""

    text: str
    since: float
    until: float | None = None


class Past:
    """Takes each report in. Everything here lives on one event loop."""

    def __init__(self) -> None:
        self.minutes: deque[Minute] = deque(maxlen=MINUTES)
        self.episodes: deque[Episode] = deque(maxlen=EPISODES)
        self._before: Report | None = None

    def take(self, report: Report) -> bool:
        """Whether a minute has been completed by this."""
        at = int(report.at) // 60 * 60
        if self.minutes and self.minutes[-1].at > at:
            self._set_back(self.minutes[-1].at - at)
        begins = not self.minutes or self.minutes[-1].at < at
        if begins:
            self.minutes.append(Minute(at))
        self._count(report, self.minutes[-1])
        self._note(report)
        self._before = report
        return begins and len(self.minutes) > 1

    def _set_back(self, seconds: int) -> None:
        """The clock was: what has been is as long ago as it was before."""
        for minute in self.minutes:
            minute.at -= seconds
        for episode in self.episodes:
            episode.since -= seconds
            episode.until = None if episode.until is None else episode.until - seconds

    def _count(self, report: Report, minute: Minute) -> None:
        before = self._before
        minute.captured += 0 if before is None else max(report.log.position - before.log.position, 0)
        written = {} if before is None else {follower.store: follower.written for follower in before.followers}
        for follower in report.followers:
            # A counter that fell is a process that began again.
            grown = max(follower.written - written.get(follower.store, follower.written), 0)
            changes, longest = minute.stores.get(follower.store, (0, 0.0))
            lag = 0.0 if follower.lag is None else follower.lag.seconds
            minute.stores[follower.store] = changes + grown, max(longest, round(lag, 3))

    def _note(self, report: Report) -> None:
        """The same problem with other numbers in it is the same problem."""
        now = {without_figures(text): text for text in report.problems}
        for episode in self.episodes:
            if episode.until is None:
                kind = without_figures(episode.text)
                if kind in now:
                    episode.text = now.pop(kind)
                else:
                    episode.until = report.at
        begun = [
            one
            for one in self.episodes
            if one.until == report.at and one.until - one.since < BEGINS_S and one.text.endswith(_BEGINNINGS)
        ]
        for episode in begun:
            # What has begun as quickly as it should was not wrong.
            self.episodes.remove(episode)
        self.episodes.extend(Episode(text, report.at) for text in now.values())

    def to_json(self) -> dict[str, Any]:
        return {"minutes": [asdict(minute) for minute in self.minutes], "episodes": [asdict(episode) for episode in self.episodes]}

    def load(self, folder: Path) -> None:
        """Takes up what was saved; a file that is missing, damaged or of another version counts as none. Problems that lasted then are
        taken to have ended with the daemon's last minute."""
        try:
            raw = jsonfile.decode((folder / FILE).read_bytes())
            if raw["format"] != _FORMAT:
                return
            stores = [{name: (int(n), float(s)) for name, (n, s) in one["stores"].items()} for one in raw["minutes"]]
            minutes = [Minute(int(one["at"]), int(one["captured"]), kept) for one, kept in zip(raw["minutes"], stores, strict=True)]
            last = minutes[-1].at + 60.0 if minutes else 0.0
            episodes = [Episode(str(one["text"]), float(one["since"]), float(one["until"] or last)) for one in raw["episodes"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        self.minutes.extend(minutes)
        self.episodes.extend(episodes)


def save(folder: Path, past: dict[str, Any]) -> None:
    """``past``: as of ``Past.to_json``. Raises OSError."""
    jsonfile.write(folder / FILE, {"format": _FORMAT, **past})
