"""Sealed files that are away: in the tier, with a small stub in their place, and copied into a bounded cache beside the log while they are read.

A stub is believed as everything in the log's folder is: it carries its own checksum. What the tier gives is believed only when it has the size and
the digest that the stub says, so nobody who can write there can change what the log says. A copy in the cache is checked like any sealed file
whenever it is opened, and fetched again where it is damaged. Several readers, in any process, share one fetch by a lock on the stub.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.diskspace import described
from cdc.errors import LogAway, LogCorrupt
from cdc.log.embedded import plainfile
from cdc.log.embedded.names import ASIDE, LogPlaces, Sealed
from cdc.log.embedded.tierstore import TierStore, store_of
from cdc.state import jsonfile
from cdc.state.statefile import StateFile

FETCH_S: Final = 120.0
"""A file that takes longer counts as not given: whoever waits for it says so, and asks again."""
STALE_S: Final = 3600.0
"""What a process that died had begun to fetch goes after so long."""
STUB_BYTES: Final = 4096
"""No stub is longer."""
_POLL_S: Final = 0.02
TRIES: Final = 3
_DIGEST_BYTES: Final = 32


class Moved(FileNotFoundError):
    """The file is no longer away: it was brought back, or replaced."""


@dataclass(frozen=True, slots=True)
class TierPlace:
    """``tier.json`` in the log's folder: where every reader finds what is away, and how large the cache may be."""

    url: str
    cache_bytes: int


TIER_FILE: Final = "tier.json"
TIER: Final = StateFile(
    format=1,
    encode=lambda tier: {"url": tier.url, "cache_bytes": tier.cache_bytes},
    decode=lambda raw: TierPlace(str(raw["url"]), int(raw["cache_bytes"])),
    unreadable=lambda path, what: LogAway(f"{path} {what}", hint="cdc run with [log.tier] url writes it again"),
)


def tier_of(root: Path) -> TierPlace | None:
    """Raises LogAway when the file is damaged."""
    return TIER.load(root / TIER_FILE)


@dataclass(frozen=True, slots=True)
class Stub:
    """The facts about one file that is away."""

    key: str
    size: int
    """Bytes."""
    digest: str
    """BLAKE2b (32 bytes) of all of it, hexadecimal."""

    def encode(self) -> bytes:
        return jsonfile.encode({"format": 1, "key": self.key, "bytes": self.size, "blake2b": self.digest}).encode()


def key_of(log_id: int, folder: str, name: Sealed) -> str:
    """Where the file lies below the tier's folder. What has the same key has the same checksum."""
    return f"{log_id:016x}/{folder}/{name.file}"


def new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def read_stub(path: Path, name: Sealed, log_id: int) -> Stub:
    """Raises FileNotFoundError, or LogCorrupt when it is damaged, or another file's."""
    data = plainfile.content(path)
    try:
        raw = jsonfile.decode(data[:STUB_BYTES])
        stub = Stub(raw["key"], raw["bytes"], raw["blake2b"])
        if raw["format"] != 1 or type(stub.size) is not int or stub.size <= 0 or len(bytes.fromhex(stub.digest)) != _DIGEST_BYTES:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LogCorrupt(f"{path}: not the stub of a file that is away") from None
    if stub.key != key_of(log_id, path.parent.name, name):
        raise LogCorrupt(f"{path}: belongs elsewhere (renamed, swapped or of another log)")
    return stub


class Cache:
    """The copies, by digest. The bound holds for what lies there; a reader keeps what it has open a little longer."""

    def __init__(self, places: LogPlaces) -> None:
        self._root = places.root
        self._folder = places.cache

    def fetched(self, path: Path, stub: Stub) -> Path:
        """The copy of the file whose stub lies at ``path``; it may be pushed out at any time, and its content has yet to be checked.

        Raises LogAway when the tier does not give it, LogCorrupt when it has another content, Moved when it is no longer away.
        """
        copy = self._folder / f"{stub.digest}.parquet"
        if self._is_there(copy, stub):
            return copy
        deadline = time.monotonic() + FETCH_S
        with self._only(path, stub, deadline):
            if not self._is_there(copy, stub):
                self._fetch(path, stub, copy, deadline)
        return copy

    def forget(self, copy: Path) -> None:
        copy.unlink(missing_ok=True)

    def keep_only(self, digests: set[str]) -> None:
        """The copies of what is away no longer go: what the log has dropped must not stay readable here. Who has one open keeps it so long."""
        for copy in self._folder.glob("*.parquet"):
            if not copy.name.startswith(ASIDE) and copy.stem not in digests:
                copy.unlink(missing_ok=True)

    def _is_there(self, copy: Path, stub: Stub) -> bool:
        try:
            os.utime(copy)  # the one that was used longest ago is pushed out first
            return copy.stat().st_size == stub.size
        except FileNotFoundError:
            return False

    @contextmanager
    def _only(self, path: Path, stub: Stub, deadline: float) -> Iterator[None]:
        """Nobody else fetches this file meanwhile."""
        try:
            fd = plainfile.opened(path)
        except FileNotFoundError:
            raise Moved(path) from None
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise _too_slow(stub) from None
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(fd)

    def _fetch(self, path: Path, stub: Stub, copy: Path, deadline: float) -> None:
        tier = tier_of(self._root)
        if tier is None:
            raise LogAway(f"{path}: nothing says where its file is", hint="cdc run with [log.tier] url writes tier.json again")
        aside = copy.with_name(f"{ASIDE}{copy.name}")
        try:
            self._make_room(aside, stub.size, tier.cache_bytes)
            try:
                if not any(_copied(store_of(tier.url), path, stub, aside, deadline) for _ in range(2)):
                    raise LogCorrupt(f"{path}: the file in the tier {tier.url} has another content than was put there")
                aside.replace(copy)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
        except Moved:
            raise
        except OSError as error:
            hint = "make room, or make the folder writable; it then goes on by itself"
            raise LogAway(f"the log's cache cannot be written: {described(error)}", hint=hint) from None

    def _make_room(self, aside: Path, size: int, most: int) -> None:
        """Reserves so many bytes under the name ``aside``, and pushes out what is then too much."""
        jsonfile.make_folder(self._folder)
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            aside.unlink(missing_ok=True)
            self._push_out(most - size)
            reserved = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(reserved, size)
            finally:
                os.close(reserved)
        finally:
            os.close(fd)

    def _push_out(self, most: int) -> None:
        found = []
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                stale = entry.name.startswith(ASIDE) and facts.st_mtime < time.time() - STALE_S
                if entry.name.endswith(".parquet"):
                    found.append((not stale, entry.name.startswith(ASIDE), facts.st_mtime_ns, facts.st_size, entry.path, stale))
        total = sum(one[3] for one in found)
        for _, fetching, _, size, name, stale in sorted(found):
            if stale or (total > most and not fetching):
                with contextlib.suppress(FileNotFoundError):
                    Path(name).unlink()
                total -= size


def _copied(store: TierStore, path: Path, stub: Stub, aside: Path, deadline: float) -> bool:
    """Writes what the tier gives; whether it is what was put there."""
    size = store.size(stub.key)
    if size is None:
        if not path.exists():
            raise Moved(path)
        hint = f"put {stub.key} back there (a lifecycle rule, or another url in [log.tier]?); it then goes on by itself"
        raise LogAway(f"{path}: its file is not in the log's tier {store.url}", hint=hint)
    if size != stub.size:
        return False
    digest, at = new_digest(), 0
    with closing(store.chunks(stub.key)) as chunks, open(aside, "r+b") as file:
        for chunk in chunks:
            if time.monotonic() > deadline:
                raise _too_slow(stub)
            at += len(chunk)
            if at > stub.size:
                return False
            digest.update(chunk)
            file.write(chunk)
    if at < stub.size:
        raise LogAway(f"the log's tier {store.url} gave only a part of {stub.key}", hint="it is asked again by itself")
    return digest.hexdigest() == stub.digest


def same_as(store: TierStore, stub: Stub) -> bool:
    """Whether the tier holds what the stub says, by reading all of it. Raises LogAway."""
    if store.size(stub.key) != stub.size:
        return False
    digest, at, deadline = new_digest(), 0, time.monotonic() + FETCH_S
    for chunk in store.chunks(stub.key):
        if time.monotonic() > deadline:
            raise _too_slow(stub)
        digest.update(chunk)
        at += len(chunk)
    return at == stub.size and digest.hexdigest() == stub.digest


def stub_of(key: str, data: pa.Buffer) -> Stub:
    digest = new_digest()
    digest.update(data)
    return Stub(key, len(data), digest.hexdigest())


def _too_slow(stub: Stub) -> LogAway:
    return LogAway(f"the log's tier did not give {stub.key} within {FETCH_S:.0f} s", hint="it is asked again by itself")


def too_small(path: Path) -> LogAway:
    return LogAway(f"{path}: its copy left the cache before it was read", hint="give [log.tier] more cache_mb")
