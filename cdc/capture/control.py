"""Messages about transactions in progress and about prepared ones, as values. Pure.

Formats: manual, "Logical Replication Message Formats" (protocol versions 2 to 4).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from cdc.capture.messages import POSTGRES_EPOCH_US
from cdc.errors import ProtocolError

_HEADS: Final = {
    "S": struct.Struct("!IB"),
    "E": struct.Struct("!"),
    "c": struct.Struct("!IBQQq"),
    "A": struct.Struct("!II"),
    "b": struct.Struct("!QQqI"),
    "P": struct.Struct("!BQQqI"),
    "p": struct.Struct("!BQQqI"),
    "K": struct.Struct("!BQQqI"),
    "r": struct.Struct("!BQQqqI"),
}
_NAMED: Final = "bPpKr"
"""These end with the transaction's identifier (GID)."""
_FAR: Final = 2**62
"""No LSN and no time comes near: WAL of so many bytes, microseconds of so many years. What is below fits int64 with any epoch added."""
_PARALLEL_ABORT_BYTES: Final = 8 + 8 + 8
"""Under streaming 'parallel' a STREAM ABORT tells its LSN and time as well, which say nothing to one who spools."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first: bool
    """The transaction's first block."""


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamAbort:
    xid: int
    subxid: int
    """The xid that was rolled back: a subtransaction's, or all of it when equal to ``xid``."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """The PREPARE of a transaction that came whole since BEGIN PREPARE, or (``streamed``) in blocks."""

    xid: int
    end_lsn: int
    gid: str
    streamed: bool


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts_us: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    xid: int
    gid: str


Control = StreamStart | StreamStop | StreamAbort | StreamCommit | BeginPrepare | Prepare | CommitPrepared | RollbackPrepared


def parse_control(letter: str, body: bytes) -> Control:
    """Raises ProtocolError when the message is too short, too long, a number in it is out of bounds, or its GID is not text."""
    head = _HEADS[letter]
    if len(body) < head.size:
        raise ProtocolError(f"a message of kind {letter!r} is too short")
    fields, rest = head.unpack(body[: head.size]), body[head.size :]
    if not all(-_FAR < field < _FAR for field in fields):
        raise ProtocolError(f"a message of kind {letter!r} names an LSN or a time out of bounds")
    gid = _gid(letter, rest) if letter in _NAMED else ""
    if letter not in _NAMED and rest and not (letter == "A" and len(body) == _PARALLEL_ABORT_BYTES):
        raise ProtocolError(f"a message of kind {letter!r} is too long")
    match letter:
        case "S":
            return StreamStart(fields[0], bool(fields[1]))
        case "E":
            return StreamStop()
        case "A":
            return StreamAbort(*fields)
        case "c":
            xid, _, commit_lsn, end_lsn, ts = fields
            return StreamCommit(xid, commit_lsn, end_lsn, ts + POSTGRES_EPOCH_US)
        case "b":
            return BeginPrepare(fields[3], gid)
        case "P" | "p":
            _, _, end_lsn, _, xid = fields
            return Prepare(xid, end_lsn, gid, streamed=letter == "p")
        case "K":
            _, commit_lsn, end_lsn, ts, xid = fields
            return CommitPrepared(xid, commit_lsn, end_lsn, ts + POSTGRES_EPOCH_US, gid)
        case _:
            return RollbackPrepared(fields[5], gid)


def _gid(letter: str, rest: bytes) -> str:
    if rest.find(b"\0") != len(rest) - 1:
        raise ProtocolError(f"a message of kind {letter!r} does not end with a GID")
    try:
        return rest[:-1].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a GID is not valid UTF-8") from error
