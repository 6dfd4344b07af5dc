"""Tables that we have taken out of the publication, as they could not be captured: ``aside.json`` in the log's folder.

Written before the table leaves, so that a start never takes it for one that somebody else took out, which is a stop state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import psycopg

from cdc.errors import LogCorrupt
from cdc.source.membership import Membership
from cdc.source.trigger import SetAside, set_aside_by_trigger
from cdc.state.statefile import StateFile

FILE: Final = "aside.json"


def load_aside(folder: Path) -> dict[int, SetAside]:
    """Loads them by OID; nothing when the file does not exist. Raises LogCorrupt when it is not ours."""
    return _FILE.load(folder / FILE) or {}


def save_aside(folder: Path, tables: Mapping[int, SetAside]) -> None:
    """Durable on return. Writes nothing when the file says so already."""
    if tables != load_aside(folder):
        _FILE.save(folder / FILE, dict(tables))


def find_aside(connection: psycopg.Connection, publication: str, folder: Path) -> dict[int, SetAside]:
    """The tables that we and the event trigger have taken out; the trigger's word counts, as it may have put a table back."""
    return {**load_aside(folder), **set_aside_by_trigger(connection, publication)}


def excused(aside: Mapping[int, SetAside], found: Membership) -> set[int]:
    """Tables (OIDs) whose absence from the publication, past or present, needs nobody's decision: they are read again when they come back."""
    return {
        oid for oid, told in aside.items() if oid not in found.tables or told.entry is None or told.entry in found.tables[oid][1]
    }


def withheld(aside: Mapping[int, SetAside]) -> Collection[int]:
    """Tables (OIDs) that only their owner can publish again: they had a column list or a row filter, which may have kept something back."""
    return {oid for oid, told in aside.items() if told.entry is None and not told.again}


def _unreadable(path: Path, what: str) -> LogCorrupt:
    return LogCorrupt(
        f"{path} {what}; removing it lets capture stop (TABLE_UNPUBLISHED) where it took a table out of the publication itself"
    )


_FILE: Final[StateFile[dict[int, SetAside]]] = StateFile(
    format=1,
    encode=lambda tables: {"tables": {str(oid): told.again for oid, told in tables.items()}},
    decode=lambda raw: {int(oid): SetAside(None, bool(again)) for oid, again in raw["tables"].items()},
    unreadable=_unreadable,
)
