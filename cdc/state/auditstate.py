"""How far the continuous audit of each store is, and what it has found: one small file per store under ``run_dir/audit``.

The audit goes on from it after a restart, and `cdc status`, the metrics and the page read it. It grows with the number of tables alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc.errors import StoreError
from cdc.state.statefile import StateFile


@dataclass(frozen=True, slots=True)
class Drift:
    """Rows compared, and how many of them differ."""

    rows: int = 0
    """Of the log."""
    missing: int = 0
    """Rows that the store lacks."""
    extra: int = 0
    """Rows that only the store has."""
    different: int = 0
    """Keys whose rows have other values."""
    in_flight: int = 0
    """Keys that changed while they were compared, so that nothing is said of them this time."""
    at_least: bool = False
    """There were more than were looked at."""

    @property
    def differing(self) -> int:
        return self.missing + self.extra + self.different

    def __add__(self, other: Drift) -> Drift:
        return Drift(
            self.rows + other.rows,
            self.missing + other.missing,
            self.extra + other.extra,
            self.different + other.different,
            self.in_flight + other.in_flight,
            self.at_least or other.at_least,
        )


@dataclass(frozen=True, slots=True)
class TableWork:
    """A table that is being compared, by ``ranges`` of its keys, of which ``done`` are. ``position``: the least at which one was compared."""

    seed: int
    """Of the keys' digests, by which they are divided."""
    ranges: int
    done: int = 0
    position: int = 0
    share: float = 0.0
    """Of the range at hand, about."""
    found: Drift = field(default_factory=Drift)


@dataclass(frozen=True, slots=True)
class TableStanding:
    """Times are Unix seconds; 0: never."""

    table: str
    whole_at: float = 0.0
    """When all of it was last compared and nothing differed."""
    compared_at: float = 0.0
    """When all of it was last compared."""
    position: int = 0
    """What the store held then, at least."""
    last: Drift = field(default_factory=Drift)
    """What was found then."""
    problem: str | None = None
    """Why it could not be compared when it was its turn."""
    work: TableWork | None = None

    @property
    def drift(self) -> Drift:
        """The rows known to differ: as of when all of it was last compared, or found since."""
        return self.last if self.last.differing or self.work is None or not self.work.found.differing else self.work.found


@dataclass(frozen=True, slots=True)
class AuditStanding:
    """One store's. ``round_at``: when the present round over its tables began; ``ended_at``: when one last ended. ``waits``: why nothing of it is compared now."""

    round_at: float = 0.0
    ended_at: float = 0.0
    waits: str | None = None
    tables: tuple[TableStanding, ...] = ()

    def share(self) -> float:
        """How far the present round is, from 0 to 1."""
        if not self.tables:
            return 0.0
        return sum(self._share(one) for one in self.tables) / len(self.tables)

    def _share(self, one: TableStanding) -> float:
        if one.work is not None:
            return (one.work.done + one.work.share) / one.work.ranges
        return 1.0 if one.compared_at > self.round_at else 0.0


def load(run_dir: Path, store: str) -> AuditStanding | None:
    """None before the first one. Raises StoreError for a damaged file."""
    return _FILE.load(_path(run_dir, store))


def save(run_dir: Path, store: str, standing: AuditStanding) -> None:
    """Raises OSError."""
    _FILE.save(_path(run_dir, store), standing)


def forget(run_dir: Path, store: str) -> None:
    """Durable on return."""
    _FILE.remove(_path(run_dir, store))
    _ASKED.remove(_asked_path(run_dir, store))


def ask_again(run_dir: Path, store: str, tables: Collection[str]) -> None:
    """Has these tables of the store compared next, whenever their turn would come: they were repaired. Raises OSError, StoreError."""
    _ASKED.save(_asked_path(run_dir, store), {**asked_again(run_dir, store), **dict.fromkeys(tables, time.time_ns())})


def asked_again(run_dir: Path, store: str) -> dict[str, int]:
    """Table → the word by which it was asked for, another each time. Raises StoreError for a damaged file."""
    return _ASKED.load(_asked_path(run_dir, store)) or {}


def answered(run_dir: Path, store: str, table: str, word: int) -> None:
    """The table has been compared since it was asked for by this word. Raises OSError, StoreError."""
    asked = asked_again(run_dir, store)
    if asked.get(table) != word:
        return
    left = {one: other for one, other in asked.items() if one != table}
    if left:
        _ASKED.save(_asked_path(run_dir, store), left)
    else:
        _ASKED.remove(_asked_path(run_dir, store))


def _path(run_dir: Path, store: str) -> Path:
    return run_dir / "audit" / f"{store}.json"


def _asked_path(run_dir: Path, store: str) -> Path:
    return run_dir / "audit" / f"{store}.again"


def _decoded(raw: Mapping[str, Any]) -> AuditStanding:
    return AuditStanding(raw["round_at"], raw["ended_at"], raw["waits"], tuple(_table(one) for one in raw["tables"]))


def _table(raw: Mapping[str, Any]) -> TableStanding:
    work = raw["work"]
    known = None if work is None else TableWork(**{**work, "found": Drift(**work["found"])})
    return TableStanding(**{**raw, "last": Drift(**raw["last"]), "work": known})


def _unreadable(path: Path, what: str) -> StoreError:
    return StoreError(f"{path} {what}", retryable=False, hint="remove it; the audit of the store begins again")


_FILE: Final = StateFile(format=1, encode=asdict, decode=_decoded, unreadable=_unreadable)


def _asked_for(raw: Mapping[str, Any]) -> dict[str, int]:
    return {str(table): int(word) for table, word in raw["tables"].items()}


_ASKED: Final[StateFile[dict[str, int]]] = StateFile(
    format=1,
    encode=lambda tables: {"tables": tables},
    decode=_asked_for,
    unreadable=lambda path, what: StoreError(
        f"{path} {what}", retryable=False, hint="remove it; its tables are compared in their turn"
    ),
    shared=True,
)
