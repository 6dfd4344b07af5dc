"""Sealed files go to the tier, and come back.

The order that makes it safe: the file is written to the tier and read back from there, whole; then the stub is written aside, synced and renamed, and
the folder is synced; and only then does the file itself go. A crash leaves the file, or both, or the stub. Where it left both, recovery removes the stub:
the file is there, and putting it away again finds its copy in the tier. What no stub names is removed from the tier after the folders are
synced, so that no power loss brings back a stub whose file is gone.

Compaction may remove a file meanwhile, in its own thread. Only one of the two removes the file itself: when compaction does, the stub is taken
back here, and when this does, the stub is there for compaction to remove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import LogAway, LogCorrupt
from cdc.log.contract import SealedPlace
from cdc.log.embedded.away import TIER, TIER_FILE, Cache, Stub, TierPlace, key_of, read_stub, same_as, stub_of, tier_of
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import crc32c
from cdc.log.embedded.names import ASIDE, LogPlaces, Sealed, away_of, sealed_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealedsegment import covering, sealed_in
from cdc.log.embedded.tierstore import HINT, store_of


class EmbeddedTiering:
    """See ``cdc.log.contract.LogTiering``."""

    def __init__(
        self, dir: Path, tier: TierPlace, disk: Disk | None = None, check_place: Callable[[], None] = lambda: None
    ) -> None:
        """``check_place``: raises HeadwaterError when the log's folder is no longer the writer's. Raises ConfigError for an invalid address."""
        self._places = LogPlaces(Path(dir))
        self._tier = tier
        self._store = store_of(tier.url)
        self._disk = disk or Disk()
        self._check_place = check_place
        self._reader = EmbeddedLogReader(dir)

    def begin(self) -> None:
        self._check_place()
        try:
            known = tier_of(self._places.root)
        except LogAway:
            known = None  # damaged
        if known != self._tier:
            TIER.save(self._places.root / TIER_FILE, self._tier)

    def closed(self, upto: int) -> Iterator[SealedPlace]:
        timeline = self._reader.timeline
        for index in timeline.topics.values() if timeline else ():
            folder = self._places.folder(index.name)
            # Never of the newest segment: opening the log, and what a topic is like now, need nothing else.
            runs = [run for run in index.segments()[:-1] if run.last <= upto]
            if not runs:
                continue
            names, present = sealed_in(folder), {path.name for path in folder.iterdir()}
            for run in runs:
                if run.generation or self._reader.is_sealed(index.name, run):
                    for name in covering(names, run) or ():
                        yield SealedPlace(index.name, name.file, name.file not in present)

    def put_away(self, place: SealedPlace, go_on: Callable[[], None] = lambda: None) -> int:
        folder, name = self._found(place)
        path = folder / name.file
        try:
            with pa.memory_map(str(path)) as file:
                data = file.read_buffer()
        except FileNotFoundError:
            return 0  # compaction has replaced it
        if crc32c(data) != name.crc:
            raise LogCorrupt(f"{path}: the checksum in its name differs from its content's")
        stub = stub_of(key_of(self._log_id(), folder.name, name), data)
        crashpoint("tier.begun")
        if not same_as(self._store, stub):
            self._store.put(stub.key, data)
            crashpoint("tier.uploaded")
            go_on()
            if not same_as(self._store, stub):
                raise LogAway(f"the log's tier {self._tier.url} does not give back what was put there as {stub.key}", hint=HINT)
        crashpoint("tier.verified")
        go_on()
        self._check_place()
        self._replace(folder, name, stub)
        return stub.size

    def _replace(self, folder: Path, name: Sealed, stub: Stub) -> None:
        self._written(folder / f"{ASIDE}{name.away}", [stub.encode()])
        crashpoint("tier.stub_written_aside")
        self._disk.rename(folder / f"{ASIDE}{name.away}", folder / name.away)
        crashpoint("tier.stub_renamed")
        self._disk.sync_folder(folder)
        crashpoint("tier.stub_durable")
        try:
            self._disk.remove(folder / name.file)
        except FileNotFoundError:  # see above
            with suppress(FileNotFoundError):
                self._disk.remove(folder / name.away)
        crashpoint("tier.file_removed")
        self._disk.sync_folder(folder)

    def bring_back(self, place: SealedPlace) -> int:
        folder, name = self._found(place)
        try:
            stub = read_stub(folder / name.away, name, self._log_id())
            copy = Cache(self._places).fetched(folder / name.away, stub)
            with pa.memory_map(str(copy)) as file:
                data = file.read_buffer()
        except FileNotFoundError:
            return 0  # compaction has replaced it, or the copy has left the cache: the next look tries again
        if crc32c(data) != name.crc:
            Cache(self._places).forget(copy)
            return 0
        self._check_place()
        aside = folder / f"{ASIDE}{name.file}"
        self._written(aside, [data])
        crashpoint("tier.back_written_aside")
        if not (folder / name.away).exists():
            aside.unlink()
            return 0
        self._disk.rename(aside, folder / name.file)
        self._disk.sync_folder(folder)
        crashpoint("tier.back_durable")
        try:
            self._disk.remove(folder / name.away)
        except FileNotFoundError:  # compaction has replaced it since
            with suppress(FileNotFoundError):
                self._disk.remove(folder / name.file)
        self._disk.sync_folder(folder)
        return stub.size

    def _written(self, aside: Path, parts: list[bytes | pa.Buffer]) -> None:
        aside.unlink(missing_ok=True)
        fd = self._disk.create(aside)
        try:
            self._disk.write(fd, parts, 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def sweep(self) -> int:
        log_id = self._log_id()
        self._empty_cache(log_id)
        here = f"{log_id:016x}"
        present = self._store.keys(here)
        # Listed after the tier: nothing is put away in between, and what was brought back since may go.
        named = {key_of(log_id, folder.name, name) for folder in self._folders() for name in self._away(folder)}
        strays = [key for key in present if key not in named]
        if not strays:
            return 0
        self._check_place()
        for folder in self._folders():
            self._disk.sync_folder(folder)
        crashpoint("tier.swept")
        for key in strays:
            self._store.remove(key)
        return len(strays)

    def _empty_cache(self, log_id: int) -> None:
        digests = set()
        for folder in self._folders():
            for name in self._away(folder):
                with suppress(FileNotFoundError, LogCorrupt):  # compaction has replaced it; or whoever reads it says so
                    digests.add(read_stub(folder / name.away, name, log_id).digest)
        Cache(self._places).keep_only(digests)

    def _folders(self) -> list[Path]:
        return sorted(path for path in self._places.topics.iterdir() if path.is_dir())  # not what a file manager leaves there

    def _away(self, folder: Path) -> list[Sealed]:
        return [name for name in (away_of(path.name) for path in folder.iterdir()) if name is not None]

    def _found(self, place: SealedPlace) -> tuple[Path, Sealed]:
        self._check_place()
        name = sealed_of(place.file)
        if name is None:
            raise ValueError(f"{place.file} is not a sealed file")
        return self._places.folder(place.topic), name

    def _log_id(self) -> int:
        timeline = self._reader.timeline
        if timeline is None:
            raise ValueError("there is no log")
        return timeline.log_id

    def close(self) -> None:
        self._reader.close()
