"""The log's histories, in a small file of their own in its folder (see ``cdc.model.lineage``).

The first history has the id of the log itself, and needs no file: a log that was never rebuilt has none. A file that is damaged is
LOG_CORRUPT: without it nobody can say which positions of a store are this log's.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

from cdc import jsonfile
from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt
from cdc.model.lineage import History, Lineage
from cdc.model.position import START, Position

FILE: Final = "histories.json"
_FORMAT: Final = 1


def lineage_of(folder: Path, log_id: int) -> Lineage:
    """Raises LogCorrupt when the file is damaged or belongs to another log."""
    path = folder / FILE
    log = f"{log_id:016x}"
    first = History(log * 2, START)
    try:
        raw = jsonfile.decode(path.read_bytes())
        if raw["format"] != _FORMAT or raw["log"] != log:
            raise LogCorrupt(f"{path} belongs to another log, or has a format that this version does not read")
        later = tuple(History(str(identity), Position(int(since))) for identity, since in raw["histories"])
    except FileNotFoundError:
        return Lineage(log, (first,))
    except (ValueError, KeyError, TypeError):
        raise LogCorrupt(f"{path} is damaged") from None
    return Lineage(log, (first, *later))


def begin(folder: Path, log_id: int, since: Position) -> Lineage:
    """A new history begins behind ``since``, the log's head. Durable on return; to be called before its first change is committed."""
    known = lineage_of(folder, log_id)
    now = Lineage(known.log, (*known.histories, History(uuid.uuid4().hex, since)))
    later = [[history.id, int(history.since)] for history in now.histories[1:]]
    crashpoint("log.history.begun")
    content = {"format": _FORMAT, "log": now.log, "histories": later}
    jsonfile.write(folder / FILE, content, aside=folder / f".{FILE}.{os.getpid()}")
    crashpoint("log.history.recorded")
    return now
