"""Which replication slot is ours: kept in the log's folder, because the server does not say who made a slot.

A slot that nobody has read stands exactly where it was made. Once the log follows it, what the log has confirmed says so instead
(``cdc.source.identity``). What is under way is recorded before it is done, so that a crash in between leaves no slot that looks foreign.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cdc import jsonfile
from cdc.errors import ConfigError, LogCorrupt
from cdc.model.position import Lsn

FILE: Final = "slot.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """What we have done with a slot, or are about to do."""

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


def recorded(folder: Path) -> Claim | None:
    """What was recorded last. Raises LogCorrupt when the file is not ours, ConfigError when it cannot be read."""
    path = folder / FILE
    try:
        raw: dict[str, Any] = jsonfile.decode(path.read_bytes())
        if raw.pop("format") != _FORMAT:
            raise LogCorrupt(f"{path} has a format that this version does not read")
        return Claim(**raw)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise ConfigError(f"{path} belongs to another user", hint=f"sudo chown $(id -un) {path}") from None
    except (ValueError, KeyError, TypeError):
        raise LogCorrupt(f"{path} is damaged") from None


def record(folder: Path, claim: Claim) -> None:
    """Durable when it returns."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jsonfile.write(folder / FILE, {"format": _FORMAT, **asdict(claim)})


def withdraw(folder: Path, claim: Claim) -> None:
    """What was to be done has failed. Another process's claim stays."""
    if recorded(folder) == claim:
        (folder / FILE).unlink(missing_ok=True)
        jsonfile.sync_folder(folder)
