"""Rebuilds that `cdc resume STATE:follow-NAME --rebuild` or `cdc bootstrap NAME --in-place` asks of a follower, or a follower of itself: the store is
built from the log (``cdc.follow.rebuild``).

The request lies under ``run_dir/rebuild`` until the store was built and opened again, so a crash on the way begins it again.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdc.errors import StopState, StoreError
from cdc.state.statefile import StateFile

STATES: Final = frozenset({StopState.DIVERGED, StopState.OTHER_LOG, StopState.POSITION_GONE, StopState.STORE_REFUSES})
"""Stop states of a follower that building its store again may end."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A request for a rebuild. ``state``: the stop state that the operator wants to end; None: the store was following, or held nothing."""

    state: StopState | None
    asked_at: float
    """Unix time, seconds."""


def request(run_dir: Path, store: str, state: StopState | None) -> Rebuild:
    """``state``: as ``Rebuild`` has it. Durable when it returns."""
    asked = Rebuild(state, time.time())
    _FILE.save(_path(run_dir, store), asked)
    return asked


def requested(run_dir: Path, store: str) -> Rebuild | None:
    """The request that has not been carried out yet. Raises StoreError when the file is damaged: nothing is built on a guess."""
    return _FILE.load(_path(run_dir, store))


def carried_out(run_dir: Path, store: str) -> None:
    """The request is done with."""
    _FILE.remove(_path(run_dir, store))


def _path(run_dir: Path, store: str) -> Path:
    return run_dir / "rebuild" / f"{store}.json"


def _unreadable(path: Path, what: str) -> StoreError:
    hint = "remove it, which takes the request to build the store again back"
    return StoreError(f"{path} {what}", retryable=False, hint=hint)


_FILE: Final = StateFile(
    format=1,
    encode=asdict,
    decode=lambda raw: Rebuild(None if raw["state"] is None else StopState(raw["state"]), raw["asked_at"]),
    unreadable=_unreadable,
    shared=True,
)
