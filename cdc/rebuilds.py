"""What `cdc resume STATE:follow-NAME --rebuild` asks of a follower: the store is emptied, and built again from the log.

The request lies under ``run_dir/rebuild`` until the store was emptied and opened again, so a crash on the way begins it again. From
there on the store is one that lacks everything, which its follower brings as it does for any store.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cdc import jsonfile
from cdc.errors import StopState, StoreError

_FORMAT: Final = 1
STATES: Final = frozenset({StopState.DIVERGED, StopState.OTHER_LOG, StopState.STORE_REFUSES})
"""Stop states of a follower that building its store again may end."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What an operator has asked for, and why."""

    state: StopState
    asked_at: float
    """Unix time, seconds."""


def request(run_dir: Path, store: str, state: StopState) -> Rebuild:
    """Durable when it returns."""
    asked = Rebuild(state, time.time())
    path = _path(run_dir, store)
    jsonfile.make_folder(path.parent)
    jsonfile.write(path, {"format": _FORMAT, **asdict(asked)}, aside=path.with_name(f".{path.name}.{os.getpid()}"))
    return asked


def requested(run_dir: Path, store: str) -> Rebuild | None:
    """The request that has not been carried out yet. Raises StoreError when the file is damaged: nothing is emptied on a guess."""
    path = _path(run_dir, store)
    try:
        raw: dict[str, Any] = jsonfile.decode(path.read_bytes())
        if raw["format"] != _FORMAT:
            raise ValueError
        return Rebuild(StopState(raw["state"]), raw["asked_at"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        hint = "remove it, which takes the request to build the store again back"
        raise StoreError(f"{path} is damaged, or of another version", retryable=False, hint=hint) from None


def carried_out(run_dir: Path, store: str) -> None:
    """The request is done with."""
    path = _path(run_dir, store)
    path.unlink(missing_ok=True)
    jsonfile.sync_folder(path.parent)


def _path(run_dir: Path, store: str) -> Path:
    return run_dir / "rebuild" / f"{store}.json"
