"""A run as a file: its bytes, and writing it so that it is whole or not there.

====================  ==========================================================================================
8 bytes               ``cdc-run2``
uint32, uint32        the header's length, and its CRC-32C (little endian, as everything here)
header                JSON: log, history, topic, range, chapter, the digests' seed, turns, the number of pairs, both checksums
to a multiple of 64   zeros
uint64 × pairs        the digests, rising
int64 × pairs         the positions, rising within one digest
====================  ==========================================================================================
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.lookup.entries import NO_ENTRIES, Entries
from cdc.lookup.scan import KeyRun
from cdc.lookup.standing import Turn, TurnEffect
from cdc.model.topic import TopicSchema

ASIDE: Final = ".aside-"
_MAGIC: Final = b"cdc-run2"
_LENGTHS: Final = struct.Struct("<II")
_ALIGNED: Final = 64
_PIECE_BYTES: Final = 1 << 20
"""Checksums are made of so much at once: no other thread runs meanwhile."""


class RunDamaged(Exception):
    """Not a run, or not the one that it should be: says why, without the path."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The facts that tell whose a run is: the log's id, the history that the log was in, the topic, and the seed of the digests."""

    log: str
    history: str
    topic: str
    seed: int


def encode_header(run: KeyRun, origin: Origin, count: int, checksums: tuple[int, int]) -> bytes:
    """The file's bytes before the pairs. Of the same length for any checksums."""
    schemas = {one: number for number, one in enumerate(dict.fromkeys([*(turn.schema for turn in run.turns), run.held]))}
    header = {
        "log": origin.log, "history": origin.history, "topic": origin.topic, "seed": origin.seed,
        "low": run.low, "high": run.high, "chapter": run.chapter, "count": count,
        "hashes": f"{checksums[0]:08x}", "positions": f"{checksums[1]:08x}",
        "schemas": [None if one is None else one.to_json() for one in schemas],
        "turns": [(turn.at, str(turn.effect), schemas[turn.schema]) for turn in run.turns],
        "held": schemas[run.held], "last": run.last,
    }  # fmt: skip
    text = json.dumps(header).encode()
    whole = _MAGIC + _LENGTHS.pack(len(text), google_crc32c.value(text)) + text
    return whole + bytes(-len(whole) % _ALIGNED)


Read = Callable[[int, int], bytes]
"""Size and place → the file's bytes there."""


def decode(data: pa.Buffer, read: Read | None = None) -> tuple[KeyRun, Origin]:
    """The run, whose pairs lie in ``data``. ``read``: gives the same bytes without keeping other threads waiting for the disk. Raises RunDamaged when a
    single byte differs from what was written."""
    try:
        return _decoded(data, read or (lambda size, at: data.slice(at, size).to_pybytes()))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error) as error:
        raise RunDamaged(f"not a run ({type(error).__name__})") from None


def _decoded(data: pa.Buffer, read: Read) -> tuple[KeyRun, Origin]:
    begin = len(_MAGIC) + _LENGTHS.size
    if data.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise RunDamaged("not a run")
    length, checksum = _LENGTHS.unpack(data.slice(len(_MAGIC), _LENGTHS.size).to_pybytes())
    text = data.slice(begin, length).to_pybytes()
    if len(text) != length or google_crc32c.value(text) != checksum:
        raise RunDamaged("its header's checksum differs")
    header: dict[str, Any] = json.loads(text)
    count, start = int(header["count"]), begin + length + -(begin + length) % _ALIGNED
    if data.size != start + 16 * count or any(data.slice(begin + length, start - begin - length).to_pybytes()):
        raise RunDamaged("it is longer or shorter than it says")
    parts = data.slice(start, 8 * count), data.slice(start + 8 * count)
    for name, begins in (("hashes", start), ("positions", start + 8 * count)):
        if _checksum(read, begins, 8 * count) != int(header[name], 16):
            raise RunDamaged(f"the checksum of its {name} differs")
    entries = Entries(np.frombuffer(parts[0], np.uint64), np.frombuffer(parts[1], np.int64)) if count else NO_ENTRIES
    schemas = [None if one is None else TopicSchema.from_json(one) for one in header["schemas"]]
    turns = tuple(Turn(at, TurnEffect(effect), _some(schemas[number])) for at, effect, number in header["turns"])
    position, lsn = header["last"]
    run = KeyRun(header["low"], header["high"], header["chapter"], entries, turns, schemas[header["held"]], (position, lsn))
    return run, Origin(header["log"], header["history"], header["topic"], header["seed"])


def _checksum(read: Read, at: int, size: int) -> int:
    checksum, end = 0, at + size
    while at < end:
        piece = read(min(_PIECE_BYTES, end - at), at)
        if not piece:
            raise RunDamaged("it has become shorter")
        checksum, at = google_crc32c.extend(checksum, piece), at + len(piece)
    return int(checksum)


def _some(schema: TopicSchema | None) -> TopicSchema:
    if schema is None:
        raise ValueError("a turn without a definition")
    return schema


def mapped(path: Path) -> tuple[KeyRun, Origin]:
    """The run in a file, which may be removed meanwhile. Raises RunDamaged, FileNotFoundError and other OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise RunDamaged("not a file with a run")
        data = mmap.mmap(fd, found.st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        return decode(pa.py_buffer(data), lambda size, at: os.pread(fd, size, at))
    finally:
        os.close(fd)


def write(path: Path, run: KeyRun, origin: Origin, count: int, pieces: Iterable[Entries]) -> None:
    """Puts a run of ``count`` pairs, which come as ``pieces`` that follow one another, into a file that is durable on return, and was not there or
    another one before. Raises OSError: then nothing of it is left."""
    aside = path.with_name(f"{ASIDE}{path.name}")
    try:
        aside.unlink(missing_ok=True)
        fd = os.open(aside, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _fill(fd, run, origin, count, pieces)
            os.fsync(fd)
        finally:
            os.close(fd)
        crashpoint("lookup.written")
        aside.replace(path)
        crashpoint("lookup.renamed")
        sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def put_apart(folder: Path, entries: Entries) -> Entries:
    """The same pairs, out of a file that has no name any more: they take the disk's room as long as they are in use, and no memory. Raises OSError."""
    path = folder / f"{ASIDE}apart"
    try:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            path.unlink()
            for number, part in enumerate(_bytes(entries)):
                _write_all(fd, part, number * len(part))
            data = mmap.mmap(fd, 16 * entries.pairs, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return Entries(np.frombuffer(data, np.uint64, entries.pairs), np.frombuffer(data, np.int64, offset=8 * entries.pairs))


def _fill(fd: int, run: KeyRun, origin: Origin, count: int, pieces: Iterable[Entries]) -> None:
    start = len(encode_header(run, origin, count, (0, 0)))
    done, checksums = 0, [0, 0]
    for piece in pieces:
        for number, part in enumerate(_bytes(piece)):
            checksums[number] = google_crc32c.extend(checksums[number], part)
            _write_all(fd, part, start + 8 * (number * count + done))
        done += piece.pairs
    if done != count:
        raise ValueError(f"{done} pairs where {count} were announced")
    _write_all(fd, encode_header(run, origin, count, (checksums[0], checksums[1])), 0)


def _bytes(piece: Entries) -> Iterator[bytes]:
    for part in piece:
        yield part.tobytes()


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def sync_folder(path: Path) -> None:
    """Makes the names in it durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
