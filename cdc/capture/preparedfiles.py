"""Prepared transactions between PREPARE and their end, durable beside the log; docs/decisions/two-phase.md says why.

The server does not send a prepared transaction again once something later has been confirmed, so its frames are kept, synced, before
anything later can be confirmed. One file each in ``DIR/prepared``, written aside and renamed:

    magic "HWPREP1\\n" · u32 length of the facts · the facts (JSON) · frames · u32 CRC-32C of everything before · magic

named ``{end LSN of PREPARE:016x}-{xid:08x}``, with ``-{end LSN of COMMIT PREPARED:016x}`` behind it from the commit on: the file may go
once the log has made that LSN durable, and no earlier, for until then the commit may have to be replayed again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c
import numpy as np

from cdc.capture.messages import Aborted
from cdc.capture.spool import Spool, SpoolPiece, pieces, write
from cdc.errors import LogCorrupt, ProtocolError
from cdc.state import jsonfile

MAGIC: Final = b"HWPREP1\n"
COPY_BYTES: Final = 2**20
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})(?:-([0-9a-f]{16}))?")


@dataclass(frozen=True, slots=True)
class Kept:
    """One prepared transaction, open for replay."""

    xid: int
    aborted: Aborted | None
    """None: its messages carry no xid."""
    _fd: int
    _start: int
    _stop: int

    def pieces(self) -> Iterator[SpoolPiece]:
        return pieces(self._fd, self._start, self._stop)


class PreparedFiles:
    """The prepared transactions of one log. One thread uses it. Methods raise OSError when the disk refuses."""

    def __init__(self, log_dir: Path) -> None:
        self._folder = log_dir / "prepared"
        self._files: dict[int, Path] = {}
        """By xid, the newest PREPARE of each."""
        self._ended: dict[Path, int] = {}
        self.settled_lsn = 0
        """The LSN up to which files of committed transactions may go: the server may report these again, but nobody will ask for them."""
        if not self._folder.exists():
            return
        for path in sorted(self._folder.iterdir()):
            name = _NAME.fullmatch(path.name)
            if name is None:
                path.unlink()  # was being written when we ended; the server sends it again
                continue
            self._files[int(name[2], 16)] = path
            if name[3]:
                self._ended[path] = int(name[3], 16)

    def keep(self, spool: Spool, definitions: bytes, gid: str, end_lsn: int) -> None:
        """Durable when this returns. ``definitions``: frames of RELATION and TYPE messages that the spool's own frames rely on."""
        try:
            self._files[spool.xid] = self._keep(spool, definitions, gid, end_lsn)
        except OSError as error:
            problem = f"cannot keep a prepared transaction in {self._folder}: {os.strerror(error.errno or 0)}"
            raise OSError(error.errno, problem) from error

    def _keep(self, spool: Spool, definitions: bytes, gid: str, end_lsn: int) -> Path:
        if not self._folder.exists():
            self._folder.mkdir()
            jsonfile.sync_folder(self._folder.parent)
        facts = {"gid": gid, "prefixed": spool.prefixed, "aborted": spool.aborted.tolist()}
        said = json.dumps(facts).encode()
        head = MAGIC + len(said).to_bytes(4, "big") + said + definitions
        path = self._folder / f"{end_lsn:016x}-{spool.xid:08x}"
        aside = path.with_name(path.name + ".tmp")
        fd = os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            write(fd, memoryview(head), 0)
            crc, at = google_crc32c.value(head), 0
            buffer = bytearray(COPY_BYTES)
            while at < spool.length:
                got = os.preadv(spool.file.fileno(), [buffer], at)
                piece = bytes(memoryview(buffer)[:got])
                write(fd, memoryview(piece), len(head) + at)
                crc, at = google_crc32c.extend(crc, piece), at + got
            write(fd, memoryview(crc.to_bytes(4, "big") + MAGIC), len(head) + at)
            os.fsync(fd)
        except OSError:
            aside.unlink()
            raise
        finally:
            os.close(fd)
        aside.rename(path)
        jsonfile.sync_folder(self._folder)
        return path

    @contextmanager
    def ending(self, xid: int, gid: str, end_lsn: int) -> Iterator[Kept]:
        """The transaction whose COMMIT PREPARED has come, to be replayed within. Raises ProtocolError when it is not here, LogCorrupt."""
        path = self._files.get(xid)
        if path is None:
            raise ProtocolError(f"COMMIT PREPARED of transaction {xid}, which {self._folder} does not hold", hint="cdc doctor")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            kept = _opened(fd, path, xid, gid)
            ended = path.with_name(f"{path.name[:25]}-{end_lsn:016x}")
            # It may have been replayed before, by an earlier process: until it has been here, it must not go.
            self._ended.pop(path, None)
            self._ended.pop(ended, None)
            if ended != path:
                # Known to be over before the log can hold the commit: so nothing is left behind when we end in between.
                path.rename(ended)
                jsonfile.sync_folder(self._folder)
                self._files[xid] = ended
            yield kept
            self._ended[ended] = end_lsn
        finally:
            os.close(fd)

    def holds(self, xid: int) -> bool:
        return xid in self._files

    def rolled_back(self, xid: int) -> None:
        """Nothing happens when it is not here: the server may tell again what we have heard."""
        path = self._files.pop(xid, None)
        if path is not None:
            self._ended.pop(path, None)
            path.unlink()
            jsonfile.sync_folder(self._folder)

    def settle(self, durable_lsn: int) -> None:
        """The log holds every commit that ends at or before this LSN."""
        self.settled_lsn = max(self.settled_lsn, durable_lsn)
        for path in [path for path, end_lsn in self._ended.items() if end_lsn <= durable_lsn]:
            path.unlink()
            del self._ended[path]
            xid = int(path.name[17:25], 16)
            if self._files.get(xid) == path:
                del self._files[xid]


def _opened(fd: int, path: Path, xid: int, gid: str) -> Kept:
    """Checks the whole file first: what is replayed becomes visible only as a whole, and so it is with damage."""
    length = os.fstat(fd).st_size
    crc, at = 0, 0
    while at < length - 12:
        piece = os.pread(fd, min(COPY_BYTES, length - 12 - at), at)
        if not piece:
            break
        crc, at = google_crc32c.extend(crc, piece), at + len(piece)
    if os.pread(fd, 12, max(length - 12, 0)) != crc.to_bytes(4, "big") + MAGIC or os.pread(fd, 8, 0) != MAGIC:
        raise LogCorrupt(f"{path}: the prepared transaction is damaged")
    start = 12 + int.from_bytes(os.pread(fd, 4, 8), "big")
    facts = json.loads(os.pread(fd, start - 12, 12))
    if facts["gid"] != gid:
        raise ProtocolError(f"COMMIT PREPARED of transaction {xid} names another GID than its PREPARE did")
    return Kept(xid, np.array(facts["aborted"], np.int64) if facts["prefixed"] else None, fd, start, length - 12)
