"""Which database and slot a log was filled from: written into the log's folder once, compared at every start."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, Stopped, StopState
from cdc.model.position import Cut, format_lsn
from cdc.source.slot import SlotFacts

FILE: Final = "source.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """One source, as IDENTIFY_SYSTEM and the configuration name it."""

    system_identifier: str
    database: str
    slot: str


def recorded(folder: Path) -> Identity | None:
    """The source that this log belongs to; None before its first start."""
    try:
        return Identity(**json.loads((folder / FILE).read_text()))
    except FileNotFoundError:
        return None


def record(folder: Path, identity: Identity) -> None:
    """Durable when it returns."""
    aside = folder / f".{FILE}.{os.getpid()}"
    with open(aside, "w") as file:
        json.dump(asdict(identity), file)
        file.flush()
        os.fsync(file.fileno())
    crashpoint("identity.written_aside")
    aside.replace(folder / FILE)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(known: Identity, found: Identity, head: Cut, facts: SlotFacts) -> None:
    """Raises Stopped or ConfigError when the stream that is about to start is not the continuation of this log."""
    if known.system_identifier != found.system_identifier:
        raise Stopped(
            StopState.SYSTEM_CHANGED,
            f"the log holds changes of another cluster (system identifier {known.system_identifier}, now {found.system_identifier})",
            hint="point source.dsn at the old cluster, or start an empty log.dir for the new one",
        )
    if known.database != found.database or known.slot != found.slot:
        raise ConfigError(
            f"the log was filled from database {known.database!r} through slot {known.slot!r}, "
            f"not {found.database!r} through {found.slot!r}",
            hint="correct source.dsn and source.slot, or use another log.dir",
        )
    if facts.confirmed_lsn is not None and facts.confirmed_lsn > head.commit_lsn:
        raise Stopped(
            StopState.SLOT_REPLACED,
            f"replication slot {found.slot!r} stands at {format_lsn(facts.confirmed_lsn)}, ahead of the log at "
            f"{format_lsn(head.commit_lsn)}: it was made anew or moved, and changes in between are not in the log",
        )
    if facts.server_lsn < head.commit_lsn:
        raise Stopped(
            StopState.DIVERGED,
            f"the server's WAL ends at {format_lsn(facts.server_lsn)}, before the log's last commit {format_lsn(head.commit_lsn)}: "
            "it was restored, or a standby that lacked those commits was promoted",
        )
