"""Which schema changes an operator has let through: one small JSON file for each store under ``run_dir/schema``.

A follower that waits before a change records its stop state, then writes down here what it waits for. While the stop state is held it does
not run; so when it runs again, ``cdc resume`` has let that change through.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.errors import HeadwaterError, StopState
from cdc.model.position import Position
from cdc.state.statefile import StateFile


def ask(run_dir: Path, store: str, topic: str, position: Position) -> None:
    """Writes down which change the store waits for, once its stop state is recorded. Durable on return."""
    _FILE.save(_path(run_dir, store), {**approved(run_dir, store), topic: int(position)})


def approved(run_dir: Path, store: str) -> Mapping[str, int]:
    """Topic → position of the last change that the store has waited for: it and those before it are let through."""
    return _FILE.load(_path(run_dir, store)) or {}


def forget(run_dir: Path, store: str) -> None:
    """Durable on return."""
    _FILE.remove(_path(run_dir, store))


def asked_topics(run_dir: Path) -> set[str]:
    """Topics of which any store has waited for a change."""
    return {topic for path in (run_dir / "schema").glob("[!.]*.json") for topic in _FILE.load(path) or {}}


def _path(run_dir: Path, store: str) -> Path:
    return run_dir / "schema" / f"{store}.json"


def _unreadable(path: Path, what: str) -> HeadwaterError:
    hint = f"remove it: the store then stops once more before its next schema change that waits, for cdc resume {StopState.SCHEMA_PAUSED}"
    return HeadwaterError(f"{path} {what}: which schema changes were let through is not known any more", hint=hint)


_FILE: Final[StateFile[Mapping[str, int]]] = StateFile(
    format=1,
    encode=lambda asked: {"topics": dict(asked)},
    decode=lambda raw: {str(topic): int(position) for topic, position in raw["topics"].items()},
    unreadable=_unreadable,
    shared=True,
)
