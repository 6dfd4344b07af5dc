"""Transactions that the server sends before they have ended: their raw frames on disk, so that memory stays bounded.

Every transaction has an anonymous file of its own, which vanishes with the connection or the process: the server sends a transaction
again, from its first change, after every reconnect before its end is confirmed.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cdc.capture import letters
from cdc.capture.messages import Aborted
from cdc.errors import ProtocolError
from cdc.kernels.jit import kernel
from cdc.pgvalues.integers import read_u32
from cdc.pgvalues.values import Bytes

PIECE_BYTES: Final = 4 * 2**20
"""The piece of a spool that is read at once, and so becomes one group; more only for a frame that is larger."""


@dataclass(frozen=True, slots=True)
class SpoolPiece:
    """Whole frames: ``block[:stop]``, valid until the next piece."""

    block: Bytes
    stop: int
    at: int
    """Where in the spool they begin."""
    last: bool


class Spool:
    """One transaction's frames. ``prefixed``: every message in them carries the xid of its (sub)transaction behind its letter.

    ``add`` raises OSError when the disk is full; the connection has to start over then, and nothing is lost.
    """

    def __init__(self, folder: Path, xid: int, *, prefixed: bool = True) -> None:
        self.xid = xid
        self.prefixed = prefixed
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - closed by ``close``
        self.length = 0
        self._aborted = array("I")
        self._begins, self._ordinals = array("q"), array("q")

    def add(self, frames: Bytes, ordinal: int) -> None:
        """Whole frames of the transaction. ``ordinal`` rises from call to call: see ``ordinal_at``."""
        self._begins.append(self.length)
        self._ordinals.append(ordinal)
        try:
            write(self.file.fileno(), frames.data, self.length)
        except OSError as error:
            problem = f"cannot spool a transaction in progress in {self._folder}: {os.strerror(error.errno or 0)}"
            raise OSError(error.errno, problem) from error
        self.length += len(frames)

    def abort(self, subxid: int) -> None:
        """The subtransaction was rolled back, with everything that it has sent."""
        self._aborted.append(subxid)

    @property
    def aborted(self) -> Aborted:
        """Ascending."""
        return np.unique(np.asarray(self._aborted, np.int64))

    def ordinal_at(self, at: int) -> int:
        """With which ordinal the frame at this offset was added."""
        return self._ordinals[bisect_right(self._begins, at) - 1]

    def pieces(self) -> Iterator[SpoolPiece]:
        """All of it, in order; nothing when it is empty."""
        return pieces(self.file.fileno(), 0, self.length)

    def close(self) -> None:
        self.file.close()


class Spools:
    """The spools of one connection, by the xid of the top-level transaction."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spools: dict[int, Spool] = {}

    def begin(self, xid: int, *, first: bool, prefixed: bool = True) -> Spool:
        """The spool of a transaction of which a block begins. Raises ProtocolError when an earlier block is missing."""
        spool = self._spools.get(xid)
        if first == (spool is not None):
            raise ProtocolError(f"a block of transaction {xid} that cannot be the {'first' if first else 'next'} one")
        if spool is None:
            spool = self._spools[xid] = Spool(self._folder, xid, prefixed=prefixed)
        return spool

    def abort(self, xid: int, subxid: int) -> None:
        """Rolled back: a subtransaction, or all when both are equal. Of a transaction that never sent a block nothing is to be done."""
        if xid == subxid:
            self.drop(xid)
        elif (spool := self._spools.get(xid)) is not None:
            spool.abort(subxid)

    def ended(self, xid: int) -> Spool:
        """The spool of a transaction whose end has come. Raises ProtocolError when there is none."""
        try:
            return self._spools[xid]
        except KeyError:
            raise ProtocolError(f"the end of transaction {xid} came, but no block of it") from None

    def drop(self, xid: int) -> None:
        spool = self._spools.pop(xid, None)
        if spool is not None:
            spool.close()

    def close(self) -> None:
        for xid in list(self._spools):
            self.drop(xid)


def write(fd: int, data: memoryview, at: int) -> None:
    """All of it, which one call need not do."""
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def pieces(fd: int, start: int, stop: int) -> Iterator[SpoolPiece]:
    """The frames in the file's bytes [start, stop). Raises ProtocolError when they do not end with a whole frame."""
    buffer = np.empty(min(PIECE_BYTES, stop - start), np.uint8)
    at = start
    while at < stop:
        want = min(len(buffer), stop - at)
        got = os.preadv(fd, [buffer[:want].data], at)
        found = _whole_frames(buffer, got)
        if not found.end:
            if got < want or not want < found.next_bytes <= stop - at:
                raise ProtocolError("a spooled transaction ends in the middle of a frame")
            buffer = np.empty(found.next_bytes, np.uint8)
            continue
        yield SpoolPiece(buffer, found.end, at - start, last=at + found.end == stop)
        at += found.end


class _WholeFrames(NamedTuple):
    end: int
    """Offset after the last one."""
    next_bytes: int
    """Length of the frame that follows, or 0 when not even that is there."""


@kernel
def _whole_frames(block: Bytes, stop: int) -> _WholeFrames:
    at = 0
    while at + letters.FRAME_HEADER_BYTES <= stop:
        length = 1 + read_u32(block, at + 1)
        if at + length > stop or length < letters.FRAME_HEADER_BYTES:
            return _WholeFrames(at, length)
        at += length
    return _WholeFrames(at, 0)
