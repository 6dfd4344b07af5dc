"""The walsender's bytes as an index of messages. Pure: finds frames, transactions and rows in a block, copies nothing.

Formats: manual, "Message Formats" (CopyData and its siblings), "Streaming Replication Protocol" (XLogData ``w``, keepalive ``k``)
and "Logical Replication Message Formats" (pgoutput). All integers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.capture.values import Bytes
from cdc.errors import ProtocolError
from cdc.model.kernel import inlined, kernel

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 UTC in microseconds since 1970; pgoutput counts from there."""

MAX_FRAME_BYTES: Final = 2**30 + 2**20
"""A message is one row at the most, and a row is bounded by Postgres's 1 GB allocation limit."""

MIN_MESSAGE_BYTES: Final = 31
"""Frame header 5, XLogData header 25, kind 1: sizes the index."""

_ERRORS: Final = (
    "",
    "a frame's length is out of bounds",
    "a frame of a kind that replication does not send",
    "a replication message is too short",
    "a pgoutput message of an unknown kind",
    "a BEGIN inside a transaction",
    "a row or COMMIT outside a transaction",
    "a COMMIT does not match its BEGIN",
)


@dataclass(frozen=True, slots=True)
class Open:
    """The transaction that a block ends in (its BEGIN was seen, its COMMIT was not)."""

    xid: int
    commit_lsn: int
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class Index:
    """What one block holds. Message arrays have one entry per pgoutput message, in stream order."""

    kind: Bytes
    """The pgoutput message's letter."""
    body: npt.NDArray[np.int64]
    """Offset of the first byte after the letter."""
    end: npt.NDArray[np.int64]
    """Offset after the message's last byte; also where its frame ends."""
    relation: npt.NDArray[np.int64]
    """The table's OID for I, U, D; 0 otherwise."""
    transaction: npt.NDArray[np.int64]
    """Which entry of the transaction arrays the message belongs to."""
    xid: npt.NDArray[np.int64]
    commit_lsn: npt.NDArray[np.int64]
    """LSN of the commit record, known from BEGIN on."""
    commit_ts_us: npt.NDArray[np.int64]
    """Microseconds since 1970-01-01."""
    end_lsn: npt.NDArray[np.int64]
    """End LSN of the commit; 0 for a transaction whose COMMIT is not in the block."""
    keepalive_lsn: int
    """Highest keepalive seen between transactions (0: none): everything before it has been sent."""
    reply_requested: bool
    scanned: int
    """Offset after the last whole frame."""
    lacks: int
    """Bytes that the torn last frame lacks; 0 when there is none, or its length is not there yet."""
    notices: npt.NDArray[np.int64]
    """Offset of each NoticeResponse."""
    ended: int
    """Offset of the message that ends the stream, or -1: CopyDone, ErrorResponse, or CommandComplete (a server that shuts down)."""


def scan(block: Bytes, start: int, stop: int, open_transaction: Open | None) -> Index:
    """Indexes the whole frames in ``block[start:stop]``; a torn last frame is left for the next call.

    Raises ProtocolError on bytes that the protocol does not allow.
    """
    room = (stop - start) // MIN_MESSAGE_BYTES + 1
    kind = np.empty(room, np.uint8)
    wide = np.empty((4, room), np.int64)
    transactions = np.zeros((4, room + 1), np.int64)
    state = np.zeros(5, np.int64)
    in_transaction = open_transaction is not None
    if open_transaction is not None:
        transactions[0, 0] = open_transaction.xid
        transactions[1, 0] = open_transaction.commit_lsn
        transactions[2, 0] = open_transaction.commit_ts_us
    count, begun, scanned, error = _scan(block, start, stop, in_transaction, kind, wide, transactions, state)
    if error:
        raise ProtocolError(f"{_ERRORS[error]} ({scanned - start} bytes into a block of {stop - start})")
    notices = np.empty(state[3], np.int64)
    if len(notices):
        _notices(block, start, scanned, notices)
    return Index(
        kind[:count],
        wide[0, :count],
        wide[1, :count],
        wide[2, :count],
        wide[3, :count],
        transactions[0, :begun],
        transactions[1, :begun],
        transactions[2, :begun],
        transactions[3, :begun],
        keepalive_lsn=int(state[0]),
        reply_requested=bool(state[1]),
        scanned=scanned,
        lacks=int(state[4]),
        notices=notices,
        ended=int(state[2]) - 1,
    )


@inlined
def read_u16(block: Bytes, at: int) -> Any:
    return np.int64(block[at]) << 8 | np.int64(block[at + 1])


@inlined
def read_u32(block: Bytes, at: int) -> Any:
    return np.int64(block[at]) << 24 | np.int64(block[at + 1]) << 16 | np.int64(block[at + 2]) << 8 | np.int64(block[at + 3])


@inlined
def read_i64(block: Bytes, at: int) -> Any:
    return read_u32(block, at) << 32 | read_u32(block, at + 4)


@kernel
def _scan(
    block: Bytes,
    start: int,
    stop: int,
    in_transaction: bool,
    kind: Bytes,
    wide: npt.NDArray[np.int64],
    transactions: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Returns (messages, transactions, offset after the last whole frame, error: index into _ERRORS)."""
    at = start
    count = 0
    begun = 1 if in_transaction else 0
    while at + 5 <= stop:
        length = read_u32(block, at + 1)
        if length < 4 or length > 1074790400:
            return count, begun, at, 1
        end = at + 1 + length
        frame = block[at]
        if frame != 100 and frame != 99 and frame != 67 and frame != 69 and frame != 78 and frame != 83:  # d c C E N S
            return count, begun, at, 2
        if end > stop:
            state[4] = end - stop
            break
        if frame == 99 or frame == 67 or frame == 69:
            state[2] = at + 1
            break
        if frame == 78 or frame == 83:
            if frame == 78:
                state[3] += 1
            at = end
            continue
        body = at + 5
        if end <= body:
            return count, begun, at, 3
        if block[body] == 107:  # k
            if end - body != 18:
                return count, begun, at, 3
            if not in_transaction:
                state[0] = max(state[0], read_i64(block, body + 1))
            if block[body + 17] != 0:
                state[1] = 1
            at = end
            continue
        if block[body] != 119 or end - body < 26:  # w
            return count, begun, at, 3
        letter = block[body + 25]
        body += 26
        relation = np.int64(0)
        if letter == 66:  # B
            if in_transaction:
                return count, begun, at, 5
            if end - body != 20:
                return count, begun, at, 3
            in_transaction = True
            transactions[0, begun] = read_u32(block, body + 16)
            transactions[1, begun] = read_i64(block, body)
            transactions[2, begun] = read_i64(block, body + 8) + 946684800000000
            begun += 1
        elif letter == 67:  # C
            if not in_transaction:
                return count, begun, at, 6
            if end - body != 25:
                return count, begun, at, 3
            if read_i64(block, body + 1) != transactions[1, begun - 1]:
                return count, begun, at, 7
            transactions[3, begun - 1] = read_i64(block, body + 9)
            in_transaction = False
        elif letter == 73 or letter == 85 or letter == 68:  # I U D
            if not in_transaction:
                return count, begun, at, 6
            if end - body < 7:
                return count, begun, at, 3
            relation = read_u32(block, body)
        elif letter == 84:  # T
            if not in_transaction:
                return count, begun, at, 6
        elif letter == 77:  # M
            if not in_transaction:  # said at once, whatever becomes of the transaction that said it: nothing of ours
                at = end
                continue
        elif letter != 82 and letter != 89 and letter != 79:  # R Y O
            return count, begun, at, 4
        kind[count] = letter
        wide[0, count] = body
        wide[1, count] = end
        wide[2, count] = relation
        wide[3, count] = max(begun - 1, 0)
        count += 1
        at = end
    return count, begun, at, 0


@kernel
def _notices(block: Bytes, start: int, stop: int, found: npt.NDArray[np.int64]) -> None:
    """Offsets of the notices among the whole frames in ``block[start:stop]``."""
    at = start
    count = 0
    while at < stop and count < found.shape[0]:
        if block[at] == 78:
            found[count] = at
            count += 1
        at += 1 + read_u32(block, at + 1)
