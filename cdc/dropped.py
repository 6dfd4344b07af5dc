"""Which columns the policy ``drop`` has kept out of the log, as of capture's last start: ``dropped.json`` in the log's folder.

The log has nothing of them, and a column that it lacks may as well be a new one. So what was kept back is written down before the first row is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cdc import jsonfile
from cdc.errors import LogCorrupt

FILE: Final = "dropped.json"
_FORMAT: Final = 1

Dropped = Mapping[str, frozenset[str]]
"""``schema.table`` → names of columns."""


def load_dropped(folder: Path) -> Dropped:
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


def save_dropped(folder: Path, dropped: Dropped) -> None:
    """Durable on return. Writes nothing when the file says so already."""
    if dropped == load_dropped(folder):
        return
    tables = {table: sorted(columns) for table, columns in dropped.items()}
    jsonfile.write(folder / FILE, {"format": _FORMAT, "tables": tables})
