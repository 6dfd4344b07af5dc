"""Which database, slot and publication a log was filled from: written into the log's folder, compared at every start.

What LSNs and catalogs cannot tell (a copy of the cluster that has gone its own way without a new timeline) the stream itself does:
``cdc.capture.continuity``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, LogCorrupt, Stopped, StopState
from cdc.model.position import Cut, Lsn, format_lsn, parse_lsn
from cdc.source.membership import Membership
from cdc.source.slot import PLUGIN, SlotFacts, rebuild_hint, replaced_hint
from cdc.state import jsonfile
from cdc.state.statefile import StateFile

FILE: Final = "source.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """One source, as IDENTIFY_SYSTEM, the catalog and the configuration name it."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    publication: str
    since_lsn: int
    """Where the slot stood when this log began to follow it, at the log's start or at the last rebuild: before it nothing is the log's."""
    since_position: int
    """The log's at that moment: rows that it holds up to there may have changed unseen."""
    membership: Membership = field(default_factory=lambda: Membership(0))
    plugin: str = PLUGIN


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of a timeline's history: ``timeline`` was left at ``lsn`` for the next one."""

    timeline: int
    lsn: Lsn


def recorded(folder: Path) -> Identity | None:
    """The source that this log belongs to; None before its first start. Raises LogCorrupt when the file is not ours."""
    return _FILE.load(folder / FILE)


def record(folder: Path, identity: Identity) -> None:
    """Durable when it returns."""
    aside = folder / f".{FILE}.{os.getpid()}"
    with open(jsonfile.create(aside), "w", encoding="utf-8") as file:
        file.write(jsonfile.encode({"format": _FILE.format, **_FILE.encode(identity)}))
        file.flush()
        crashpoint("identity.before_fsync")
        os.fsync(file.fileno())
    crashpoint("identity.before_rename")
    aside.replace(folder / FILE)
    crashpoint("identity.before_fsync_dir")
    jsonfile.sync_folder(folder)


def parse_history(text: str) -> tuple[Branch, ...]:
    """Parses TIMELINE_HISTORY's answer: the timelines before this one, oldest first. Raises ValueError on anything else."""
    branches = []
    for line in text.splitlines():
        fields = line.split("#", 1)[0].split()
        if fields:
            branches.append(Branch(int(fields[0]), parse_lsn(fields[1])))
    return tuple(branches)


def check_system(known: Identity, found: Identity) -> None:
    """Raises Stopped (SYSTEM_CHANGED) or ConfigError when this is not the source that the log belongs to."""
    if known.system_identifier != found.system_identifier:
        raise Stopped(
            StopState.SYSTEM_CHANGED,
            f"the log holds changes of another cluster (system identifier {known.system_identifier}, now {found.system_identifier})",
            hint=f"point source.dsn at the old cluster; or {rebuild_hint(StopState.SYSTEM_CHANGED)}",
        )
    then = (known.database, known.slot, known.publication)
    now = (found.database, found.slot, found.publication)
    if then != now:
        raise ConfigError(
            f"the log was filled from database {then[0]!r} through slot {then[1]!r} and publication {then[2]!r}, "
            f"not {now[0]!r} through {now[1]!r} and {now[2]!r}",
            hint="correct source.dsn, source.slot and source.publication, or use another log.dir",
        )


def same_slot(known: Identity, found: Identity) -> bool:
    """Whether the log has followed a slot of this name there."""
    then = (known.system_identifier, known.database, known.slot)
    return then == (found.system_identifier, found.database, found.slot)


def check_history(known: Identity, found: Identity, history: Sequence[Branch], head: Cut, facts: SlotFacts) -> None:
    """Raises Stopped (DIVERGED, SLOT_REPLACED) when the stream that is about to start is not the continuation of this log.

    history: of the timeline that the server is on.
    """
    if facts.server_lsn < head.commit_lsn:
        raise diverged(
            f"the server's WAL ends at {format_lsn(facts.server_lsn)}, before the log's last commit {format_lsn(head.commit_lsn)}: "
            "it was restored, or a standby that lacked those commits was promoted"
        )
    if found.timeline != known.timeline:
        _check_timeline(known.timeline, found.timeline, history, head)
    if facts.confirmed_lsn is not None and facts.confirmed_lsn > head.commit_lsn:
        if facts.reader:
            raise Stopped(
                StopState.SLOT_REPLACED,
                f"replication slot {found.slot!r} stands at {format_lsn(facts.confirmed_lsn)}, ahead of the log at "
                f"{format_lsn(head.commit_lsn)}, and another program reads it now (server process {facts.reader.pid})",
                hint="give this one another source.slot, or stop that program; then cdc resume SLOT_REPLACED",
            )
        raise Stopped(
            StopState.SLOT_REPLACED,
            f"replication slot {found.slot!r} stands at {format_lsn(facts.confirmed_lsn)}, ahead of the log at "
            f"{format_lsn(head.commit_lsn)}: it was made again or moved, and changes in between are not in the log",
            hint=replaced_hint(found.slot),
        )


def _check_timeline(known: int, found: int, history: Sequence[Branch], head: Cut) -> None:
    left = next((branch for branch in history if branch.timeline == known), None)
    if left is None:
        raise diverged(f"the server is on timeline {found}, which does not descend from timeline {known} that the log followed")
    if left.lsn < head.commit_lsn:
        raise diverged(
            f"the server's timeline {found} left timeline {known} at {format_lsn(left.lsn)}, before the log's last commit "
            f"{format_lsn(head.commit_lsn)}: it was restored, or a standby that lacked those commits was promoted"
        )


def diverged(message: str) -> Stopped:
    """The database lacks what the log holds."""
    return Stopped(StopState.DIVERGED, message, hint=rebuild_hint(StopState.DIVERGED))


def _decoded(raw: dict[str, Any]) -> Identity:
    held = raw.pop("membership")
    tables = {int(oid): (name, tuple(ways)) for oid, (name, ways) in held["tables"].items()}
    return Identity(**raw, membership=Membership(held["publication"], tables))


_FILE: Final = StateFile(format=1, encode=asdict, decode=_decoded, unreadable=lambda path, what: LogCorrupt(f"{path} {what}"))
