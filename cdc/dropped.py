"""Which columns the policy ``drop`` has kept out of the log, as of capture's last start: ``dropped.json`` in the log's folder.

The log has nothing of them, and a column that it lacks may as well be a new one. So what was kept back is written down before the first row is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cdc import jsonfile
from cdc.errors import LogCorrupt

FILE: Final = "dropped.json"
_FORMAT: Final = 1

Dropped = Mapping[str, frozenset[str]]
"""``schema.table`` → names of columns."""


def load(folder: Path) -> Dropped:
    """Nothing when there is no such file. Raises LogCorrupt when it is not ours."""
    path = folder / FILE
    try:
        raw: Any = jsonfile.decode(path.read_bytes())
        if raw["format"] != _FORMAT:
            raise LogCorrupt(f"{path} has format {raw['format']}, this version reads {_FORMAT}")
        return {str(table): frozenset(map(str, columns)) for table, columns in raw["tables"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LogCorrupt(
            f"{path} is damaged: which columns were kept out of the log is not known any more; make sure that [source.columns] still "
            "names them, then remove it"
        ) from None


def save(folder: Path, dropped: Dropped) -> None:
    """Durable on return. Writes nothing when the file says so already."""
    if dropped == load(folder):
        return
    path = folder / FILE
    aside = path.with_suffix(".aside")
    tables = {table: sorted(columns) for table, columns in dropped.items()}
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(jsonfile.encode({"format": _FORMAT, "tables": tables}))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
