"""Stop states that survive restarts: one small JSON file each under ``run_dir/stops``.

A part (``capture``, ``follow-NAME``) that meets a ``Stopped`` error records it, and refuses to start while it is held; the supervisor
does not restart such a part. ``cdc resume STOP`` clears the record, and with that the part runs again.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cdc.crashpoint import crashpoint
from cdc.errors import HeadwaterError, Stopped, StopState
from cdc.state import jsonfile


@dataclass(frozen=True, slots=True)
class Stop:
    """One recorded stop state."""

    state: StopState
    part: str
    """``capture`` or ``follow-NAME``: the name of the part's status file."""
    message: str
    hint: str
    since: float
    """Unix time, seconds, at which the part first stopped for this reason."""

    @property
    def name(self) -> str:
        """The name that ``cdc resume`` takes: ``STATE:part`` (the bare ``STATE`` names every part stopped for that reason)."""
        return f"{self.state}:{self.part}"

    def error(self) -> Stopped:
        """The error that the part stopped with."""
        return Stopped(self.state, self.message, hint=self.hint)


def record(run_dir: Path, part: str, stopped: Stopped) -> Stop:
    """Makes the stop state durable. A state that is held already keeps its ``since``."""
    path = _path(run_dir, part, stopped.state)
    before = _read(path)
    message = str(stopped).removeprefix(f"{stopped.state}: ")
    stop = Stop(stopped.state, part, message, stopped.hint or "", before.since if before else time.time())
    jsonfile.make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(jsonfile.create(aside), "w", encoding="utf-8") as file:
        file.write(jsonfile.encode(asdict(stop)))
        file.flush()
        os.fsync(file.fileno())
    crashpoint("stops.written_aside")
    aside.replace(path)
    crashpoint("stops.renamed")
    jsonfile.sync_folder(path.parent)
    return stop


def held(run_dir: Path) -> list[Stop]:
    """Every stop state that waits for an operator, the oldest first."""
    try:
        paths = list((run_dir / "stops").iterdir())  # not glob: it costs more, and this runs several times a second
    except FileNotFoundError:
        return []
    found = (_read(path) for path in paths if path.suffix == ".json")
    return sorted((stop for stop in found if stop is not None), key=lambda stop: (stop.since, stop.name))


def held_by(run_dir: Path, part: str) -> Stop | None:
    """The stop state that keeps this part from running, or None."""
    return next((stop for stop in held(run_dir) if stop.part == part), None)


def check(run_dir: Path, part: str) -> None:
    """Raises the part's ``Stopped`` again when an operator has not resumed it yet. Call it at a part's start."""
    stop = held_by(run_dir, part)
    if stop is not None:
        raise stop.error()


def matching(run_dir: Path, name: str) -> list[Stop]:
    """The stop states called ``STATE`` or ``STATE:part`` (upper or lower case). A part's own work beside it (``part@…``) is called as the part is, too."""
    wanted = name.casefold()
    return [one for one in held(run_dir) if wanted in map(str.casefold, (one.state, one.name, one.name.partition("@")[0]))]


def clear(run_dir: Path, name: str) -> list[Stop]:
    """Removes the stop states called ``STATE`` or ``STATE:part`` (upper or lower case); returns those removed."""
    cleared = matching(run_dir, name)
    for stop in cleared:
        _path(run_dir, stop.part, stop.state).unlink(missing_ok=True)
    if cleared:
        jsonfile.sync_folder(run_dir / "stops")
    return cleared


def clear_part(run_dir: Path, part: str) -> None:
    """Removes every stop state of a part that no longer exists."""
    for stop in held(run_dir):
        if stop.part == part:
            clear(run_dir, stop.name)


def _path(run_dir: Path, part: str, state: StopState) -> Path:
    return run_dir / "stops" / f"{part}.{state}.json"


def _read(path: Path) -> Stop | None:
    """A damaged record still stops its part, and still can be resumed: the file's name says which part and why."""
    try:
        data, written_at = path.read_bytes(), path.stat().st_mtime
    except FileNotFoundError:
        return None
    try:
        raw = jsonfile.decode(data)
        return Stop(**{**raw, "state": StopState(raw["state"])})
    except (ValueError, KeyError, TypeError):
        part, _, state = path.stem.rpartition(".")
        if state not in StopState.__members__:
            raise HeadwaterError(f"{path} is not a record of a stop state", hint="remove it") from None
        stopped = Stopped(StopState(state), f"what stopped {part} is not known any more: {path} is damaged")
        return Stop(stopped.state, part, str(stopped).removeprefix(f"{state}: "), stopped.hint or "", written_at)
