"""The folder with one topic's runs: which of them count, and opening them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import structlog

from cdc.errors import Stopped
from cdc.log.contract import LogReader
from cdc.lookup.runfile import Origin, RunDamaged, mapped
from cdc.lookup.scan import KeyRun
from cdc.lookup.standing import BEGINNING, RunStanding, Turn
from cdc.model.batch import LSN
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import Cut, Lsn, Position
from cdc.replay.state import clean_from

FOLDER: Final = "lookup"
_NAME: Final = re.compile(r"^(\d{20})-(\d{20})-(\d{20})\.run$")

_log = structlog.get_logger("lookup")


class RunName(NamedTuple):
    """The range (low, high] of a run's positions, and its chapter."""

    low: int
    high: int
    chapter: int

    @property
    def file(self) -> str:
        return f"{self.low:020d}-{self.high:020d}-{self.chapter:020d}.run"

    @classmethod
    def of(cls, run: KeyRun) -> RunName:
        return cls(run.low, run.high, run.chapter)


def folder_of(log_folder: Path, topic: str) -> Path:
    """Where the topic's runs lie: by a hash of its name, which may be anything."""
    return log_folder / FOLDER / blake2b(topic.encode(), digest_size=16).hexdigest()


def names_in(folder: Path) -> frozenset[RunName]:
    """The runs that are there."""
    try:
        found = [_NAME.match(path.name) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(RunName(int(name[1]), int(name[2]), int(name[3])) for name in found if name)


def chain(names: Iterable[RunName]) -> list[RunName]:
    """Those that follow one another from the log's beginning; of two that begin at the same place the one that reaches further, which the other was merged
    into. Pure."""
    longest: dict[int, RunName] = {}
    for name in sorted(names, key=lambda one: one.high):
        longest[name.low] = name
    found, at = [], 0
    while at in longest and longest[at].high > at:
        found.append(longest[at])
        at = longest[at].high
    return found


@dataclass(slots=True)
class Shelf:
    """One topic's runs as they were found. ``damaged``, ``foreign``: what stands in the place of the next one, with what is wrong with it: no run at all, or
    one that is not of this log as it is."""

    folder: Path
    runs: list[KeyRun] = field(default_factory=list)
    origin: Origin | None = None
    names: frozenset[RunName] = frozenset()
    damaged: dict[Path, str] = field(default_factory=dict)
    foreign: dict[Path, str] = field(default_factory=dict)
    seen: tuple[str, str, int] = ("", "", 0)
    """The log's id, its history and its head when this was found."""

    @property
    def standing(self) -> RunStanding:
        """How the topic stands at the end of the runs."""
        return self.runs[-1].standing if self.runs else BEGINNING

    @property
    def turns(self) -> list[Turn]:
        return [turn for run in self.runs for turn in run.turns]

    def of_the_log_of(self, now: Shelf) -> bool:
        """Whether the log that this was found in has only grown since: else a copy was put back, and what was checked is to be checked again."""
        return self.seen[:2] == now.seen[:2] and self.seen[2] <= now.seen[2]


def opened(log: LogReader, folder: Path, topic: str, known: Shelf | None = None) -> Shelf:
    """The topic's runs, as far as they follow one another and can be believed. ``known``: runs that have been checked already. Raises OSError."""
    while True:
        try:
            return _opened(log, folder, topic, known)
        except FileNotFoundError:
            continue  # merged meanwhile


def _opened(log: LogReader, folder: Path, topic: str, known: Shelf | None) -> Shelf:
    shelf = Shelf(folder, names=names_in(folder))
    # Asked after the files were listed: the log has all that they tell of.
    lineage, head = log.lineage(), log.head().position
    if lineage is None:
        return shelf
    shelf.seen = lineage.log, lineage.histories[-1].id, head
    if known is not None and not known.of_the_log_of(shelf):
        known = None
    had = {RunName.of(run): (run, known.origin) for run in known.runs if known.origin} if known else {}
    for name in chain(shelf.names):
        path = folder / name.file
        try:
            run, origin = had.get(name) or mapped(path)
        except RunDamaged as damage:
            shelf.damaged[path] = str(damage)
            break
        problem = _problem(name, run, (origin, shelf.origin or origin), topic, lineage, head)
        if problem is None and name not in had and is_of_another(log, topic, run):
            problem = "the log has another change where it ends"
        if problem:
            shelf.foreign[path] = problem
            break
        shelf.runs.append(run)
        shelf.origin = origin
    return shelf


def is_of_another(log: LogReader, topic: str, run: KeyRun) -> bool:
    """Whether the log says another thing of the run's last change, or has one between it and the run's end: it was put back from a copy, and has come by
    other changes since."""
    position, lsn = run.last
    clean = clean_from(log, topic)
    # Below the clean point the log may name a place where it has no change any longer.
    if log.last_change(topic, Position(run.high)) >= max(position + 1, clean):
        return True
    if not position:
        return False
    for batch in log.changes_at(topic, np.array([position])):
        return bool(batch.column(LSN)[0].as_py() != lsn)
    return position >= clean


def _problem(name: RunName, run: KeyRun, origins: tuple[Origin, Origin], topic: str, lineage: Lineage, head: int) -> str | None:
    """Why the run cannot be believed. ``origins``: its own, and that of the run before it."""
    origin, before = origins
    if RunName.of(run) != name or origin.topic != topic:
        return "it belongs elsewhere"
    if origin.seed != before.seed:
        return "its digests are others than those of the runs before it"
    if run.high > head:
        return "the log does not reach so far"
    try:
        believed(Mark(origin.log, origin.history, Cut(Position(run.high), Lsn(0))), lineage, "a run")
    except Stopped as stopped:
        return str(stopped.state)
    return None


def remove(wrong: Mapping[Path, str]) -> None:
    """Removes what cannot be believed, each with the reason, so that it is made again, and says so."""
    for path, problem in wrong.items():
        _log.warning("a look-up's file is made again from the log", file=str(path), problem=problem)
        with contextlib.suppress(OSError):  # whoever only reads may not be allowed to
            path.unlink(missing_ok=True)
