"""What each process tells the others: one small JSON file per part under ``run_dir/status``, replaced atomically.

A reader never waits for a writer and a dead writer's last word stays readable (``pid`` tells whether it still lives).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc import jsonfile
from cdc.crashpoint import crashpoint

CAPTURE_STATES: Final = ("starting", "snapshot", "streaming", "retrying", "stopped", "exited")
FOLLOWER_STATES: Final = ("starting", "following", "waiting", "stopped", "exited", "never started")
PROCESS_STATES: Final = ("starting", "running", "backing-off", "stopped", "refused", "exited")


@dataclass(slots=True)
class TableProgress:
    """One table's snapshot: ``done`` of about ``total`` rows."""

    table: str
    done: int
    total: int
    finished: bool = False


@dataclass(slots=True)
class CaptureStatus:
    """Written by the capture process at least once a second."""

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
    alarms: list[str] = field(default_factory=list)
    """What endangers the slot's WAL, one line each with what helps, as capture saw it last."""
    left_out: list[str] = field(default_factory=list)
    """What of the selected tables does not reach the log, one line each with what helps."""
    updated_at: float = 0.0
    """Unix time, seconds."""


@dataclass(slots=True)
class FollowerStatus:
    """Written by a follower after each commit into its store, and at least once a second."""

    store: str
    kind: str = ""
    pid: int = 0
    state: str = "starting"
    """starting | following | waiting (the store is down; see ``error``) | stopped | exited"""
    stop: str | None = None
    error: str | None = None
    position: int = 0
    commit_lsn: int = 0
    commit_ts_us: int = 0
    written: int = 0
    stale: int = 0
    dead: int = 0
    batches: int = 0
    rows_per_s: float = 0.0
    updated_at: float = 0.0


@dataclass(slots=True)
class ProcessStatus:
    """One child of the supervisor, as the supervisor sees it."""

    name: str
    """``capture`` or ``followers``"""
    pid: int = 0
    state: str = "starting"
    """starting | running | backing-off (died, comes again) | stopped (a stop state) | refused (the configuration) | exited"""
    restarts: int = 0
    exit_code: int | None = None
    """Of the last process that ended; minus the signal's number when a signal ended it."""
    started_at: float = 0.0
    """Unix time, seconds."""


@dataclass(slots=True)
class SupervisorStatus:
    """Written by ``cdc run`` (without ``--only``) whenever a child starts or ends."""

    pid: int = 0
    state: str = "running"
    """running | draining | exited"""
    listen: str | None = None
    processes: list[ProcessStatus] = field(default_factory=list)
    updated_at: float = 0.0


def write(run_dir: Path, name: str, status: CaptureStatus | FollowerStatus | SupervisorStatus) -> None:
    folder = run_dir / "status"
    jsonfile.make_folder(folder)
    aside = folder / f".{name}.{os.getpid()}"
    with open(jsonfile.create(aside), "w") as file:
        file.write(jsonfile.encode(asdict(status)))
    crashpoint("status.written_aside")
    aside.replace(folder / f"{name}.json")


def read_capture(run_dir: Path) -> CaptureStatus | None:
    raw = _read(run_dir / "status" / "capture.json")
    if raw is None:
        return None
    raw["snapshot"] = [TableProgress(**entry) for entry in raw["snapshot"]]
    return CaptureStatus(**raw)


def read_supervisor(run_dir: Path) -> SupervisorStatus | None:
    raw = _read(run_dir / "status" / "supervisor.json")
    if raw is None:
        return None
    raw["processes"] = [ProcessStatus(**entry) for entry in raw["processes"]]
    return SupervisorStatus(**raw)


def read_followers(run_dir: Path) -> list[FollowerStatus]:
    folder = run_dir / "status"
    found = (_read(path) for path in sorted(folder.glob("follow-*.json")))
    return [FollowerStatus(**raw) for raw in found if raw is not None]


def read_follower(run_dir: Path, store: str) -> FollowerStatus | None:
    raw = _read(run_dir / "status" / f"follow-{store}.json")
    return None if raw is None else FollowerStatus(**raw)


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


def _read(path: Path) -> dict[str, Any] | None:
    """A damaged file is one that its part has not written yet: they are not synced, so a power loss may leave them empty or torn, and a
    part that runs writes its own anew within a second."""
    try:
        return jsonfile.decode(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
