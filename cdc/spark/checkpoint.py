"""Where a streaming query stands, by its checkpoint: Spark 4.1 asks a Python source how far to go before it says from where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from cdc.errors import ConfigError

OFFSET_KEYS: Final = frozenset({"position", "commit_lsn", "commit_ts_us", "history"})
"""The offset of a stream of ours, as ``cdc.spark.source.offset_of`` makes it."""


def position_in(checkpoint: str) -> int:
    """The position of the last micro-batch that the checkpoint has begun; 0 for a new one. Of several sources of ours in one query the furthest:
    no other is certain not to lie before where one of them stands.

    checkpoint: the folder that ``checkpointLocation`` names, on a file system of this machine. Raises ConfigError.
    """
    folder = _local(checkpoint) / "offsets"
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []
    if not numbers:
        return 0
    path = folder / str(numbers[-1])
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [offset["position"] for offset in map(_offset, lines) if offset is not None]
    if not found:
        raise ConfigError(f'{path} holds no offset of format("cdc")', hint="name the folder that checkpointLocation names")
    return max(found)


def _offset(line: str) -> dict[str, int] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() == OFFSET_KEYS else None


def _local(checkpoint: str) -> Path:
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        raise ConfigError(
            f"the option checkpoint is on {parts.scheme}, where only Spark can read", hint='.option("fresh", "true") for a new one'
        )
    return Path(unquote(parts.path) if parts.scheme else checkpoint)
