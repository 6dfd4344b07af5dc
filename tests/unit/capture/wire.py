"""The walsender's bytes, written by hand from the manual's message formats: the decoder's counterpart for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from cdc.capture.messages import POSTGRES_EPOCH_US
from cdc.capture.values import Bytes
from cdc.model.table import Table

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
