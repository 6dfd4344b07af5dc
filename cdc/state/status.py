"""Each process's status, for the others: one small JSON file per part under ``run_dir/status``, replaced atomically.

A reader never waits for a writer and a dead writer's last word stays readable (``pid`` tells whether it still lives). While versions change,
reader and writer may be of two: what both know is read, the rest is named in ``foreign``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from cdc.crashpoint import crashpoint
from cdc.diskspace import FULL, GOES_ON, described
from cdc.model.selection import matches
from cdc.pace import slowness
from cdc.state import jsonfile

CAPTURE_STATES: Final = ("starting", "snapshot", "streaming", "retrying", "stopped", "exited")
VIEW_STATES: Final = ("starting", "waiting", "following", "stopped", "exited", "never started")
FOLLOWER_STATES: Final = ("starting", "rebuilding", "following", "waiting", "stopped", "exited", "never started")
PROCESS_STATES: Final = ("starting", "running", "backing-off", "stopped", "refused", "exited")
FOREIGN: Final = "foreign"
VIEW: Final = "view-"
"""Begins the name of a view's part."""
_GENERATION: Final = "generation-"

_log = structlog.get_logger("status")
_outdated: Final[set[Path]] = set()
"""The files that a full disk keeps as they were."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "list[str]": (list,),
    "dict[str, float]": (dict,),
}


@dataclass(slots=True)
class _Told:
    """One file's content, or an entry of a list in it."""

    def take(self, raw: Mapping[str, Any]) -> list[str]:
        """Takes over what is known and has the right type; returns the names of what is not, is not known, or is missing."""
        known = {one.name: types for one in fields(self) if (types := _TYPES.get(str(one.type))) and one.name != FOREIGN}
        foreign = [name for name in raw if name not in known]
        for name, types in known.items():
            if name in raw and isinstance(raw[name], types) and (bool in types or not isinstance(raw[name], bool)):
                setattr(self, name, raw[name])
            else:
                foreign.append(name)
        return foreign


@dataclass(slots=True)
class TableProgress(_Told):
    """One table's snapshot: ``done`` of about ``total`` rows."""

    table: str
    done: int
    total: int
    finished: bool = False


@dataclass(slots=True)
class TableLetters(_Told):
    """One table's dead letters in a store: ``letters`` in all, of which an operator has corrected or accepted some."""

    table: str
    letters: int
    edited: int = 0
    accepted: int = 0
    oldest_at: float = 0.0
    """When the oldest that nobody has decided about was set aside: Unix time, seconds; 0: there is none."""


@dataclass(slots=True)
class CaptureStatus(_Told):
    """Written by the capture process when something has changed, and every ``BEAT_S``."""

    pid: int = 0
    state: str = "starting"
    """starting | snapshot | streaming | retrying | stopped (a stop state, see ``stop``) | exited"""
    stop: str | None = None
    error: str | None = None
    position: int = 0
    commit_lsn: int = 0
    commit_ts_us: int = 0
    received_lsn: int = 0
    """Everything that the source committed at or before this LSN is durable in the log."""
    confirmed_lsn: int = 0
    complete_position: int | None = None
    """From this log position on, every selected table's rows are in the log; None while a first load is under way. An earlier position
    may have done, too: it is not known across restarts."""
    changes: int = 0
    """Changes made durable since the process started."""
    wire_bytes: int = 0
    changes_per_s: float = 0.0
    slot: str = ""
    snapshot: list[TableProgress] = field(default_factory=list)
    snapshot_paused: str | None = None
    """Why reading tables stands still now."""
    left_out: list[str] = field(default_factory=list)
    """Selected tables, or parts of them, that do not reach the log: one line each with what helps."""
    notes: list[str] = field(default_factory=list)
    """Facts to know about captured tables, one line each with what helps: nothing is wrong."""
    log_alarm: str | None = None
    """The log's disk's refusal, with what helps, while capture goes on all the same."""
    updated_at: float = 0.0
    """Unix time, seconds."""
    said_at: float = 0.0
    """The same moment by the machine's monotonic clock, which nobody sets."""
    foreign: list[str] = field(default_factory=list)
    """Not written: what a reader has found in the file that another version wrote."""


@dataclass(slots=True, kw_only=True)
class _StampedStatus(_Told):
    """Who wrote the file, and when."""

    pid: int = 0
    moved_at: float = 0.0
    """When ``position`` last became another: Unix time, seconds."""
    updated_at: float = 0.0
    said_at: float = 0.0
    """See ``CaptureStatus``."""
    foreign: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FollowerStatus(_StampedStatus):
    """Written by a follower after a commit into its store (of many in a row not each by itself), and every ``BEAT_S``."""

    store: str
    kind: str = ""
    state: str = "starting"
    """starting | rebuilding (the store is built from the log) | following | waiting (the store is down; see ``error``) | stopped | exited"""
    stop: str | None = None
    error: str | None = None
    position: int = 0
    commit_lsn: int = 0
    commit_ts_us: int = 0
    written: int = 0
    stale: int = 0
    dead: int = 0
    aside: list[TableLetters] = field(default_factory=list)
    """The store's dead letters as they are now, by table."""
    returns_to: int | None = None
    """The first change at or below ``position`` that the store may have to read again."""
    version_days: dict[str, float] = field(default_factory=dict)
    """See ``StoreOptions.version_days``: as the configuration said when the follower began."""
    batches: int = 0
    rows_per_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class GenerationStatus(_StampedStatus):
    """Written about a generation that readers do not see: by `cdc bootstrap` while it is being built, by whoever feeds it while it is kept."""

    store: str
    number: int = 0
    state: str = "building"
    """building | kept"""
    phase: str = ""
    """While it is built: building | catching up | comparing | swapping"""
    error: str | None = None
    """Why it is not brought on at present, with what helps."""
    position: int = 0
    rows: int = 0
    """Of ``expected`` at most that the present phase has been through; both 0 where it counts none."""
    expected: int = 0
    rows_per_s: float = 0.0
    until: float = 0.0
    """Up to when it is kept: Unix time, seconds; 0: without an end."""

    @property
    def part(self) -> str:
        return f"{_GENERATION}{self.store}@{self.number}"  # no store's name has an @


@dataclass(slots=True)
class ViewGeneration(_Told):
    """One state of a view: of the definition that its topic shows, of the next one, or of a former one."""

    number: int
    state: str = "live"
    """live | building | refused | kept"""
    position: int = 0
    """The cut of the log that it is as of, or is loaded as of."""
    done: int = 0
    expected: int = 0
    """Rows of its topics that it has been through while it is loaded, and how many there are at most; else 0."""
    rows_per_s: float = 0.0
    bytes: int = 0
    """On the disk."""
    left_at: float = 0.0
    until: float = 0.0
    """Since when it is kept, and up to when: Unix time, seconds."""
    error: str | None = None
    """What its building waits for, or why it is refused."""


@dataclass(slots=True)
class ViewStatus(_Told):
    """Written by a view's process when something has changed, and every ``BEAT_S``."""

    view: str
    pid: int = 0
    state: str = "starting"
    """starting (which takes as long as it is computed from the beginning) | waiting (for what ``error`` says) | following | stopped | exited"""
    stop: str | None = None
    error: str | None = None
    topics: list[str] = field(default_factory=list)
    """The topics that it reads."""
    declaration: str = ""
    """Stands for what the configuration said of it when the process began."""
    position: int = 0
    """Up to here its rows in the log, or on their way into it, show what these topics had."""
    commit_lsn: int = 0
    commit_ts_us: int = 0
    written: int = 0
    """Changes of its topic that this process has handed over."""
    taken: int = 0
    """Changes of the topics that it reads, of a key's in one step the last only, that this process has taken in."""
    steps: int = 0
    """Ranges of the log that this process has taken."""
    written_per_s: float = 0.0
    taken_per_s: float = 0.0
    step_s: float = 0.0
    """What the last step took, in seconds; and how many changes it took in and handed over:"""
    step_taken: int = 0
    step_written: int = 0
    state_bytes: int = 0
    state_rows: int = 0
    """Rows of its live state: those of its topics that it has to look up, its groups, and its own."""
    generations: list[ViewGeneration] = field(default_factory=list)
    """The states that it has."""
    built: str = ""
    """Why it was computed from the beginning last, if this process has done that."""
    moved_at: float = 0.0
    updated_at: float = 0.0
    said_at: float = 0.0
    """See ``CaptureStatus``."""
    foreign: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ProcessStatus(_Told):
    """One child of the supervisor, as the supervisor sees it."""

    name: str
    """``capture`` or ``followers``"""
    pid: int = 0
    state: str = "starting"
    """starting | running | backing-off (died, comes again) | stopped (a stop state) | refused (the configuration) | exited"""
    restarts: int = 0
    exit_code: int | None = None
    """The exit code of the last process that ended; minus the signal's number when a signal ended it."""
    started_at: float = 0.0
    """Unix time, seconds."""


@dataclass(slots=True)
class SupervisorStatus(_Told):
    """Written by ``cdc run`` (without ``--only``) whenever a child starts or ends."""

    pid: int = 0
    state: str = "running"
    """running | draining | exited"""
    listen: str | None = None
    processes: list[ProcessStatus] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Problems of the configuration file as it is now, one line each with what helps."""
    notes: list[str] = field(default_factory=list)
    """Keys in it that take effect later, one line each with what helps."""
    updated_at: float = 0.0
    foreign: list[str] = field(default_factory=list)


_Entry = TypeVar("_Entry", TableProgress, TableLetters, ProcessStatus, ViewGeneration)


BEAT_S: Final = 2.0
"""A part of which nothing has changed writes its status this often, as a sign of life."""
STALE_S: Final = 10.0
"""After this long its last word no longer counts as one (on a busy machine: longer)."""


def stamp(status: CaptureStatus | FollowerStatus | GenerationStatus | ViewStatus) -> None:
    """Says that this is how it is now."""
    status.updated_at, status.said_at = time.time(), time.monotonic()


def silent_s(told: CaptureStatus | FollowerStatus | GenerationStatus | ViewStatus) -> float:
    """For how long the part has reported nothing; infinite when its last word is of before the machine started."""
    passed = time.monotonic() - told.said_at
    return passed if passed >= 0 else float("inf")


def write(
    run_dir: Path, name: str, status: CaptureStatus | FollowerStatus | GenerationStatus | ViewStatus | SupervisorStatus
) -> None:
    """Replaces the file. Where the disk is full it stays as it was, which is logged once: no part ends because it cannot say how it is.

    Raises OSError for whatever else the disk refuses.
    """
    path = run_dir / "status" / f"{name}.json"
    content = _content(status)
    del content[FOREIGN]
    try:
        _replace(path, jsonfile.encode(content))
    except OSError as error:
        if error.errno not in FULL:
            raise
        if path not in _outdated:
            _outdated.add(path)
            _log.warning(f"{path} cannot be written, so cdc status shows an older one", problem=f"{described(error)} → {GOES_ON}")
    else:
        _outdated.discard(path)


def _content(one: _Told) -> dict[str, Any]:
    """As ``asdict``, which copies every value and so takes longer than writing the file."""
    found = {each.name: getattr(one, each.name) for each in fields(one)}
    return {
        name: [_content(entry) if isinstance(entry, _Told) else entry for entry in value] if isinstance(value, list) else value
        for name, value in found.items()
    }


def _replace(path: Path, text: str) -> None:
    jsonfile.make_folder(path.parent)
    aside = path.with_name(f".{path.stem}.{os.getpid()}")
    try:
        with open(jsonfile.create(aside), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(aside)) from error  # a write does not say where
    crashpoint("status.written_aside")
    aside.replace(path)


def remove(run_dir: Path, name: str) -> None:
    """Removes the status of a part that no longer exists."""
    (run_dir / "status" / f"{name}.json").unlink(missing_ok=True)


def read_capture(run_dir: Path) -> CaptureStatus | None:
    """None before its first start, or when the file is damaged."""
    raw = _read(run_dir / "status" / "capture.json")
    if raw is None:
        return None
    status = CaptureStatus()
    tables, foreign = _entries(raw.pop("snapshot", None), "snapshot", TableProgress("", 0, 0))
    status.foreign = [*status.take(raw), *foreign]
    status.snapshot = tables
    return status


def read_supervisor(run_dir: Path) -> SupervisorStatus | None:
    """As ``read_capture``."""
    raw = _read(run_dir / "status" / "supervisor.json")
    if raw is None:
        return None
    status = SupervisorStatus()
    processes, foreign = _entries(raw.pop("processes", None), "processes", ProcessStatus(""))
    status.foreign = [*status.take(raw), *foreign]
    status.processes = processes
    return status


def read_followers(run_dir: Path) -> list[FollowerStatus]:
    """The status of every store that has a status file, by name."""
    folder = run_dir / "status"
    names = (path.stem.removeprefix("follow-") for path in sorted(folder.glob("follow-*.json")))
    return [status for name in names if (status := read_follower(run_dir, name)) is not None]


def read_follower(run_dir: Path, store: str) -> FollowerStatus | None:
    """As ``read_capture``."""
    raw = _read(run_dir / "status" / f"follow-{store}.json")
    if raw is None:
        return None
    status = FollowerStatus(store)
    # Missing where no version before has written it.
    aside, foreign = _entries(raw.pop("aside", []), "aside", TableLetters("", 0))
    status.foreign = [*status.take(raw), *foreign]
    status.aside = aside
    return status


def read_generations(run_dir: Path, store: str) -> list[GenerationStatus]:
    """Those of this store, by number."""
    found = []
    for path in (run_dir / "status").glob(f"{_GENERATION}*.json"):
        raw = _read(path) if path.stem.rpartition("@")[0] == _GENERATION + store else None
        if raw is not None:
            one = GenerationStatus(store=store)
            one.foreign = one.take(raw)
            found.append(one)
    return sorted(found, key=lambda one: one.number)


def read_view(run_dir: Path, view: str) -> ViewStatus | None:
    """As ``read_capture``."""
    raw = _read(run_dir / "status" / f"{view_part(view)}.json")
    if raw is None:
        return None
    status = ViewStatus(view)
    generations, foreign = _entries(raw.pop("generations", None), "generations", ViewGeneration(0))
    status.foreign = [*status.take(raw), *foreign]
    status.generations = generations
    return status


def view_parts(run_dir: Path) -> set[str]:
    """The parts of views that have a status file."""
    return {path.stem for path in (run_dir / "status").glob(f"{VIEW}*.json")}


def view_part(view: str) -> str:
    """The name of a view's process: of its status file, and of its stop states."""
    return f"{VIEW}{view}"


def next_part(view: str) -> str:
    """The name under which the building of a view's next generation stops."""
    return f"{view_part(view)}@next"


def unread_rows(status: CaptureStatus | None, tables: Sequence[str]) -> int:
    """About how many rows of these tables (patterns) the snapshot has not read yet."""
    reading = status.snapshot if status is not None else ()
    return sum(max(one.total - one.done, 0) for one in reading if not one.finished and matches(tables, one.table))


def other_version(
    status: CaptureStatus | FollowerStatus | GenerationStatus | ViewStatus | SupervisorStatus, what: str
) -> str | None:
    """One line when another version wrote this, so that some of it is not known."""
    if not status.foreign:
        return None
    return f"{what} runs another version of Headwater than this ({', '.join(status.foreign)}) → restart cdc run"


def alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def reports(saved: CaptureStatus | FollowerStatus | GenerationStatus | ViewStatus) -> bool:
    """Whether the part's process lives and still reports how it is.

    A part that starts says so once, and may then compile, load or recover for longer than a running one is ever silent.
    """
    if not alive(saved.pid):
        return False
    silent = 0.0 if saved.state == "starting" else silent_s(saved)
    return silent < STALE_S or silent < STALE_S * slowness()


def _entries(raw: object, name: str, empty: _Entry) -> tuple[list[_Entry], list[str]]:
    """A list's entries, each one a copy of ``empty`` with what the file says; and what of them is foreign."""
    if not isinstance(raw, list):
        return [], [name]
    found, foreign = [], set()
    for entry in raw:
        one = replace(empty)
        foreign.update(one.take(entry) if isinstance(entry, dict) else [""])
        found.append(one)
    return found, [f"{name}.{part}" for part in sorted(foreign)]


def _read(path: Path) -> dict[str, Any] | None:
    """A damaged file is one that its part has not written yet: they are not synced, so a power loss may leave them empty or torn, and a
    part that runs rewrites its own within a second."""
    try:
        return jsonfile.decode(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
