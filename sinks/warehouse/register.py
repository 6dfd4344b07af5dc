"""Which generations a warehouse has, and which of them is live.

The *pointer* alone says which is live: a symbolic link to that generation's folder, which readers open as their warehouse. So one rename moves all tables
of the store at once. A small file says the rest: up to when others are kept, by which word the live one is held, and which was live last, for the day on which
somebody loses the link.

Whoever moves the pointer, changes the file, or lets the live generation say that it holds a cut, has the store's lock meanwhile. So once the live one is held, or
another has taken its place, no cut is committed to it any more, not even by a writer that had looked before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.model.position import Cut
from cdc.state.statefile import StateFile
from sinks.generations import GenerationEntry, GenerationState
from sinks.warehouse.disk import sync
from sinks.warehouse.generationnames import FIRST, WarehouseFolders
from sinks.warehouse.options import Options

if TYPE_CHECKING:
    from sinks.warehouse.servedcatalog import ServedGeneration

_REGISTER: Final = "register.json"
_LOCK: Final = ".lock"
_ERASED: Final = ".erased-"
_PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.02


class WarehouseGenerationReplaced(StoreError):
    """The generation is not the live one, or not held as it was: somebody has put another in its place meanwhile."""

    def __init__(self, store: str) -> None:
        super().__init__(f"store {store}: this generation is no longer the live one, or is being replaced", retryable=True)


class WarehouseRegister(Protocol):
    """One store's generations, as the place where they lie records them. Raises StoreError."""

    @property
    def folders(self) -> WarehouseFolders: ...

    def live(self) -> int: ...

    def entries(self) -> list[GenerationEntry]:
        """Those that are there, by number. None where the store was never written."""
        ...

    def begun(self, number: int) -> bool:
        """Whether the generation has a ledger."""
        ...

    def served(self, number: int) -> ServedGeneration | None:
        """The generation as a catalog beside the files knows it; None where its folder is its catalog."""
        ...

    def make(self, number: int) -> None:
        """The generation's folder is there, durably, and what was erased before is gone."""
        ...

    def point(self, number: int) -> None:
        """Has what readers go by say that this generation is live. Raises WarehouseGenerationReplaced when that is another one, or is held."""
        ...

    def lost(self) -> bool:
        """Whether what readers go by is not there, though it is to be."""
        ...

    def refuse_replaced(self, number: int) -> None:
        """Raises WarehouseGenerationReplaced where readers see another generation by now, and its tables do not say so. Takes next to no time."""
        ...

    def committing(self, number: int) -> AbstractContextManager[None]:
        """While the live generation's ledger takes a cut. Raises WarehouseGenerationReplaced where it is not live any more, or is held."""
        ...

    def held(self) -> str | None:
        """The word by which the live generation is held."""
        ...

    def hold(self, word: str, cut: Callable[[int], Cut]) -> Cut:
        """The live generation takes no cut from now on. ``cut``: gives a generation's. Returns the last that it took."""
        ...

    def let_go(self, word: str) -> None:
        """It is as before, where it is held by this word."""
        ...

    def swap(self, word: str, number: int, until: float | None) -> None:
        """Readers see this generation from now on, and the live one is kept until then. Raises WarehouseGenerationReplaced where that is not held by this
        word."""
        ...

    def remove(self, number: int) -> bool:
        """A generation goes, with all that is its own. Interrupted and done again it comes to the same. Returns whether that is all: what the first has in the
        folder that all of them are in is the caller's to remove."""
        ...

    def forget(self, number: int) -> None:
        """It has been removed."""
        ...

    def erase(self) -> None:
        """Removes every generation, but for the tables of the first in its folder, and what says which is live."""
        ...


@dataclass(frozen=True, slots=True)
class WarehouseRecord:
    """``live``: the last that was put in place, as far as this file heard of it. ``kept``: those that were live before → up to when (Unix, seconds), None:
    without an end. ``held``: the generation that is held, and a word that is used only once; it counts as long as that one is live."""

    live: int = FIRST
    kept: Mapping[int, float | None] = field(default_factory=dict)
    held: tuple[int, str] | None = None


def _put_in_place(record: WarehouseRecord, number: int) -> WarehouseRecord:
    return WarehouseRecord(number, {one: until for one, until in record.kept.items() if one != number})


def _encoded(record: WarehouseRecord) -> dict[str, Any]:
    return {"live": record.live, "kept": {str(number): until for number, until in record.kept.items()}, "held": record.held}


def _decoded(raw: dict[str, Any]) -> WarehouseRecord:
    kept = {int(number): None if until is None else float(until) for number, until in raw["kept"].items()}
    return WarehouseRecord(int(raw["live"]), kept, None if raw["held"] is None else (int(raw["held"][0]), str(raw["held"][1])))


def _unreadable(path: Path, why: str) -> StoreError:
    hint = f"put it back, or remove it: then the pointer says which generation is live, and the others are kept until cdc generations --drop: {path}"
    return StoreError(f"{path.name} of the warehouse's generations {why}", retryable=False, hint=hint)


_FILE: Final = StateFile(1, _encoded, _decoded, _unreadable, shared=True)


@dataclass(frozen=True, slots=True)
class FolderRegister:
    """See ``WarehouseRegister``: that of folders. ``pointer``: the link, absolute; None: there is the first generation only."""

    folders: WarehouseFolders
    pointer: Path | None

    @classmethod
    def of(cls, store: str, options: Options) -> FolderRegister:
        pointer = None if options.pointer is None else options.pointer.absolute()
        return cls(WarehouseFolders(options.path.absolute(), store), pointer)

    @property
    def store(self) -> str:
        return self.folders.store

    def live(self) -> int:
        """Raises StoreError where the pointer is something else than a link of ours, ConfigError where readers see one by a pointer that is no longer
        configured."""
        pointed = self._pointed()
        if pointed is not None:
            return pointed
        record = self._read() or WarehouseRecord()
        if self.pointer is None and (record.live != FIRST or record.live in record.kept):
            raise ConfigError(
                f"store {self.store}: its readers see one of several generations, and no `pointer` says which",
                hint=f"set pointer in [stores.{self.store}] as it was",
            )
        return record.live

    def entries(self) -> list[GenerationEntry]:
        """Those that are there, by number. None where the store was never written."""
        record, live = self._read(), self.live()
        kept = {} if record is None else record.kept
        with _errors("look for generations"):
            there = {number for name in _names(self.folders.home) if (number := self.folders.numbered(name)) is not None}
            there |= {number for number in (FIRST, live) if self.folders.ledger(number).exists()}
        found = []
        for number in sorted(there | set(kept)):
            if number == live:
                found.append(GenerationEntry(number, GenerationState.LIVE))
            elif number in kept or (record is None and number < live):
                found.append(GenerationEntry(number, GenerationState.KEPT, kept.get(number)))
            else:
                found.append(GenerationEntry(number, GenerationState.BUILDING))
        return found

    def begun(self, number: int) -> bool:
        return self.folders.ledger(number).exists()

    def served(self, number: int) -> None:
        """Its folder is its catalog."""

    def make(self, number: int) -> None:
        root = self.folders.root(number)
        if number == FIRST or root.is_dir():
            return
        with _errors("make a generation's folder"):
            self._sweep()
            root.mkdir(parents=True, exist_ok=True)
            for folder in (self.folders.home, self.folders.home.parent, self.folders.path):
                sync(folder)

    def point(self, number: int) -> None:
        """Puts pointer and file right for the live generation. Raises WarehouseGenerationReplaced when that is another one, or is held."""
        if self.pointer is None:
            return
        with self._locked():
            record = self._read() or WarehouseRecord()
            if self.live() != number or self.held() is not None:
                raise WarehouseGenerationReplaced(self.store)
            if self._pointed() is None:
                self._lead(number)
            if record.live != number or number in record.kept:
                self._save(_put_in_place(record, number))

    def refuse_replaced(self, number: int) -> None:
        """Raises WarehouseGenerationReplaced where readers see another generation by now. Takes next to no time."""
        if self.pointer is not None and self._pointed() not in (None, number):
            raise WarehouseGenerationReplaced(self.store)

    def lost(self) -> bool:
        """Whether the pointer is not there, though there is to be one."""
        return self.pointer is not None and self._pointed() is None

    @contextmanager
    def committing(self, number: int) -> Iterator[None]:
        """While the live generation's ledger takes a cut. Raises WarehouseGenerationReplaced where it is not live any more, or is held."""
        if self.pointer is None:
            yield
            return
        with self._locked():
            if self.held() is not None:
                raise WarehouseGenerationReplaced(self.store)
            self.refuse_replaced(number)
            yield

    def held(self) -> str | None:
        """The word by which the live generation is held."""
        record = self._read()
        return None if record is None or record.held is None or record.held[0] != self.live() else record.held[1]

    def hold(self, word: str, cut: Callable[[int], Cut]) -> Cut:
        """The live generation takes no cut from now on. ``cut``: gives a generation's. Returns the last that it took."""
        with self._locked():
            live = self.live()
            found = cut(live)
            self._save(replace(self._read() or WarehouseRecord(), held=(live, word)))
        crashpoint("generations.warehouse_held")
        return found

    def let_go(self, word: str) -> None:
        """It is as before, where it is held by this word."""
        with self._locked():
            record = self._read()
            if record is not None and self.held() == word:
                self._save(replace(record, held=None))

    def swap(self, word: str, number: int, until: float | None) -> None:
        """Readers see this generation from now on, and the live one is kept until then. Raises WarehouseGenerationReplaced where that is not held by this
        word."""
        with self._locked():
            record = self._read()
            if record is None or self.held() != word:
                raise WarehouseGenerationReplaced(self.store)
            # That counts only for one that is not live: until the pointer moves nothing has changed.
            record = replace(record, kept={**record.kept, self.live(): until})
            self._save(record)
            crashpoint("generations.warehouse_before_swap")
            self._lead(number)
            crashpoint("generations.warehouse_swapped")
            self._save(_put_in_place(record, number))

    def remove(self, number: int) -> bool:
        if number == FIRST:
            return False
        with _errors("remove a generation"):
            if (root := self.folders.root(number)).exists():
                gone = self.folders.home / f"{_ERASED}{uuid4().hex}"
                root.rename(gone)
                sync(self.folders.home)
            self._sweep()
        return True

    def forget(self, number: int) -> None:
        """It has been removed."""
        with self._locked():
            record = self._read()
            if record is not None and number in record.kept:
                self._save(replace(record, kept={one: until for one, until in record.kept.items() if one != number}))

    def erase(self) -> None:
        """Removes every generation but the first, the file and the pointer."""
        with _errors("remove the generations"):
            if self.pointer is not None and self._pointed() is not None:
                self.pointer.unlink(missing_ok=True)
                sync(self.pointer.parent)
            if self.folders.home.exists():
                shutil.rmtree(self.folders.home)
                with suppress(OSError):
                    self.folders.home.parent.rmdir()  # unless other stores have theirs in it

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Raises StoreError (retryable) where somebody else has the lock for long."""
        with _errors("lock the generations"):
            self.folders.home.mkdir(parents=True, exist_ok=True)
            door = os.open(self.folders.home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + _PATIENCE_S
            while not _taken(door):
                if time.monotonic() >= until:
                    raise StoreError(f"store {self.store}: another process swaps its generations, or hangs", retryable=True)
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(door)

    def _pointed(self) -> int | None:
        """Where the pointer leads; None where there is none."""
        if self.pointer is None:
            return None
        try:
            target = Path(os.path.normpath(self.pointer.parent / self.pointer.readlink()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"store {self.store}: its pointer {self.pointer} is not a symbolic link ({error.strerror})",
                retryable=False,
                hint=f"name another path as pointer in [stores.{self.store}], or move away what is there",
            ) from None
        number = self.folders.led_to(target)
        if number is None:
            raise StoreError(
                f"store {self.store}: its pointer {self.pointer} leads to {target}, which is not one of its generations",
                retryable=False,
                hint="give each store a pointer of its own; if the link is this store's, remove it: it is made again",
            )
        return number

    def _lead(self, number: int) -> None:
        """Readers see this generation from now on."""
        assert self.pointer is not None
        with _errors("move the pointer"):
            aside = self.pointer.with_name(f".{self.pointer.name}.{uuid4().hex}")
            self.pointer.parent.mkdir(parents=True, exist_ok=True)
            aside.symlink_to(self.folders.root(number))
            aside.rename(self.pointer)
            sync(self.pointer.parent)

    def _read(self) -> WarehouseRecord | None:
        with _errors("read which generations there are"):
            return _FILE.load(self.folders.home / _REGISTER)

    def _save(self, record: WarehouseRecord) -> None:
        with _errors("note which generations there are"):
            _FILE.save(self.folders.home / _REGISTER, record)

    def _sweep(self) -> None:
        for name in _names(self.folders.home):
            if name.startswith(_ERASED):
                shutil.rmtree(self.folders.home / name, ignore_errors=True)


def _taken(door: int) -> bool:
    try:
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the warehouse could not {doing}: {error.strerror or type(error).__name__}", retryable=True) from error
