"""The way out of stop states in which changes are gone: the tables are read again into the same log.

`cdc resume STATE --rebuild` leaves a request in the log's folder; capture carries it out at its next start (``cdc.preparing``), and the
request goes only when all that a restart must know is durable. Positions go on rising, the log keeps its history, and each table's
topic says "every earlier row is gone" before its rows come, so that stores lose what was deleted meanwhile.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cdc import jsonfile
from cdc.errors import LogCorrupt, StopState

FILE: Final = "reload.json"
_FORMAT: Final = 1

WHOLE: Final = frozenset(
    {
        StopState.SLOT_MISSING,
        StopState.SLOT_REPLACED,
        StopState.SLOT_LOST,
        StopState.DIVERGED,
        StopState.SYSTEM_CHANGED,
        StopState.PUBLICATION_LOST,
        StopState.POISON_ROW,
        StopState.COLUMN_RESERVED,
    }
)
"""The slot starts over, and every table is read again."""
TABLES: Final = frozenset({StopState.TABLE_UNPUBLISHED})
"""The slot goes on; only tables that were out of the publication are read again."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What an operator has asked for, and why."""

    state: StopState
    asked_at: float
    """Unix time, seconds."""

    @property
    def whole(self) -> bool:
        return self.state in WHOLE


def request(folder: Path, state: StopState) -> Reload:
    """Durable when it returns. ``folder``: the log's."""
    reload = Reload(state, time.time())
    jsonfile.write(folder / FILE, {"format": _FORMAT, **asdict(reload)}, aside=folder / f".{FILE}.{os.getpid()}")
    return reload


def requested(folder: Path) -> Reload | None:
    """The request that has not been carried out yet. Raises LogCorrupt when the file is not ours."""
    path = folder / FILE
    try:
        raw: dict[str, Any] = jsonfile.decode(path.read_bytes())
        if raw["format"] != _FORMAT:
            raise LogCorrupt(f"{path} has a format that this version does not read")
        return Reload(StopState(raw["state"]), raw["asked_at"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LogCorrupt(f"{path} is damaged; removing it takes the request back") from None


def carried_out(folder: Path) -> None:
    """The request is done with."""
    (folder / FILE).unlink(missing_ok=True)
    jsonfile.sync_folder(folder)
