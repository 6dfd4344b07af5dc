"""File and folder names. A topic's name is whatever Postgres allows; a folder's name is not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from cdc.log.embedded.format import crc32c

HEAD: Final = "head"
TIMELINE: Final = "timeline"
LOCK: Final = "lock"
TOPICS: Final = "topics"
ASIDE: Final = ".aside-"
"""Prefix of a file that is being written and does not count yet."""
AWAY: Final = ".away"
"""Suffix of the stub that stands beside the place of a sealed file which is in the tier."""
CACHE: Final = "cache"

_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_TIMELINE: Final = re.compile(rf"^{TIMELINE}-(\d{{8,10}})$")
_READABLE_BYTES: Final = 160
_SEGMENT: Final = re.compile(r"^(\d{20})\.seg$")
_SEALED: Final = re.compile(r"^(\d{20})-(\d{20})-(\d{1,12})-([0-9a-f]{8})(?:-([1-9]\d{0,9}))?\.parquet$")


@lru_cache(maxsize=4096)
def folder_of(topic: str) -> str:
    """The topic's folder: its name percent-encoded, cut to a length every file system takes, and a hash of the whole name.

    The hash keeps apart what the cut, or a file system that folds case or Unicode forms, would make equal. Tables are named by anyone who may
    create one, so it is long enough that nobody finds two names with the same.

    >>> folder_of('public.Orders')
    'public%2e%4frders-e2b6601b6a6b3f7f78cefb843e894f4b'
    """
    raw = topic.encode()
    readable = "".join(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in raw)
    return f"{readable[:_READABLE_BYTES]}-{blake2b(raw, digest_size=16).hexdigest()}"


def segment_name(first: int) -> str:
    return f"{first:020d}.seg"


def first_of(name: str) -> int | None:
    """The first position of a segment, from its file's name; None for any other file."""
    found = _SEGMENT.match(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, order=True)
class Sealed:
    """The facts in a sealed file's name: positions [first, last], rows, the CRC32C of all its bytes, and the generation: 0 for what a segment
    has become, else that of the REPLACED record that vouches for the file."""

    first: int
    last: int
    rows: int
    crc: int
    generation: int = 0

    @property
    def file(self) -> str:
        generation = f"-{self.generation}" if self.generation else ""
        return f"{self.first:020d}-{self.last:020d}-{self.rows}-{self.crc:08x}{generation}.parquet"

    @property
    def away(self) -> str:
        """The stub's name."""
        return f"{self.file}{AWAY}"


def sealed_of(name: str) -> Sealed | None:
    """Decodes a sealed file's name; None for any other file."""
    found = _SEALED.match(name)
    return Sealed(int(found[1]), int(found[2]), int(found[3]), int(found[4], 16), int(found[5] or 0)) if found else None


def away_of(name: str) -> Sealed | None:
    """The sealed file that a stub stands for, by the stub's name; None for any other file."""
    return sealed_of(name.removesuffix(AWAY)) if name.endswith(AWAY) else None


def digest_of(files: Iterable[Sealed]) -> int:
    """The names of a generation's files as one number. Each name holds its content's checksum, so whoever vouches for it vouches for all of them."""
    return crc32c("".join(f"{name.file}\n" for name in sorted(files)).encode())


@lru_cache(maxsize=4096)
def _folder(root: Path, topic: str) -> Path:
    return root / TOPICS / folder_of(topic)


@dataclass(frozen=True)
class LogPlaces:
    """Where everything of one log lies. Asked for at every commit, so each path is put together once."""

    root: Path

    @cached_property
    def head(self) -> Path:
        return self.root / HEAD

    def timeline(self, number: int) -> Path:
        """One of the timeline's files, from 1."""
        return self.root / f"{TIMELINE}-{number:08d}"

    def timelines(self) -> list[int]:
        """The numbers of those that are there, in order."""
        found = (_TIMELINE.match(path.name) for path in self.root.iterdir()) if self.root.exists() else ()
        return sorted(int(name[1]) for name in found if name)

    @cached_property
    def aside_timeline(self) -> Path:
        """The timeline's next file, while it is being written."""
        return self.root / f"{ASIDE}{TIMELINE}"

    @cached_property
    def former_timeline(self) -> Path:
        """The only file that the timeline had in earlier formats."""
        return self.root / TIMELINE

    @cached_property
    def lock(self) -> Path:
        return self.root / LOCK

    @cached_property
    def topics(self) -> Path:
        return self.root / TOPICS

    @cached_property
    def cache(self) -> Path:
        """Copies of sealed files that are in the tier."""
        return self.root / CACHE

    def folder(self, topic: str) -> Path:
        return _folder(self.root, topic)

    def segment(self, topic: str, first: int) -> Path:
        return self.folder(topic) / segment_name(first)
