"""How far rows of the outbox table have been removed: the log's events up to a position are gone from it, so a start need not look at them again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdc.errors import StoreError
from cdc.state.statefile import StateFile

_NAME: Final = "outbox.json"


@dataclass(frozen=True, slots=True)
class Removed:
    """``log``: the log's id. ``table``: ``schema.table``."""

    log: str
    table: str
    position: int


def removed_upto(folder: Path, log: str, table: str) -> int:
    """The position in this log; 0 where nothing is known of this table, for then looking at all events again does no harm. Raises OSError."""
    try:
        found = _FILE.load(folder / _NAME)
    except StoreError:
        return 0
    return found.position if found is not None and (found.log, found.table) == (log, table) else 0


def record(folder: Path, removed: Removed) -> None:
    """Durable on return. Raises OSError."""
    _FILE.save(folder / _NAME, removed)


def _unreadable(path: Path, what: str) -> StoreError:
    return StoreError(f"{path} {what}", retryable=False, hint="remove it: it is made again")


_FILE: Final = StateFile(
    format=1,
    encode=asdict,
    decode=lambda raw: Removed(str(raw["log"]), str(raw["table"]), int(raw["position"])),
    unreadable=_unreadable,
)
