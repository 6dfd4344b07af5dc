"""The walsender's bytes, written by hand from the manual's message formats: the decoder's counterpart for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from cdc.capture.messages import POSTGRES_EPOCH_US
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes

UNCHANGED = object()
"""A value that the server leaves out because its TOASTed value did not change."""

Value = object  # str | None | UNCHANGED


def frame(body: bytes, kind: bytes = b"d") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def xlog(message: bytes, lsn: int = 0) -> bytes:
    return frame(b"w" + struct.pack("!QQq", lsn, lsn, 0) + message)


def keepalive(lsn: int, *, reply: bool = False) -> bytes:
    return frame(b"k" + struct.pack("!QqB", lsn, 0, reply))


def begin(xid: int, commit_lsn: int, ts_us: int = 1_700_000_000_000_000) -> bytes:
    return xlog(b"B" + struct.pack("!QqI", commit_lsn, ts_us - POSTGRES_EPOCH_US, xid))


def commit(commit_lsn: int, end_lsn: int, ts_us: int = 1_700_000_000_000_000) -> bytes:
    return xlog(b"C" + struct.pack("!BQQq", 0, commit_lsn, end_lsn, ts_us - POSTGRES_EPOCH_US))


def relation(table: Table) -> bytes:
    columns = b"".join(
        struct.pack("!B", column.key) + column.name.encode() + b"\0" + struct.pack("!Ii", column.type_oid, column.typmod)
        for column in table.columns
    )
    head = struct.pack("!I", table.oid) + f"{table.schema}\0{table.name}\0{table.identity}".encode()
    return xlog(b"R" + head + struct.pack("!h", len(table.columns)) + columns)


def row(values: Sequence[Value]) -> bytes:
    fields = []
    for value in values:
        if value is None:
            fields.append(b"n")
        elif value is UNCHANGED:
            fields.append(b"u")
        else:
            assert isinstance(value, str)
            text = value.encode()
            fields.append(b"t" + struct.pack("!i", len(text)) + text)
    return struct.pack("!h", len(values)) + b"".join(fields)


def insert(oid: int, new: Sequence[Value]) -> bytes:
    return xlog(b"I" + struct.pack("!I", oid) + b"N" + row(new))


def update(oid: int, new: Sequence[Value], *, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None) -> bytes:
    before = b"" if key is None else b"K" + row(key)
    before = before if old is None else b"O" + row(old)
    return xlog(b"U" + struct.pack("!I", oid) + before + b"N" + row(new))


def delete(oid: int, *, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None) -> bytes:
    return xlog(b"D" + struct.pack("!I", oid) + (b"O" + row(old) if key is None and old is not None else b"K" + row(key or ())))


def truncate(*oids: int, flags: int = 0) -> bytes:
    return xlog(b"T" + struct.pack("!IB", len(oids), flags) + b"".join(struct.pack("!I", oid) for oid in oids))


def message(prefix: str, content: bytes, *, transactional: bool = True, lsn: int = 0) -> bytes:
    return xlog(b"M" + struct.pack("!BQ", transactional, lsn) + prefix.encode() + b"\0" + struct.pack("!i", len(content)) + content)


def block(*pieces: bytes) -> Bytes:
    return np.frombuffer(bytearray(b"".join(pieces)), np.uint8)


# Transactions in progress (protocol 2 and newer) and prepared ones


def stream(xid: int, *messages: bytes, first: bool = True) -> bytes:
    """One streamed block: the messages as they would stand in an ordinary transaction, each with the xid that ``by`` gave it."""
    body = b"".join(piece if isinstance(piece, _Tagged) else by(xid, piece) for piece in messages)
    return xlog(b"S" + struct.pack("!IB", xid, first)) + body + xlog(b"E")


class _Tagged(bytes):
    pass


def by(subxid: int, *messages: bytes) -> bytes:
    """The same frames inside a streamed block: the (sub)transaction's xid behind each letter."""
    tagged = []
    for data in messages:
        at = 0
        while at < len(data):
            end = at + 1 + struct.unpack_from("!i", data, at + 1)[0]
            body = data[at + 5 : end]
            plain = data[at : at + 1] != b"d" or body[:1] != b"w" or body[25:26] == b"O"
            tagged.append(data[at:end] if plain else frame(body[:26] + struct.pack("!I", subxid) + body[26:]))
            at = end
    return _Tagged(b"".join(tagged))


def stream_abort(xid: int, subxid: int, *, parallel: bool = False) -> bytes:
    return xlog(b"A" + struct.pack("!II", xid, subxid) + (struct.pack("!Qq", 7, 7) if parallel else b""))


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, ts_us: int = 1_700_000_000_000_000) -> bytes:
    return xlog(b"c" + struct.pack("!IBQQq", xid, 0, commit_lsn, end_lsn, ts_us - POSTGRES_EPOCH_US))


def begin_prepare(xid: int, lsn: int, end_lsn: int, gid: str) -> bytes:
    return xlog(b"b" + struct.pack("!QQqI", lsn, end_lsn, 0, xid) + gid.encode() + b"\0")


def prepare(xid: int, lsn: int, end_lsn: int, gid: str, *, streamed: bool = False) -> bytes:
    return xlog((b"p" if streamed else b"P") + struct.pack("!BQQqI", 0, lsn, end_lsn, 0, xid) + gid.encode() + b"\0")


def commit_prepared(xid: int, commit_lsn: int, end_lsn: int, gid: str, ts_us: int = 1_700_000_000_000_000) -> bytes:
    return xlog(b"K" + struct.pack("!BQQqI", 0, commit_lsn, end_lsn, ts_us - POSTGRES_EPOCH_US, xid) + gid.encode() + b"\0")


def rollback_prepared(xid: int, gid: str) -> bytes:
    return xlog(b"r" + struct.pack("!BQQqqI", 0, 1, 2, 0, 0, xid) + gid.encode() + b"\0")
