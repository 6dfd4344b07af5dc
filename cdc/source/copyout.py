"""COPY TO STDOUT in large blocks: the server's text, or its binary format, of whole rows.

Without TLS and GSS the reply is read straight from the connection's socket, hundreds of kB at a time; the query is sent there too, so
libpq has nothing of the reply in its own buffer. Otherwise libpq hands over row by row, which is slower and gives the same blocks.
Frames: manual, "Frontend/Backend Protocol", COPY Operations (one CopyData message holds one row); text format: manual, COPY.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import psycopg
from psycopg import pq

from cdc.errors import ProtocolError
from cdc.kernels.memory import Take, fresh
from cdc.pgvalues.binary import is_trailer, whole_binary_rows
from cdc.pgvalues.fields import whole_rows
from cdc.pgvalues.values import Bytes
from cdc.pgvalues.wire import gather
from cdc.source.patience import Patience

BLOCK_BYTES: Final = 2 * 2**20
PAUSE_US: Final = 250
"""The server sends some 8 kB at a time. Waking for each of them costs both sides more than the rows do; a pause before each read lets
them gather. Much longer, and a Unix socket's buffer (about 200 kB, at up to 250 MB/s) would be full and the server wait."""
GATHER_BYTES: Final = 4096
"""A read that brings so much has more behind it."""
_READS: Final = 64
"""Before it looks whether it is to stop."""
_HEADER: Final = 5
_WAIT_S: Final = 0.5
_COPY_DATA, _READY, _ERROR = b"d"[0], b"Z"[0], b"E"[0]
_REPLIES: Final = b"HSNAcCZE"
"""CopyOutResponse, ParameterStatus, NoticeResponse, NotificationResponse, CopyDone, CommandComplete, ReadyForQuery, ErrorResponse."""


class StopSignal(Protocol):
    """A ``threading.Event``, or something like it."""

    def is_set(self) -> bool: ...


class Abandoned(Exception):
    """The reader was told to stop. The connection is in the middle of a reply and must be closed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole rows in COPY's text format, each ended by a newline, or in its binary one. ``skip`` bytes of framing precede each row."""

    data: Bytes
    rows: int
    skip: int
    binary: bool = False


def copy_blocks(
    connection: psycopg.Connection,
    query: str,
    stop: StopSignal,
    most_rows: int = 2**31,
    take: Take = fresh,
    *,
    binary: bool = False,
) -> Iterator[Block]:
    """Runs a COPY … TO STDOUT and yields its rows, at most so many in a block. The connection is usable again once the iterator has
    ended by itself. ``take``: where the blocks' memory comes from. ``binary``: the query asks for that format.

    Raises psycopg.Error as the server says (primary message only: details may quote rows), OperationalError also for a link that has gone
    silent, Abandoned when ``stop`` is set.
    """
    if _is_plain(connection):
        return _raw_blocks(connection, query, stop, most_rows, take, binary)
    return _libpq_blocks(connection, query, stop, most_rows, binary)


# --- reading ---------------------------------------------------------------------------------------------------------------


def _is_plain(connection: psycopg.Connection) -> bool:
    if connection.pgconn.ssl_in_use:
        return False
    row = connection.execute(
        "select coalesce((select encrypted from pg_stat_gssapi where pid = pg_backend_pid()), false)"
    ).fetchone()
    return row == (False,)


def _raw_blocks(
    connection: psycopg.Connection, query: str, stop: StopSignal, most_rows: int, take: Take, binary: bool
) -> Iterator[Block]:
    hop = whole_binary_rows if binary else whole_rows
    body = query.encode() + b"\0"
    patience = Patience(connection)
    # A descriptor of our own: closing it leaves libpq's alone.
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire:
        wire.settimeout(_WAIT_S)
        wire.sendall(b"Q" + struct.pack("!I", len(body) + 4) + body)
        room = take(BLOCK_BYTES)
        # Bytes [0, end) are here, of which [0, at) are whole rows.
        rows = at = end = 0
        done, failure = False, None
        while not done:
            more, at = hop(room, at, end, most_rows - rows)
            rows += more
            control = at < end and not _is_row(room, at, end, binary)
            if rows < most_rows and end < len(room) and not control:
                end += _receive(wire, room[end:], stop, patience)
                continue
            if rows:
                yield Block(room[:at], rows, _HEADER, binary)
            at, done, failure = _control(room, at, end, failure, binary)
            room, end = _moved(room, at, end, take)
            rows = at = 0
            if control and end and not done and not _is_row(room, 0, end, binary):
                # A message that is not whole yet.
                end += _receive(wire, room[end:], stop, patience)
    if failure is not None:
        raise failure


def _receive(wire: socket.socket, room: Bytes, stop: StopSignal, patience: Patience) -> int:
    while True:
        try:
            count = wire.recv_into(room.data)
        except TimeoutError:
            if stop.is_set():
                raise Abandoned from None
            patience.check()
            continue
        except OSError as error:
            raise psycopg.OperationalError(f"connection lost during COPY: {error.strerror}") from None
        if count == 0:
            raise psycopg.OperationalError("the server closed the connection during COPY")
        patience.heard()
        if count < GATHER_BYTES or count == len(room):
            return count
        # What ends it, if anything but the room does, is met again by the next read.
        more, _ = gather(wire.fileno(), room[count:], PAUSE_US, 1, _READS)
        return count + more


def _is_row(room: Bytes, at: int, end: int, binary: bool) -> bool:
    """Whether a row's CopyData begins there, as far as can be seen yet."""
    if room[at] != _COPY_DATA:
        return False
    if not binary or end - at < _HEADER + 2:
        return True
    length = int.from_bytes(room[at + 1 : at + _HEADER].tobytes(), "big")
    return not is_trailer(length - 4, room[at + _HEADER : at + _HEADER + 2].tobytes())


def _control(room: Bytes, at: int, end: int, failure: psycopg.Error | None, binary: bool) -> tuple[int, bool, psycopg.Error | None]:
    """Takes whole messages other than rows from ``at`` on; returns (where it stopped, ready for the next query, error)."""
    while end - at >= _HEADER and not _is_row(room, at, end, binary):
        kind = int(room[at])
        length = int.from_bytes(room[at + 1 : at + 5].tobytes(), "big")
        if length < 4 or (kind != _COPY_DATA and kind not in _REPLIES):
            raise ProtocolError("COPY was answered by a message that does not belong there")
        if end - at < 1 + length:
            break
        if kind == _ERROR:
            failure = _server_error(room[at + _HEADER : at + 1 + length].tobytes())
        at += 1 + length
        if kind == _READY:
            return at, True, failure
    return at, False, failure


def _server_error(fields: bytes) -> psycopg.Error:
    found = {field[:1]: field[1:].decode("utf-8", "replace") for field in fields.split(b"\0") if field}
    try:
        kind = psycopg.errors.lookup(found.get(b"C", ""))
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(found.get(b"M", "the server gave no reason"))


def _moved(room: Bytes, start: int, end: int, take: Take) -> tuple[Bytes, int]:
    """Another block that begins with what is left over, and how much that is; larger when one row needs more."""
    left = end - start
    needed = BLOCK_BYTES
    if left >= _HEADER:
        needed = max(needed, int.from_bytes(room[start + 1 : start + 5].tobytes(), "big") + 1 + _HEADER)
    another = take(max(needed, left + _HEADER))
    another[:left] = room[start:end]
    return another, left


def _libpq_blocks(connection: psycopg.Connection, query: str, stop: StopSignal, most_rows: int, binary: bool) -> Iterator[Block]:
    wire, patience = connection.pgconn, Patience(connection)
    wire.send_query(query.encode())
    _await_result(wire, stop, patience)
    buffer, rows = bytearray(), 0
    while True:
        length, row = wire.get_copy_data(1)
        if length > 0:
            if binary and is_trailer(length, bytes(row[:2])):
                continue
            buffer += row
            rows += 1
            if len(buffer) >= BLOCK_BYTES or rows == most_rows:
                yield Block(np.frombuffer(buffer, np.uint8), rows, 0, binary)
                buffer, rows = bytearray(), 0
        elif length == 0:
            _await_input(wire, stop, patience)
        else:
            break
    if rows:
        yield Block(np.frombuffer(buffer, np.uint8), rows, 0, binary)
    _await_result(wire, stop, patience)


def _await_input(wire: pq.abc.PGconn, stop: StopSignal, patience: Patience) -> None:
    # Not select(): it takes no descriptor beyond 1023, and the log keeps files of every table open.
    ready = select.poll()
    ready.register(wire.socket, select.POLLIN)
    while not ready.poll(_WAIT_S * 1000):
        if stop.is_set():
            raise Abandoned
        patience.check()
    patience.heard()
    wire.consume_input()


def _await_result(wire: pq.abc.PGconn, stop: StopSignal, patience: Patience) -> None:
    """Up to the beginning of COPY's data, or to the end of the query."""
    while True:
        wire.flush()
        while wire.is_busy():
            _await_input(wire, stop, patience)
        result = wire.get_result()
        if result is None or result.status == pq.ExecStatus.COPY_OUT:
            return
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")
