"""One kind of small file that a process leaves for another, or for its next start: its format, and what a damaged one means.

The bytes are ``cdc.state.jsonfile``'s: JSON behind its own checksum, private to the folder's owner, whole or not there at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from cdc.state import jsonfile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateFile(Generic[T]):
    """``format`` stands in the file, and one with another number is not read.

    encode: a value → the file's entries, other than ``format``. decode: those entries → a value; it may raise ValueError, KeyError,
    TypeError or AttributeError, which all mean that the file is not ours. unreadable: a path and what is wrong with it → the error to raise.
    shared: several processes may write it at once.
    """

    format: int
    encode: Callable[[T], Mapping[str, Any]]
    decode: Callable[[dict[str, Any]], T]
    unreadable: Callable[[Path, str], Exception]
    shared: bool = False

    def load(self, path: Path) -> T | None:
        """None when the file does not exist. Raises what ``unreadable`` makes, and OSError."""
        try:
            raw = jsonfile.decode(path.read_bytes())
            found = raw.pop("format")
            if found == self.format:
                return self.decode(raw)
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            raise self.unreadable(path, "is a folder") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self.unreadable(path, "is damaged") from None
        raise self.unreadable(path, f"has format {found}, this version reads {self.format}")

    def save(self, path: Path, value: T) -> None:
        """Durable on return, with the folders that lead to it. Raises OSError, which names the file."""
        jsonfile.make_folder(path.parent)
        aside = path.with_name(f".{path.name}.{os.getpid()}") if self.shared else None
        jsonfile.write(path, {"format": self.format, **self.encode(value)}, aside=aside)

    def remove(self, path: Path) -> None:
        """Durable on return; a file that is gone already is fine."""
        if path.parent.is_dir():
            path.unlink(missing_ok=True)
            jsonfile.sync_folder(path.parent)
