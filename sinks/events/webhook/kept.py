"""The file that a webhook keeps, since its receiver holds no mark: how far events went, and which of them are still on their way.

Everything up to the standing's ``progress`` was taken, or is among ``waiting``, by its position: the event itself stays in the log. Events that were sent but whose
file was not written yet are sent again after a crash, under the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cdc.diskspace import GOES_ON, described
from cdc.errors import StoreError
from cdc.state.statefile import StateFile
from sinks.contract import EpochPassed
from sinks.deadletters import Letter
from sinks.events.standing import EventStanding


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that was not taken yet. ``request``: which of ``KeptDeliveries.requests`` carries it; -1: none."""

    topic: str
    position: int
    request: int = -1


@dataclass(frozen=True, slots=True)
class Tried:
    """A request that was not taken. ``since_s``, ``due_s``: Unix time."""

    failed: int
    since_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class KeptDeliveries:
    """``waiting``: positions rising."""

    standing: EventStanding
    waiting: tuple[Waiting, ...] = ()
    requests: tuple[Tried, ...] = ()
    letters: tuple[Letter, ...] = ()


_Stamp = tuple[int, int, int] | None
"""A file as it was when somebody looked: every writer leaves another. None: there is none."""


class KeptFile:
    """The file of one store, as one process knows it. Not thread-safe."""

    def __init__(self, store: str, path: Path) -> None:
        self.kept: KeptDeliveries | None = None
        """As this process has written it last."""
        self._store = store
        self._path = path
        self._stamp: _Stamp = None

    @property
    def ours(self) -> bool:
        """Whether it is as this process has left it."""
        return self.kept is not None and self._look() == self._stamp

    def found(self) -> KeptDeliveries | None:
        """Its content now; ``kept`` itself while it is ours. Raises StoreError where it is damaged, or the disk refuses."""
        if self.ours:
            return self.kept
        with self._disk():
            return KEPT.load(self._path)

    def refuse_others(self) -> None:
        """Raises StoreError where another process has written it, or it is gone: it has to be read again."""
        if self.ours:
            return
        found = self.found()
        if found is not None and self.kept is not None and found.standing.epoch > self.kept.standing.epoch:
            raise EpochPassed(self._store, found.standing.epoch)
        raise StoreError(f"store {self._store}: {self._path} was replaced or removed: it is opened again", retryable=True)

    def write(self, kept: KeptDeliveries) -> None:
        """Durable on return. Raises StoreError (retryable) where the disk refuses."""
        with self._disk():
            KEPT.save(self._path, kept)
        self.kept, self._stamp = kept, self._look()

    def remove(self) -> None:
        """Durable on return."""
        KEPT.remove(self._path)
        self.kept, self._stamp = None, None

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Raises StoreError (retryable) where the disk refuses."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"store {self._store}: {described(error)}", retryable=True, hint=GOES_ON) from None

    def _look(self) -> _Stamp:
        with self._disk():
            try:
                found = self._path.stat()
            except FileNotFoundError:
                return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _encoded(kept: KeptDeliveries) -> Mapping[str, Any]:
    return {
        "standing": kept.standing.to_fields(),
        "waiting": [[one.topic, one.position, one.request] for one in kept.waiting],
        "requests": [[one.failed, one.since_s, one.due_s] for one in kept.requests],
        "letters": [{**asdict(one), "values": dict(one.values)} for one in kept.letters],
    }


def _decoded(raw: dict[str, Any]) -> KeptDeliveries:
    return KeptDeliveries(
        EventStanding.of(raw["standing"]),
        tuple(Waiting(str(topic), int(position), int(request)) for topic, position, request in raw["waiting"]),
        tuple(Tried(int(failed), float(since), float(due)) for failed, since, due in raw["requests"]),
        tuple(Letter.of(one) for one in raw["letters"]),
    )


def _unreadable(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path} {what}: it says which events were delivered",
        retryable=False,
        hint="put a copy of it back; without it events come again from where everything had been taken when the store was last seen",
    )


KEPT: Final = StateFile(format=1, encode=_encoded, decode=_decoded, unreadable=_unreadable, shared=True)
