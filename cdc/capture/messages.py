"""The walsender's bytes as an index of messages. Pure: finds frames, transactions and rows in a block, copies nothing.

Formats: manual, "Message Formats" (CopyData and its siblings), "Streaming Replication Protocol" (XLogData ``w``, keepalive ``k``)
and "Logical Replication Message Formats" (pgoutput). All integers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from cdc.errors import ProtocolError
from cdc.kernels.jit import kernel
from cdc.pgvalues.integers import read_i64, read_u32
from cdc.pgvalues.values import Bytes

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 UTC in microseconds since 1970; pgoutput counts from there."""

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
    "a message that cannot stand inside a streamed block or a prepared transaction",
    "a STREAM STOP or PREPARE without its beginning",
)

SPAN: Final = 0
"""Stands for a letter: whole frames of a transaction that cannot be decoded yet, to be spooled as they are."""

SPOOLING: Final = np.zeros(256, np.bool_)
"""The kinds of messages (and ``SPAN``) that concern transactions in progress or prepared; they stand between whole transactions."""
SPOOLING[[SPAN, *b"SEcAbPpKr"]] = True


class Inside(IntEnum):
    """Between which messages a block ends."""

    NOTHING = 0
    TRANSACTION = 1
    """BEGIN and COMMIT."""
    STREAM = 2
    """STREAM START and STREAM STOP."""
    PREPARED = 3
    """BEGIN PREPARE and PREPARE."""


@dataclass(frozen=True, slots=True)
class Open:
    """The transaction that a block ends in (its BEGIN was seen, its COMMIT was not)."""

    xid: int
    commit_lsn: int
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of a transaction whose messages were spooled. ``end_lsn`` 0: its rows come in pieces, and this is not the last."""

    xid: int
    commit_lsn: int
    commit_ts_us: int
    end_lsn: int


Aborted = npt.NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Index:
    """What one block holds. Message arrays have one entry per pgoutput message, in stream order."""

    kind: Bytes
    """The pgoutput message's letter, or ``SPAN``."""
    body: npt.NDArray[np.int64]
    """Offset of the first byte after the letter (and, in a spooled block, after the xid behind it); of a span, of its first frame."""
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
    spooling: bool
    """Whether any of the messages is of a ``SPOOLING`` kind."""
    inside: Inside
    """Where the last whole frame leaves the stream."""


def scan(block: Bytes, start: int, stop: int, open_transaction: Open | None, inside: Inside = Inside.NOTHING) -> Index:
    """Indexes the whole frames in ``block[start:stop]``; a torn last frame is left for the next call.

    inside: STREAM or PREPARED when the last block ended so; what comes before its end is one span.
    Raises ProtocolError on bytes that the protocol does not allow.
    """
    room = (stop - start) // MIN_MESSAGE_BYTES + 1
    kind = np.empty(room, np.uint8)
    wide = np.empty((4, room), np.int64)
    transactions = np.empty((4, room + 1), np.int64)
    state = np.zeros(7, np.int64)
    if open_transaction is not None:
        inside = Inside.TRANSACTION
        transactions[:, 0] = open_transaction.xid, open_transaction.commit_lsn, open_transaction.commit_ts_us, 0
    count, begun, scanned, error = _scan(block, start, stop, int(inside), kind, wide, transactions, state)
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
        spooling=bool(state[5]),
        inside=Inside(int(state[6])),
    )


def scan_spooled(block: Bytes, start: int, stop: int, commit: Commit, aborted: Aborted | None) -> Index:
    """Indexes the whole frames in ``block[start:stop]`` of a spool, all of one transaction, as ``scan`` would once it is committed.

    aborted: the subtransactions whose messages are left out, ascending; None for a transaction whose messages carry no xid (one that came
    whole, between BEGIN PREPARE and PREPARE). Raises ProtocolError as ``scan`` does.
    """
    room = (stop - start) // MIN_MESSAGE_BYTES + 1
    kind = np.empty(room, np.uint8)
    wide = np.empty((3, room), np.int64)
    count, scanned, error = _scan_spooled(
        block, start, stop, aborted is not None, _NONE if aborted is None else aborted, kind, wide
    )
    if error:
        raise ProtocolError(f"{_ERRORS[error]} ({scanned - start} bytes into a piece of {stop - start} of a spooled transaction)")
    return Index(
        kind[:count],
        wide[0, :count],
        wide[1, :count],
        wide[2, :count],
        np.zeros(count, np.int64),
        np.array([commit.xid], np.int64),
        np.array([commit.commit_lsn], np.int64),
        np.array([commit.commit_ts_us], np.int64),
        np.array([commit.end_lsn], np.int64),
        keepalive_lsn=0,
        reply_requested=False,
        scanned=scanned,
        lacks=0,
        notices=_NONE,
        ended=-1,
        spooling=False,
        inside=Inside.NOTHING,
    )


@kernel
def _scan(
    block: Bytes,
    start: int,
    stop: int,
    inside: int,
    kind: Bytes,
    wide: npt.NDArray[np.int64],
    transactions: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Returns (messages, transactions, offset after the last whole frame, error: index into _ERRORS)."""
    at = start
    span = start
    count = 0
    begun = 1 if inside == 1 else 0
    state[5] = 1 if inside >= 2 else 0
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
            if inside == 0:
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
        if inside >= 2:
            if (letter == 69 and inside == 2) or (letter == 80 and inside == 3):  # E P
                if span < at:
                    kind[count] = 0
                    wide[0, count] = span
                    wide[1, count] = at
                    wide[2, count] = 0
                    wide[3, count] = max(begun - 1, 0)
                    count += 1
                inside = 0
            elif (
                letter == 73
                or letter == 85
                or letter == 68
                or letter == 84
                or letter == 77
                or letter == 82
                or letter == 89
                or letter == 79
            ):
                at = end  # I U D T M R Y O
                continue
            else:
                return count, begun, at, 8
        elif letter == 66:  # B
            if inside != 0:
                return count, begun, at, 5
            if end - body != 20:
                return count, begun, at, 3
            inside = 1
            transactions[0, begun] = read_u32(block, body + 16)
            transactions[1, begun] = read_i64(block, body)
            transactions[2, begun] = read_i64(block, body + 8) + 946684800000000
            transactions[3, begun] = 0
            begun += 1
        elif letter == 67:  # C
            if inside != 1:
                return count, begun, at, 6
            if end - body != 25:
                return count, begun, at, 3
            if read_i64(block, body + 1) != transactions[1, begun - 1]:
                return count, begun, at, 7
            transactions[3, begun - 1] = read_i64(block, body + 9)
            inside = 0
        elif letter == 73 or letter == 85 or letter == 68:  # I U D
            if inside != 1:
                return count, begun, at, 6
            if end - body < 7:
                return count, begun, at, 3
            relation = read_u32(block, body)
        elif letter == 84:  # T
            if inside != 1:
                return count, begun, at, 6
        elif letter == 77:  # M
            if inside != 1:  # said at once, whatever becomes of the transaction that said it: nothing of ours
                at = end
                continue
        elif letter == 83 or letter == 98:  # S b
            if inside != 0:
                return count, begun, at, 5
            inside = 2 if letter == 83 else 3
            span = end
            state[5] = 1
        elif letter == 99 or letter == 65 or letter == 112 or letter == 75 or letter == 114:  # c A p K r
            if inside != 0:
                return count, begun, at, 5
            state[5] = 1
        elif letter == 69 or letter == 80:  # E P
            return count, begun, at, 9
        elif letter != 82 and letter != 89 and letter != 79:  # R Y O
            return count, begun, at, 4
        kind[count] = letter
        wide[0, count] = body
        wide[1, count] = end
        wide[2, count] = relation
        wide[3, count] = max(begun - 1, 0)
        count += 1
        at = end
    if inside >= 2 and span < at:
        kind[count] = 0
        wide[0, count] = span
        wide[1, count] = at
        wide[2, count] = 0
        wide[3, count] = max(begun - 1, 0)
        count += 1
    state[6] = inside
    return count, begun, at, 0


@kernel
def _scan_spooled(
    block: Bytes, start: int, stop: int, prefixed: bool, aborted: Aborted, kind: Bytes, wide: npt.NDArray[np.int64]
) -> tuple[int, int, int]:
    """Returns (messages, offset after the last whole frame, error: index into _ERRORS)."""
    at = start
    count = 0
    while at + 5 <= stop:
        length = read_u32(block, at + 1)
        if length < 4 or length > 1074790400:
            return count, at, 1
        end = at + 1 + length
        if end > stop:
            break
        body = at + 5
        if block[at] != 100 or block[body] == 107:  # d k
            at = end
            continue
        if end - body < 26 or block[body] != 119:  # w
            return count, at, 3
        letter = block[body + 25]
        body += 26
        if prefixed and letter != 79:  # O
            if end - body < 4:
                return count, at, 3
            subxid = read_u32(block, body)
            body += 4
            if aborted.shape[0]:
                found = np.searchsorted(aborted, subxid)
                if found < aborted.shape[0] and aborted[found] == subxid:
                    at = end
                    continue
        relation = np.int64(0)
        if letter == 73 or letter == 85 or letter == 68:  # I U D
            if end - body < 7:
                return count, at, 3
            relation = read_u32(block, body)
        elif letter != 84 and letter != 77 and letter != 82 and letter != 89 and letter != 79:  # T M R Y O
            return count, at, 8
        kind[count] = letter
        wide[0, count] = body
        wide[1, count] = end
        wide[2, count] = relation
        count += 1
        at = end
    return count, at, 0


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
