"""Which replication slot is ours: kept in the log's folder, because the server does not say who made a slot.

A slot that nobody has read stands exactly where it was made. Once the log follows it, what the log has confirmed says so instead
(``cdc.source.identity``). What is under way is recorded before it is done, so that a crash in between leaves no slot that looks foreign.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdc import folders
from cdc.errors import ConfigError, LogCorrupt
from cdc.model.position import Lsn
from cdc.state.statefile import StateFile

FILE: Final = "slot.json"


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """A record of what we have done with a slot, or are about to do."""

    slot: str
    database: str
    lsn: int
    """Where we left the slot; while it is under way, a place that the slot has passed when it is ours."""
    settled: bool

    def covers(self, slot: str, database: str | None, confirmed_lsn: Lsn | None) -> bool:
        """Whether the slot stands where we have put it, so that nobody else has read or made it. It stands nowhere while it is made."""
        if (slot, database) != (self.slot, self.database):
            return False
        if self.settled:
            return confirmed_lsn == self.lsn
        return confirmed_lsn is None or confirmed_lsn >= self.lsn


def recorded(folder: Path) -> SlotClaim | None:
    """The claim that was recorded last. Raises LogCorrupt when the file is not ours, ConfigError when it cannot be read."""
    path = folder / FILE
    try:
        return _FILE.load(path)
    except PermissionError:
        raise ConfigError(f"{path} belongs to another user", hint=f"sudo chown $(id -un) {path}") from None


def record(folder: Path, claim: SlotClaim) -> None:
    """Durable when it returns."""
    folders.own(folder, "log.dir")
    _FILE.save(folder / FILE, claim)


def withdraw(folder: Path, claim: SlotClaim) -> None:
    """Withdraws the claim on what could not be done. Another process's claim stays."""
    if recorded(folder) == claim:
        _FILE.remove(folder / FILE)


_FILE: Final = StateFile(
    format=1, encode=asdict, decode=lambda raw: SlotClaim(**raw), unreadable=lambda path, what: LogCorrupt(f"{path} {what}")
)
