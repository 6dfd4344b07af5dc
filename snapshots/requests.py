"""Snapshots that somebody asked for: small files in the log's folder, written by ``cdc snapshot`` and taken up by capture.

``NAME.json`` is a request, which stays until it is done, whatever is killed meanwhile; ``NAME.state`` says how far it has come. Requests may
hold keys, so only the owner reads them, and a finished one is removed; its outcome stays for a waiting command, a day at most.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from cdc.errors import HeadwaterError, LogCorrupt
from cdc.state import jsonfile
from snapshots.plan import Key

FOLDER: Final = "requests"
OUTCOME_KEPT_S: Final = 24 * 3600.0
"""A waiting command looks several times a second; of a request that nobody waits for, somebody may still look at the file."""
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Request:
    """A request to read one table: all of it, the rows that meet a condition (SQL), or those with certain keys.

    ``replace``: what the log has of rows that are gone is removed, too (the whole table only). ``keys``: as text, in the order of
    ``SourceTable.index``; a key that no row has becomes a delete.
    """

    table: str
    where: str | None = None
    keys: tuple[Key, ...] | None = None
    replace: bool = False


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """How far a request has come. ``state``: queued | running | done | failed (see ``error``)."""

    state: str = "queued"
    rows: int = 0
    """Durable in the log."""
    total: int = 0
    """About; 0: nobody knows."""
    error: str | None = None


def asked_at(name: str) -> float | None:
    """When the request of this name was made (Unix seconds); None for a name that nobody here gave."""
    number, _, _ = name.partition("-")
    return int(number) / 1e9 if number.isascii() and number.isdecimal() else None


class Requests:
    """The folder of them. Any process may use it at the same time."""

    def __init__(self, log_folder: Path) -> None:
        self._folder = log_folder / FOLDER
        self._over_since: dict[Path, float] = {}
        """Outcomes of requests that are over, and since when (monotonic) they are known here: files are dated by a clock that may be set."""

    def queue(self, request: Request) -> str:
        """The request's name. It is durable on return."""
        jsonfile.make_folder(self._folder)
        name = f"{max(time.time_ns(), 1 + self._newest()):020d}-{token_hex(4)}"
        self._write(f"{name}.json", {"format": _FORMAT, **asdict(request)})
        return name

    def pending(self) -> dict[str, Request]:
        """Name → request, oldest first. Raises LogCorrupt for a file that is not ours. Outcomes that nobody has fetched for long go."""
        self._forget_old()
        return self.unfinished()

    def unfinished(self) -> dict[str, Request]:
        """The same for whoever only looks."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                content = jsonfile.decode(path.read_bytes())
                if content.pop("format") != _FORMAT:
                    raise ValueError
                keys = content.pop("keys")
                found[path.stem] = Request(keys=None if keys is None else tuple(map(tuple, keys)), **content)
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, AttributeError):
                raise LogCorrupt(f"{path} is not a snapshot request; remove it") from None
        return found

    def tell(self, name: str, outcome: RequestOutcome) -> None:
        """A request that is done or has failed is no longer pending."""
        self._write(f"{name}.state", asdict(outcome))
        if outcome.state in ("done", "failed"):
            (self._folder / f"{name}.json").unlink(missing_ok=True)
            jsonfile.sync_folder(self._folder)

    def outcome(self, name: str) -> RequestOutcome:
        """Raises HeadwaterError when the file that says so is damaged."""
        path = self._folder / f"{name}.state"
        try:
            return RequestOutcome(**jsonfile.decode(path.read_bytes()))
        except FileNotFoundError:
            return RequestOutcome()
        except (ValueError, TypeError):
            raise HeadwaterError(f"{path} is damaged: nobody knows how far this snapshot has come", hint="cdc status") from None

    def forget(self, name: str) -> None:
        """Nobody asks for its outcome any more."""
        (self._folder / f"{name}.state").unlink(missing_ok=True)

    def _forget_old(self) -> None:
        now = time.monotonic()
        over = [path for path in self._folder.glob("*.state") if not path.with_suffix(".json").exists()]
        self._over_since = {path: self._over_since.get(path, now) for path in over}
        for path, since in self._over_since.items():
            if now - since > OUTCOME_KEPT_S:
                path.unlink(missing_ok=True)

    def _newest(self) -> int:
        """The number of the newest request that is there."""
        return max((int(path.stem.partition("-")[0]) for path in self._folder.glob("[0-9]*-*.json")), default=0)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        jsonfile.write(self._folder / name, content, aside=self._folder / f".{name}.{token_hex(4)}")
