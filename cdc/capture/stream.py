"""The replication connection: the only file of this room that waits.

libpq connects, authenticates and, with TLS or GSS, carries the stream (psycopg's ``pq`` layer). Without them it hands its socket over
while the connection is idle between two queries, when libpq holds no bytes of its own: from then on we read the socket in large blocks,
because libpq's 16 kB reads and one call per message cost more than everything else in capture together. Either way the same bytes come
out: backend messages with their five-byte headers, cut anywhere.

Two threads, neither of which ever waits for a disk or a store: one receives, one answers the server. So an idle database frees its WAL and
a fast shutdown of Postgres does not hang, however slow the log is.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np
import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.generators import execute
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import wait

from cdc.capture.buffers import BUFFER_BYTES, StreamBuffers
from cdc.capture.feedback import Feedback, Quiet, Silence, standby_status
from cdc.capture.pace import BACKLOG_BYTES, FLOW_BYTES, PAUSE_S, READS, Flow, block_bytes, block_s
from cdc.crashpoint import crashpoint
from cdc.errors import ProtocolError, SourceError, presentable
from cdc.model.pgtypes import HAS_TRANSACTION_TIMEOUT
from cdc.model.position import Lsn, format_lsn, parse_lsn
from cdc.pgvalues.values import Bytes
from cdc.pgvalues.wire import gather

STAGING_BYTES: Final = 2**20
"""The most that one read takes."""

IDLE_MS: Final = 250
"""An idle receiver looks this often whether it shall stop."""

ANSWER_S: Final = 30.0
"""For the answer to a command before the stream begins."""

SILENCE_S: Final = 60.0
"""A server that says nothing for half of this is asked whether it lives, and given up for dead after the other half. TCP alone cannot tell
when something in between (a proxy, a tunnel) acknowledges for it. As long as Postgres's own subscribers wait (wal_receiver_timeout)."""


_DEFAULTS: Final = {
    "gssencmode": "disable",
    "connect_timeout": "10",
    "application_name": "headwater capture",
    # A server that vanished without a word is noticed by what it does not acknowledge: we send a status every second.
    "tcp_user_timeout": "30000",
}
"""libpq's parameters where the DSN does not say otherwise."""


@dataclass(frozen=True, slots=True)
class System:
    """IDENTIFY_SYSTEM's answer."""

    identifier: str
    timeline: int
    lsn: Lsn
    database: str


class Connection:
    """A walsender connection before streaming. ``parameters`` are libpq's; ``settings`` are pinned on the session."""

    def __init__(self, parameters: Mapping[str, str], settings: Mapping[str, str], *, name: str) -> None:
        options = [parameters.get("options", ""), *(f"-c {key}={_escaped(value)}" for key, value in settings.items())]
        merged = {**_DEFAULTS, **parameters}
        merged |= {"replication": "database", "options": " ".join(filter(None, options))}
        self._name = name
        # libpq does not say whether Kerberos encrypts; it cannot where it is told not to.
        self._no_gss = merged["gssencmode"] == "disable"
        try:
            # psycopg's own way to connect, because PGconn.connect keeps every other thread of the process from running meanwhile.
            self._session = psycopg.connect(make_conninfo(**merged), autocommit=True)
        except psycopg.Error as error:
            problem = _one_line(str(error))
            # "must be superuser or replication role to start walsender" up to 15, "permission denied to start WAL sender" from 16 on.
            refused = "walsender" in problem or "WAL sender" in problem
            hint = f'ALTER ROLE "{parameters["user"]}" REPLICATION' if refused and "user" in parameters else "cdc doctor"
            raise SourceError(f"cannot open a replication connection to {name}: {problem}", hint=hint) from None
        self._pg: PGconn = self._session.pgconn
        if self._pg.server_version >= HAS_TRANSACTION_TIMEOUT:
            # Decoding one transaction is one of the walsender's own: a large one would be broken off at the same place for ever.
            self.query(b"SELECT set_config('transaction_timeout', '0', false)")

    def identify(self) -> System:
        row = self.query(b"IDENTIFY_SYSTEM")
        return System(row[0].decode(), int(row[1]), parse_lsn(row[2].decode()), row[3].decode())

    def query(self, command: bytes) -> list[bytes]:
        """The first row of a replication command's answer. Raises SourceError."""
        result = _answer(self._pg, command)
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            raise SourceError(f"{self._name} refuses {command.decode()}: {_one_line(result.error_message)}", hint="cdc doctor")
        return [result.get_value(0, column) or b"" for column in range(result.nfields)]

    def start(
        self, slot: str, publication: str, lsn: int, feedback: Feedback, *, streaming: bool | str = False, two_phase: bool = False
    ) -> Stream:
        """START_REPLICATION from ``lsn``: transactions whose commit lies before it are not sent again. Raises SourceError.

        streaming: large transactions may come before they have ended (as text: pgoutput's own word for how). two_phase: prepared ones
        come at PREPARE; a slot that was once started so stays so.
        """
        names = '"' + publication.replace('"', '""') + '"'
        options = {"proto_version": self._protocol, "publication_names": names, "messages": "true"}
        if streaming:
            options["streaming"] = streaming if isinstance(streaming, str) else "on"
        if two_phase:
            options["two_phase"] = "on"
        said = ", ".join(f"{key} '{value.replace(chr(39), chr(39) * 2)}'" for key, value in options.items())
        command = f'START_REPLICATION SLOT "{slot}" LOGICAL {format_lsn(lsn)} ({said})'.encode()
        crashpoint("stream.before_start")
        bare = self._no_gss and not self._pg.ssl_in_use
        wire = _Socket(self._pg, command) if bare else _Libpq(self._pg, command)
        crashpoint("stream.started")
        return Stream(wire, feedback)

    @property
    def _protocol(self) -> str:
        """The newest version of pgoutput's protocol that both sides speak: 3 has prepared transactions, 4 tells more of an abort."""
        version = self._pg.server_version
        return "4" if version >= 160000 else "3" if version >= 150000 else "2" if version >= 140000 else "1"

    def close(self) -> None:
        self._pg.finish()


class _Socket:
    """The bare socket, taken over from an idle libpq connection."""

    def __init__(self, pg: PGconn, command: bytes) -> None:
        self._pg = pg  # stays alive with the socket; libpq itself touches it no more
        self._socket = socket.socket(fileno=os.dup(pg.socket))
        self._socket.setblocking(True)
        self._tcp = self._socket.family != socket.AF_UNIX
        self.backlog = False
        self._flow = Flow()
        self._timeout(10_000)
        self._socket.sendall(b"Q" + struct.pack("!i", len(command) + 5) + command + b"\0")
        self._await_copy()
        self._timeout(IDLE_MS)

    def _await_copy(self) -> None:
        """Reads up to CopyBothResponse, byte-exactly: what follows belongs to the stream."""
        while True:
            try:
                kind, length = struct.unpack("!ci", self._exactly(5))
                body = self._exactly(length - 4)
            except (OSError, struct.error) as error:
                raise SourceError("the server did not start replication in time") from error
            if kind == b"W":
                return
            if kind == b"E":
                raise SourceError(f"the server refuses to start replication: {error_text(body)}", hint="cdc doctor")
            if kind not in (b"N", b"S"):
                raise ProtocolError(f"the server answered START_REPLICATION with a message of kind {kind!r}")

    def _exactly(self, length: int) -> bytes:
        got = b""
        while len(got) < length:
            piece = self._socket.recv(length - len(got))
            if not piece:
                raise SourceError("the server closed the connection")
            got += piece
        return got

    def receive(self, into: memoryview) -> int:
        """Bytes read (0: nothing within IDLE_MS). Raises ConnectionError when the server is gone."""
        if self._flow.flows:
            pause_us = round(PAUSE_S[self._tcp] * 1e6)
            got, last = gather(self._socket.fileno(), np.frombuffer(into, np.uint8), pause_us, BACKLOG_BYTES, READS)
            self.backlog, self._flow.flows = last >= BACKLOG_BYTES, last >= FLOW_BYTES
            return got  # what ended it, if anything did, is met again by the next read
        try:
            got = self._socket.recv_into(into)
        except BlockingIOError:
            return 0
        if got == 0:
            raise ConnectionError("the server closed the connection")
        self.backlog = got >= BACKLOG_BYTES
        self._flow.read(time.monotonic())
        self._flow.flows |= self.backlog
        return got

    def _timeout(self, milliseconds: int) -> None:
        seconds, rest = divmod(milliseconds, 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, rest * 1000))

    def send(self, status: bytes) -> None:
        self._socket.sendall(b"d" + struct.pack("!i", len(status) + 4) + status)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(b"c\0\0\0\4")  # CopyDone: lets the server end the session rather than find it broken
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._pg.finish()


class _Libpq:
    """The stream through libpq, for connections that libpq encrypts."""

    def __init__(self, pg: PGconn, command: bytes) -> None:
        self._pg = pg
        self._lock = threading.Lock()
        self.backlog = False
        result = _answer(pg, command)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise SourceError(f"the server refuses to start replication: {_one_line(result.error_message)}", hint="cdc doctor")
        pg.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(pg.socket, select.POLLIN)
        self._left = b""
        self._notices = b""
        self._error_said = False
        pg.notice_handler = self._heed

    def receive(self, into: memoryview) -> int:
        got = self._receive(into)
        self.backlog = got >= BACKLOG_BYTES
        return got

    def _receive(self, into: memoryview) -> int:
        at = self._put(into, 0, self._left)
        while not self._left:
            with self._lock:
                length, message = self._pg.get_copy_data(1)
                if length == 0 and at == 0:
                    self._pg.consume_input()
                    length, message = self._pg.get_copy_data(1)
            piece, self._notices = self._notices, b""
            if length > 0:
                piece += _frame(b"d", bytes(message))
            elif length < 0 and not at and not piece:
                piece = self._ending()
            at = self._put(into, at, piece)
            if length <= 0 and (at or not self._poll.poll(IDLE_MS)):
                return at
        return at

    def _heed(self, result: PGresult) -> None:
        """libpq calls this from inside ``consume_input`` and ``get_copy_data``."""
        self._notices += _frame(b"N", _fields(result))

    def _put(self, into: memoryview, at: int, piece: bytes) -> int:
        fits = min(len(piece), len(into) - at)
        into[at : at + fits] = piece[:fits]
        self._left = piece[fits:]
        return at + fits

    def _ending(self) -> bytes:
        """The server's last message, the error that ended the stream. Raises ConnectionError when there is none (any more)."""
        with self._lock:
            result = None if self._error_said else self._pg.get_result()
        if result is None or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
            said = _one_line(result.error_message if result else self._pg.error_message) or "connection closed"
            raise ConnectionError(f"the server ended the stream: {said}")
        self._error_said = True
        return _frame(b"E", _fields(result))

    def send(self, status: bytes) -> None:
        with self._lock:
            self._pg.put_copy_data(status)
            self._pg.flush()

    def close(self) -> None:
        self._pg.finish()


class Stream:
    """A running stream. ``take`` hands over what has been received; errors of the threads surface there."""

    def __init__(self, wire: _Socket | _Libpq, feedback: Feedback) -> None:
        self._wire = wire
        self._feedback = feedback
        self._buffers = StreamBuffers()
        self._wanted = 1
        """So many bytes end a wait; 0: it has ended."""
        self._changed = threading.Condition()
        self._due = threading.Condition()
        self._failure: Exception | None = None
        self._closing = False
        self.received = 0
        """Bytes since the start."""
        self.batches = 0
        """How many the last block became; their taker says so."""
        self._receiver = threading.Thread(target=self._receive, name="receive", daemon=True)
        self._answerer = threading.Thread(target=self._answer, name="answer", daemon=True)
        self._receiver.start()
        self._answerer.start()

    def take(self, timeout_s: float) -> Bytes:
        """The bytes received since the last call (a view, valid until the next call); empty after the timeout.

        Raises ConnectionError or OSError once the connection is gone and everything received has been taken.
        """
        with self._changed:
            if not self._buffers.filled and self._failure is None and self._wanted:
                self._wanted = 1
                self._changed.wait(timeout_s)
            self._wanted = max(self._wanted, 1)
            if self._wire.backlog and self._buffers.filled < (whole := block_bytes(self.batches)) and self._failure is None:
                self._wanted = whole
                self._changed.wait(block_s(self.batches))
            if not self._buffers.filled and self._failure is not None:
                raise self._failure
            taken = self._buffers.take()
            if len(taken):
                self._changed.notify_all()
            return taken

    def wake(self) -> None:
        """Ends a ``take`` that waits, or the next one, with what there is."""
        with self._changed:
            self._wanted = 0
            self._changed.notify_all()

    def behind(self, torn: Bytes, taken: Bytes) -> Bytes:
        """``torn`` and what the last call of ``take`` gave, one behind the other; as long valid as that."""
        return self._buffers.behind(torn, taken)

    def confirm(self, durable_lsn: int) -> None:
        """Everything up to this LSN is durable; the server hears of it soon."""
        with self._due:
            self._feedback.confirm(durable_lsn)
            self._due.notify_all()

    def reply_now(self) -> None:
        """The server asked for an answer."""
        with self._due:
            self._feedback.ask()
            self._due.notify_all()

    def _receive(self) -> None:
        staging = memoryview(bytearray(STAGING_BYTES))
        view = np.frombuffer(staging, np.uint8)
        silence = Silence(time.monotonic())
        try:
            while not self._closing:
                got = self._wire.receive(staging)
                if not got:
                    self._heed(silence)
                    continue
                crashpoint("stream.received")
                with self._changed:
                    while self._buffers.filled + got > BUFFER_BYTES and not self._closing:
                        self._changed.wait(1.0)
                    if self._closing:
                        return
                    self._buffers.put(view[:got])
                    self.received += got
                    if self._buffers.filled >= self._wanted or not self._wire.backlog:
                        self._changed.notify_all()
                silence = Silence(time.monotonic())
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _heed(self, silence: Silence) -> None:
        match silence.step(time.monotonic(), SILENCE_S):
            case Quiet.ASK:
                with self._due:
                    self._feedback.inquire()
                    self._due.notify_all()
            case Quiet.DEAD:
                raise ConnectionError(f"the server has said nothing for {SILENCE_S:g} s, not even when asked")
            case Quiet.WAIT:
                pass

    def _answer(self) -> None:
        try:
            while not self._closing:
                with self._due:
                    wait = self._feedback.wait_s(time.monotonic())
                    if wait > 0:
                        self._due.wait(wait)
                        continue
                    lsn, inquires = self._feedback.durable_lsn, self._feedback.inquires
                    self._feedback.said(lsn, time.monotonic())
                    crashpoint("stream.feedback.due")
                self._wire.send(standby_status(lsn, time.time_ns() // 1000, inquires=inquires))
                crashpoint("stream.feedback.sent")
        except Exception as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def close(self) -> None:
        """Says a last time what is durable, ends the stream and both threads."""
        if self._closing:
            return
        with contextlib.suppress(OSError):
            if self._failure is None:
                self._wire.send(standby_status(self._feedback.durable_lsn, time.time_ns() // 1000))
        crashpoint("stream.closing")
        self._closing = True
        for condition in (self._due, self._changed):
            with condition:
                condition.notify_all()
        self._answerer.join(5)
        self._receiver.join(5)
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _answer(pg: PGconn, command: bytes) -> PGresult:
    """The server answers a replication command at once or never: TCP may go on acknowledging for it. Raises SourceError."""
    try:
        pg.send_query(command)
        results: list[PGresult] = wait(execute(pg), pg.socket, timeout=ANSWER_S)
    except psycopg.Error as error:
        pg.finish()
        problem = _one_line(str(error)) or f"nothing within {ANSWER_S:g} s"
        raise SourceError(f"the server does not answer {command.split()[0].decode()}: {problem}", hint="cdc doctor") from None
    return results[-1]


def _frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _fields(result: PGresult) -> bytes:
    """The fields of an ErrorResponse or NoticeResponse that ``error_text`` and ``cdc.capture.endings`` look at."""
    known = (
        (b"C", pq.DiagnosticField.SQLSTATE),
        (b"M", pq.DiagnosticField.MESSAGE_PRIMARY),
        (b"W", pq.DiagnosticField.CONTEXT),
    )
    return b"".join(name + (result.error_field(field) or b"") + b"\0" for name, field in known) + b"\0"


def error_text(body: bytes) -> str:
    """SQLSTATE and primary message of an ErrorResponse's fields; DETAIL and CONTEXT are left out, they may quote rows."""
    fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0") if field}
    state = fields.get(b"C", "?????")
    text = presentable(state, fields.get(b"M", "unknown error"))
    return text if text.endswith(")") else f"{text} (SQLSTATE {state})"


def _one_line(message: bytes | str) -> str:
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("DETAIL", "CONTEXT"))]
    return lines[-1] if lines else ""


def _escaped(value: str) -> str:
    """A value inside libpq's ``options``: spaces are escaped; an empty one cannot be left out."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ") or "\\ "
