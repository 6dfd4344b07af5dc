"""The way out of stop states in which changes are gone: the tables are read again into the same log.

`cdc resume STATE --rebuild` leaves a request in the log's folder; capture carries it out at its next start (``cdc.ingest.preparation``), and the
request goes only when all that a restart must know is durable. Positions go on rising, the log keeps its history, and each table's
topic says "every earlier row is gone" before its rows come, so that stores lose what was deleted meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdc.errors import LogCorrupt, StopState
from cdc.state.statefile import StateFile

FILE: Final = "reload.json"

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
class ReloadRequest:
    """An operator's request to read tables again, and the reason."""

    state: StopState
    asked_at: float
    """Unix time, seconds."""

    @property
    def whole(self) -> bool:
        return self.state in WHOLE


def request(folder: Path, state: StopState) -> ReloadRequest:
    """Durable when it returns. ``folder``: the log's."""
    reload = ReloadRequest(state, time.time())
    _FILE.save(folder / FILE, reload)
    return reload


def requested(folder: Path) -> ReloadRequest | None:
    """The request that has not been carried out yet. Raises LogCorrupt when the file is not ours."""
    return _FILE.load(folder / FILE)


def carried_out(folder: Path) -> None:
    """The request is done with."""
    _FILE.remove(folder / FILE)


_FILE: Final = StateFile(
    format=1,
    encode=asdict,
    decode=lambda raw: ReloadRequest(StopState(raw["state"]), raw["asked_at"]),
    unreadable=lambda path, what: LogCorrupt(f"{path} {what}; removing it takes the request back"),
    shared=True,
)
