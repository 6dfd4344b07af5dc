"""Which schema changes an operator has let through: one small JSON file for each store under ``run_dir/schema``.

A follower that waits before a change records its stop state, then writes down here what it waits for. While the stop state is held it does
not run; so when it runs again, ``cdc resume`` has let that change through.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cdc import jsonfile
from cdc.errors import HeadwaterError, StopState
from cdc.model.position import Position


def ask(run_dir: Path, store: str, topic: str, position: Position) -> None:
    """Writes down which change the store waits for, once its stop state is recorded. Durable on return."""
    asked = {**approved(run_dir, store), topic: int(position)}
    path = _path(run_dir, store)
    jsonfile.make_folder(path.parent)
    jsonfile.write(path, asked, aside=path.with_name(f".{path.name}.{os.getpid()}"))


def approved(run_dir: Path, store: str) -> Mapping[str, int]:
    """Topic → position of the last change that the store has waited for: it and those before it are let through."""
    return _read(_path(run_dir, store))


def asked_topics(run_dir: Path) -> set[str]:
    """Topics of which any store has waited for a change."""
    return {topic for path in (run_dir / "schema").glob("[!.]*.json") for topic in _read(path)}


def _read(path: Path) -> Mapping[str, int]:
    try:
        return jsonfile.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        hint = f"remove it: the store then stops once more before its next schema change that waits, for cdc resume {StopState.SCHEMA_PAUSED}"
        raise HeadwaterError(f"{path} is damaged: which schema changes were let through is not known any more", hint=hint) from None


def _path(run_dir: Path, store: str) -> Path:
    return run_dir / "schema" / f"{store}.json"
