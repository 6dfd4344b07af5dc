"""The log's histories, in a small file of their own in its folder (see ``cdc.model.lineage``).

The first history has the id of the log itself, and needs no file: a log that was never rebuilt has none. A file that is damaged is
LOG_CORRUPT: without it nobody can say which positions of a store are this log's.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt
from cdc.model.lineage import History, Lineage
from cdc.model.position import START, Position
from cdc.state.statefile import StateFile

FILE: Final = "histories.json"


def lineage_of(folder: Path, log_id: int, raised: int = 0) -> Lineage:
    """``raised``: the last raising of a floor, which the timeline knows. Raises LogCorrupt when the file is damaged or belongs to another log."""
    path, first = _path(folder), _first(log_id)
    found = _FILE.load(path) if _exists(path) else None
    if found is None:
        return replace(first, raised=raised) if raised else first
    if found.log != first.log:
        raise LogCorrupt(f"{path} belongs to another log")
    return Lineage(first.log, (*first.histories, *found.histories), raised)


def _exists(path: Path) -> bool:
    """Nearly always there is no such file, and opening it to find that out takes longer. Raises OSError."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


@lru_cache(maxsize=64)
def _first(log_id: int) -> Lineage:
    """A log's that was never rebuilt."""
    log = f"{log_id:016x}"
    return Lineage(log, (History(log * 2, START),))


@lru_cache(maxsize=64)
def _path(folder: Path) -> Path:
    """Asked for whenever somebody looks at a store: putting it together takes as long as finding that there is no such file."""
    return folder / FILE


def begin(folder: Path, log_id: int, since: Position) -> Lineage:
    """A new history begins behind ``since``, the log's head. Durable on return; to be called before its first change is committed."""
    known = lineage_of(folder, log_id)
    now = Lineage(known.log, (*known.histories, History(uuid.uuid4().hex, since)))
    crashpoint("log.history.begun")
    _FILE.save(_path(folder), Lineage(now.log, now.histories[1:]))
    crashpoint("log.history.recorded")
    return now


_FILE: Final = StateFile(
    format=1,
    # All but the first, which the log's id names.
    encode=lambda later: {"log": later.log, "histories": [[history.id, int(history.since)] for history in later.histories]},
    decode=lambda raw: Lineage(
        str(raw["log"]), tuple(History(str(identity), Position(int(since))) for identity, since in raw["histories"])
    ),
    unreadable=lambda path, what: LogCorrupt(f"{path} {what}"),
    shared=True,
)
