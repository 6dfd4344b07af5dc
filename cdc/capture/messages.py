"""The walsender's bytes as an index of messages. Pure: finds frames, transactions and rows in a block, copies nothing.

Formats: manual, "Message Formats" (CopyData and its siblings), "Streaming Replication Protocol" (XLogData ``w``, keepalive ``k``)
and "Logical Replication Message Formats" (pgoutput). All integers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.capture import letters
from cdc.errors import ProtocolError
from cdc.kernels.jit import inlined, kernel
from cdc.pgvalues.integers import read_i64, read_u32
from cdc.pgvalues.values import Bytes, Offsets

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 UTC in microseconds since 1970; pgoutput counts from there."""

MIN_MESSAGE_BYTES: Final = letters.FRAME_HEADER_BYTES + letters.XLOG_HEADER_BYTES + 1
"""With its letter: sizes the index."""

(
    _FINE,
    _FRAME_LENGTH,
    _FRAME_KIND,
    _TOO_SHORT,
    _UNKNOWN_KIND,
    _BEGIN_WITHIN,
    _ROW_OUTSIDE,
    _OTHER_COMMIT,
    _MISPLACED,
    _STOP_OUTSIDE,
) = range(10)
_ERRORS: Final = {
    _FRAME_LENGTH: "a frame's length is out of bounds",
    _FRAME_KIND: "a frame of a kind that replication does not send",
    _TOO_SHORT: "a replication message is too short",
    _UNKNOWN_KIND: "a pgoutput message of an unknown kind",
    _BEGIN_WITHIN: "a BEGIN inside a transaction",
    _ROW_OUTSIDE: "a row or COMMIT outside a transaction",
    _OTHER_COMMIT: "a COMMIT does not match its BEGIN",
    _MISPLACED: "a message that cannot stand inside a streamed block or a prepared transaction",
    _STOP_OUTSIDE: "a STREAM STOP or PREPARE without its beginning",
}

SPAN: Final = 0
"""Stands for a letter: whole frames of a transaction that cannot be decoded yet, to be spooled as they are."""

SPOOLING: Final = np.zeros(256, np.bool_)
"""The kinds of messages (and ``SPAN``) that concern transactions in progress or prepared; they stand between whole transactions."""
SPOOLING[[SPAN, letters.STREAM_START, letters.STREAM_STOP, letters.STREAM_COMMIT, letters.STREAM_ABORT, letters.STREAM_PREPARE]] = (
    True
)
SPOOLING[[letters.BEGIN_PREPARE, letters.PREPARE, letters.COMMIT_PREPARED, letters.ROLLBACK_PREPARED]] = True

RARE: Final = np.ones(256, np.bool_)
"""The kinds of messages that have to be looked at one by one: neither rows nor where a transaction begins and ends."""
RARE[[letters.INSERT, letters.UPDATE, letters.DELETE, letters.BEGIN, letters.COMMIT, letters.PASSED, letters.EVENT]] = False


class Inside(IntEnum):
    """Between which messages a block ends."""

    NOTHING = 0
    TRANSACTION = 1
    """BEGIN and COMMIT."""
    STREAM = 2
    """STREAM START and STREAM STOP."""
    PREPARED = 3
    """BEGIN PREPARE and PREPARE."""


_NOTHING, _TRANSACTION, _STREAM, _PREPARED = (inside.value for inside in Inside)

_ROWS: Final = (letters.INSERT, letters.UPDATE, letters.DELETE, letters.TRUNCATE)
_ANYWHERE: Final = (letters.RELATION, letters.TYPE, letters.ORIGIN, letters.MESSAGE)
_DECIDED: Final = (
    letters.STREAM_COMMIT,
    letters.STREAM_ABORT,
    letters.STREAM_PREPARE,
    letters.COMMIT_PREPARED,
    letters.ROLLBACK_PREPARED,
)
"""The fates of a transaction that was sent before."""
_BEGINNINGS: Final = (letters.BEGIN, letters.STREAM_START, letters.BEGIN_PREPARE)
_STOPS: Final = (letters.STREAM_STOP, letters.PREPARE)

_STEPS: Final[dict[Inside, dict[int, int]]] = {
    Inside.NOTHING: {
        letters.BEGIN: Inside.TRANSACTION, letters.STREAM_START: Inside.STREAM, letters.BEGIN_PREPARE: Inside.PREPARED,
        **dict.fromkeys((*_DECIDED, *_ANYWHERE), Inside.NOTHING),
        **dict.fromkeys((letters.COMMIT, *_ROWS), -_ROW_OUTSIDE), **dict.fromkeys(_STOPS, -_STOP_OUTSIDE),
    },
    Inside.TRANSACTION: {
        letters.COMMIT: Inside.NOTHING, **dict.fromkeys((*_ROWS, *_ANYWHERE), Inside.TRANSACTION),
        **dict.fromkeys((*_BEGINNINGS, *_DECIDED), -_BEGIN_WITHIN), **dict.fromkeys(_STOPS, -_STOP_OUTSIDE),
    },
    Inside.STREAM: {letters.STREAM_STOP: Inside.NOTHING, **dict.fromkeys((*_ROWS, *_ANYWHERE), Inside.STREAM)},
    Inside.PREPARED: {letters.PREPARE: Inside.NOTHING, **dict.fromkeys((*_ROWS, *_ANYWHERE), Inside.PREPARED)},
}  # fmt: skip
"""Where a message of each kind leaves the stream, or (negative) the error that it is there."""


def _table() -> npt.NDArray[np.int8]:
    """``_STEPS`` as the kernels read it: [inside, letter]."""
    table = np.full((len(Inside), 256), -_UNKNOWN_KIND, np.int8)
    table[[Inside.STREAM, Inside.PREPARED]] = -_MISPLACED
    for inside, steps in _STEPS.items():
        for letter, after in steps.items():
            table[inside, letter] = after
    return table


_AFTER: Final = _table()


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


Aborted = Offsets
_NONE: Final = np.empty(0, np.int64)

_BODY, _END, _RELATION, _TRANSACTION_OF = range(4)
"""Rows of what the kernels fill in for each message; see ``Index``."""
_XID, _COMMIT_LSN, _COMMIT_TS_US, _END_LSN = range(4)
"""Rows of what they fill in for each transaction."""


class _Scanned(NamedTuple):
    """The kernel's findings; see ``Scan``."""

    messages: int
    transactions: int
    scanned: int
    error: int
    keepalive_lsn: int
    reply_requested: bool
    lacks: int
    notices: int
    """How many there are."""
    loose: int
    """How many there are."""
    ended: int
    spooling: bool
    inside: int


class _ScannedSpool(NamedTuple):
    """The kernel's findings in a piece of a spool."""

    messages: int
    scanned: int
    """Offset after the last whole frame."""
    error: int


class Index(NamedTuple):
    """A block's messages and their transactions. Message arrays have one entry per pgoutput message, in stream order."""

    kind: Bytes
    """The pgoutput message's letter, or ``SPAN``."""
    body: Offsets
    """Offset of the first byte after the letter (and, in a spooled block, after the xid behind it); of a span, of its first frame."""
    end: Offsets
    """Offset after the message's last byte; also where its frame ends."""
    relation: Offsets
    """The table's OID for I, U, D; 0 otherwise."""
    transaction: Offsets
    """Which entry of the transaction arrays the message belongs to."""
    xid: Offsets
    commit_lsn: Offsets
    """LSN of the commit record, known from BEGIN on."""
    commit_ts_us: Offsets
    """Microseconds since 1970-01-01."""
    end_lsn: Offsets
    """End LSN of the commit; 0 for a transaction whose COMMIT is not in the block."""

    def ends_by(self, transaction: int, lsn: int) -> bool:
        """Whether the transaction ends at or before ``lsn``, which is the end of one. Where the commit's end is not there yet, its beginning tells
        (known from BEGIN on): it lies at or behind the end of another."""
        end, begin = int(self.end_lsn[transaction]), int(self.commit_lsn[transaction])
        return end <= lsn if end else begin < lsn


class Scan(NamedTuple):
    """The contents of one block: its messages, what the server says beside them, and where the block leaves the stream."""

    messages: Index
    keepalive_lsn: int
    """Highest keepalive seen between transactions (0: none): everything before it has been sent."""
    reply_requested: bool
    scanned: int
    """Offset after the last whole frame."""
    lacks: int
    """Bytes that the torn last frame lacks; 0 when there is none, or its length is not there yet."""
    notices: Offsets
    """Offset of each NoticeResponse."""
    loose: Offsets
    """Offset behind the letter of each logical message outside of any transaction; falling."""
    ended: int
    """Offset of the message that ends the stream, or -1: CopyDone, ErrorResponse, or CommandComplete (a server that shuts down)."""
    spooling: bool
    """Whether any of the messages is of a ``SPOOLING`` kind."""
    inside: Inside
    """Where the last whole frame leaves the stream."""


def scan(block: Bytes, start: int, stop: int, open_transaction: Open | None, inside: Inside = Inside.NOTHING) -> Scan:
    """Indexes the whole frames in ``block[start:stop]``; a torn last frame is left for the next call.

    inside: STREAM or PREPARED when the last block ended so; what comes before its end is one span.
    Raises ProtocolError on bytes that the protocol does not allow.
    """
    kind, messages = _room(stop - start)
    transactions = np.empty((4, len(kind) + 1), np.int64)
    if open_transaction is not None:
        inside = Inside.TRANSACTION
        transactions[:, 0] = open_transaction.xid, open_transaction.commit_lsn, open_transaction.commit_ts_us, 0
    found = _scan(block, start, stop, int(inside), kind, messages, transactions)
    if found.error:
        raise ProtocolError(f"{_ERRORS[found.error]} ({found.scanned - start} bytes into a block of {stop - start})")
    notices = np.empty(found.notices, np.int64)
    if len(notices):
        _notices(block, start, found.scanned, notices)
    return Scan(
        Index(kind[: found.messages], *messages[:, : found.messages], *transactions[:, : found.transactions]),
        found.keepalive_lsn,
        found.reply_requested,
        found.scanned,
        found.lacks,
        notices,
        messages[_BODY, len(kind) - found.loose :],
        found.ended,
        found.spooling,
        Inside(found.inside),
    )


def scan_spooled(block: Bytes, start: int, stop: int, commit: Commit, aborted: Aborted | None) -> Index:
    """Indexes the whole frames in ``block[start:stop]`` of a spool, all of one transaction, as ``scan`` would once it is committed.

    aborted: the subtransactions whose messages are left out, ascending; None for a transaction whose messages carry no xid (one that came
    whole, between BEGIN PREPARE and PREPARE). Raises ProtocolError as ``scan`` does.
    """
    kind, messages = _room(stop - start)
    left_out = _NONE if aborted is None else aborted
    found = _scan_spooled(block, start, stop, aborted is not None, left_out, kind, messages)
    if found.error:
        what = f"{found.scanned - start} bytes into a piece of {stop - start} of a spooled transaction"
        raise ProtocolError(f"{_ERRORS[found.error]} ({what})")
    transaction = np.array([[commit.xid], [commit.commit_lsn], [commit.commit_ts_us], [commit.end_lsn]], np.int64)
    return Index(kind[: found.messages], *messages[:, : found.messages], *transaction)


def body_of(block: Bytes, index: Index, at: np.int64 | int) -> bytes:
    """The message's bytes behind its letter."""
    return block[index.body[at] : index.end[at]].tobytes()


def _room(size: int) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """For each message that a block of so many bytes may hold: its kind, and the rest."""
    room = size // MIN_MESSAGE_BYTES + 1
    return np.empty(room, np.uint8), np.empty((4, room), np.int64)


@inlined
def _put(messages: npt.NDArray[np.int64], count: int, body: int, end: int, relation: int, transaction: int) -> None:
    messages[_BODY, count] = body
    messages[_END, count] = end
    messages[_RELATION, count] = relation
    messages[_TRANSACTION_OF, count] = transaction


@inlined
def _of_row(letter: int) -> bool:
    return letter == letters.INSERT or letter == letters.UPDATE or letter == letters.DELETE


@inlined
def _spools(inside: int) -> bool:
    """Whether messages there wait for their transaction's end."""
    return inside == _STREAM or inside == _PREPARED  # a tuple would cost a loop


@inlined
def _replicates(frame: int) -> bool:
    """Whether replication sends frames of this kind at all."""
    return (
        frame == letters.COPY_DATA
        or frame == letters.NOTICE_RESPONSE
        or frame == letters.PARAMETER_STATUS
        or frame == letters.COPY_DONE
        or frame == letters.COMMAND_COMPLETE
        or frame == letters.ERROR_RESPONSE
    )


@inlined
def _ends_stream(frame: int) -> bool:
    return frame == letters.COPY_DONE or frame == letters.COMMAND_COMPLETE or frame == letters.ERROR_RESPONSE


@kernel
def _scan(
    block: Bytes, start: int, stop: int, inside: int, kind: Bytes, messages: npt.NDArray[np.int64], begun: npt.NDArray[np.int64]
) -> _Scanned:
    at = start
    span = start  # where the frames begin that are to be spooled
    count = 0
    transactions = 1 if inside == _TRANSACTION else 0
    error = _FINE
    keepalive_lsn = 0
    reply_requested = False
    lacks = 0
    notices = 0
    loose = 0
    ended = -1
    spooling = _spools(inside)
    while at + letters.FRAME_HEADER_BYTES <= stop:
        length = read_u32(block, at + 1)
        if length < letters.LENGTH_BYTES or length > letters.MOST_FRAME_BYTES:
            error = _FRAME_LENGTH
            break
        end = at + 1 + length
        frame = block[at]
        if not _replicates(frame):
            error = _FRAME_KIND
            break
        if end > stop:
            lacks = end - stop
            break
        if _ends_stream(frame):
            ended = at
            break
        if frame != letters.COPY_DATA:
            notices += frame == letters.NOTICE_RESPONSE
            at = end
            continue
        body = at + letters.FRAME_HEADER_BYTES
        if end <= body:
            error = _TOO_SHORT
            break
        if block[body] == letters.KEEPALIVE:
            if end - body != letters.KEEPALIVE_BYTES:
                error = _TOO_SHORT
                break
            if inside == _NOTHING:
                keepalive_lsn = max(keepalive_lsn, read_i64(block, body + 1))
            reply_requested |= block[end - 1] != 0
            at = end
            continue
        if block[body] != letters.XLOG_DATA or end - body <= letters.XLOG_HEADER_BYTES:
            error = _TOO_SHORT
            break
        letter = block[body + letters.XLOG_HEADER_BYTES]
        body += letters.XLOG_HEADER_BYTES + 1
        after = int(_AFTER[inside, letter])
        if after < 0:
            error = -after
            break
        relation = 0
        if _spools(inside):
            if after == inside:
                at = end
                continue
            if span < at:
                kind[count] = SPAN
                _put(messages, count, span, at, 0, max(transactions - 1, 0))
                count += 1
        elif letter == letters.BEGIN:
            if end - body != letters.BEGIN_BYTES:
                error = _TOO_SHORT
                break
            begun[_XID, transactions] = read_u32(block, body + 16)
            begun[_COMMIT_LSN, transactions] = read_i64(block, body)
            begun[_COMMIT_TS_US, transactions] = read_i64(block, body + 8) + POSTGRES_EPOCH_US
            begun[_END_LSN, transactions] = 0
            transactions += 1
        elif letter == letters.COMMIT:
            if end - body != letters.COMMIT_BYTES:
                error = _TOO_SHORT
                break
            if read_i64(block, body + 1) != begun[_COMMIT_LSN, transactions - 1]:
                error = _OTHER_COMMIT
                break
            begun[_END_LSN, transactions - 1] = read_i64(block, body + 9)
        elif _of_row(letter):
            if end - body < letters.LEAST_ROW_BYTES:
                error = _TOO_SHORT
                break
            relation = read_u32(block, body)
        elif letter == letters.MESSAGE and inside == _NOTHING:
            # Said at once, whatever becomes of the transaction that said it: nothing of ours. There is room, for each message takes some.
            loose += 1
            messages[_BODY, messages.shape[1] - loose] = body
            at = end
            continue
        elif SPOOLING[letter]:
            span = end
            spooling = True
        inside = after
        kind[count] = letter
        _put(messages, count, body, end, relation, max(transactions - 1, 0))
        count += 1
        at = end
    if error == _FINE and _spools(inside) and span < at:
        kind[count] = SPAN
        _put(messages, count, span, at, 0, max(transactions - 1, 0))
        count += 1
    return _Scanned(count, transactions, at, error, keepalive_lsn, reply_requested, lacks, notices, loose, ended, spooling, inside)


@kernel
def _scan_spooled(
    block: Bytes, start: int, stop: int, prefixed: bool, aborted: Aborted, kind: Bytes, messages: npt.NDArray[np.int64]
) -> _ScannedSpool:
    at = start
    count = 0
    while at + letters.FRAME_HEADER_BYTES <= stop:
        length = read_u32(block, at + 1)
        if length < letters.LENGTH_BYTES or length > letters.MOST_FRAME_BYTES:
            return _ScannedSpool(count, at, _FRAME_LENGTH)
        end = at + 1 + length
        if end > stop:
            break
        body = at + letters.FRAME_HEADER_BYTES
        if block[at] != letters.COPY_DATA or block[body] == letters.KEEPALIVE:
            at = end
            continue
        if end - body <= letters.XLOG_HEADER_BYTES or block[body] != letters.XLOG_DATA:
            return _ScannedSpool(count, at, _TOO_SHORT)
        letter = block[body + letters.XLOG_HEADER_BYTES]
        body += letters.XLOG_HEADER_BYTES + 1
        if prefixed and letter != letters.ORIGIN:
            if end - body < 4:
                return _ScannedSpool(count, at, _TOO_SHORT)
            subxid = read_u32(block, body)
            body += 4
            if aborted.shape[0]:
                found = np.searchsorted(aborted, subxid)
                if found < aborted.shape[0] and aborted[found] == subxid:
                    at = end
                    continue
        if _AFTER[_STREAM, letter] != _STREAM:
            return _ScannedSpool(count, at, _MISPLACED)
        relation = 0
        if _of_row(letter):
            if end - body < letters.LEAST_ROW_BYTES:
                return _ScannedSpool(count, at, _TOO_SHORT)
            relation = read_u32(block, body)
        kind[count] = letter
        _put(messages, count, body, end, relation, 0)
        count += 1
        at = end
    return _ScannedSpool(count, at, _FINE)


@kernel
def _notices(block: Bytes, start: int, stop: int, found: Offsets) -> None:
    """Offsets of the notices among the whole frames in ``block[start:stop]``."""
    at = start
    count = 0
    while at < stop and count < found.shape[0]:
        if block[at] == letters.NOTICE_RESPONSE:
            found[count] = at
            count += 1
        at += 1 + read_u32(block, at + 1)
