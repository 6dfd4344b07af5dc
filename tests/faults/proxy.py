"""A TCP proxy between capture and Postgres that hurts the connection, and writes down what capture tells the server is durable.

Every connection is two pumps. What they do to the bytes is ``Proxy.toxic``, which may change at any time; what happens to whole connections
(``reset``, ``half_open``, ``swallow``) happens to those that are open at that moment, and new ones pass. Plain connections only: the
proxy reads along.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

TICK_S: Final = 0.01
PIECE_BYTES: Final = 1 << 16
_SSL_REQUEST: Final = 80877103
_GSS_REQUEST: Final = 80877104
_SO_ATTACH_FILTER: Final = 26


class Way(Enum):
    UP = auto()
    """From capture to the server: on a replication connection the feedback."""
    DOWN = auto()


@dataclass(frozen=True, slots=True)
class Toxic:
    """What the pumps do to the bytes."""

    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: as fast as it goes."""
    slice_bytes: int = 0
    """Pieces of 1 to so many bytes, each a segment of its own; 0: as they come."""
    paused: frozenset[Way] = frozenset()
    paused_feedback_only: bool = False
    """Of the paused ways, only those of replication connections."""


HARMLESS: Final = Toxic()


@dataclass(frozen=True, slots=True)
class Confirmed:
    """One Standby Status Update, in the order in which the proxy saw them."""

    write: int
    flush: int
    apply: int
    durable: int
    """What the log held at this moment, as the proxy's owner says."""

    @property
    def early(self) -> bool:
        """Something was confirmed that was not durable."""
        return max(self.write, self.flush, self.apply) > self.durable


class _State(Enum):
    OPEN = auto()
    SWALLOWING = auto()
    """Takes every byte, passes none on; TCP still acknowledges."""
    GONE = auto()
    """Not even TCP answers."""
    CLOSED = auto()
    RESET = auto()


@dataclass(slots=True)
class _Frames:
    """Cuts a direction's bytes into messages, whatever the pieces: calls ``heard(kind, body)`` for each that is whole."""

    heard: Callable[[bytes, bytes], None]
    _left: bytes = b""

    def feed(self, data: bytes) -> None:
        data = self._left + data
        at = 0
        while len(data) - at >= 5:
            end = at + 1 + struct.unpack_from("!i", data, at + 1)[0]
            if end > len(data):
                break
            self.heard(data[at : at + 1], data[at + 5 : end])
            at = end
        self._left = data[at:]


@dataclass(slots=True)
class _Link:
    """One connection of capture's and the proxy's own to the server behind it."""

    proxy: Proxy
    client: socket.socket
    server: socket.socket
    replication: bool = False
    application: str = ""
    state: _State = _State.OPEN
    standing: set[Way] = field(default_factory=set)
    """The paused ways on which nothing is under way any more."""
    _chance: random.Random = field(default_factory=random.Random)

    @property
    def over(self) -> bool:
        return self.state in (_State.CLOSED, _State.RESET)

    def run(self) -> None:
        try:
            if self._introduce():
                up = threading.Thread(target=self._pump, args=(Way.UP,), name="proxy up")
                up.start()
                self._pump(Way.DOWN)
                up.join()
        except OSError:
            self.state = _State.RESET
        finally:
            for end in (self.client, self.server):
                if self.state is _State.RESET:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()

    def _introduce(self) -> bool:
        """The client's first packet, which has no letter in front, and the refusal of encryption before it."""
        for end in (self.client, self.server):
            end.settimeout(30)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            head = self._exactly(8)
            if head is None:
                return False
            length, code = struct.unpack("!iI", head)
            body = self._exactly(length - 8) or b""
            self.server.sendall(head + body)
            if code not in (_SSL_REQUEST, _GSS_REQUEST):
                words = body.decode().split("\0")
                given = dict(zip(words[::2], words[1::2], strict=False))
                self.replication, self.application = "replication" in given, given.get("application_name", "")
                self.proxy.connections += self.replication
                break
            answer = self.server.recv(1)
            assert answer == b"N", "the proxy reads along, so the server must not encrypt"
            self.client.sendall(answer)
        for end in (self.client, self.server):
            end.setblocking(False)
        return True

    def _exactly(self, length: int) -> bytes | None:
        got = b""
        while len(got) < length:
            piece = self.client.recv(length - len(got))
            if not piece:
                return None
            got += piece
        return got

    def _pump(self, way: Way) -> None:
        source, target = (self.client, self.server) if way is Way.UP else (self.server, self.client)
        frames = _Frames(self._heard_up if way is Way.UP else self._heard_down)
        try:
            while not self.over:
                if self.state is _State.GONE or self._is_paused(way):
                    self.standing.add(way)
                    time.sleep(TICK_S)
                    continue
                self.standing.discard(way)
                if not select.select([source], [], [], TICK_S)[0]:
                    continue
                data = source.recv(PIECE_BYTES)
                if not data and self.state is _State.SWALLOWING and way is Way.DOWN:
                    while not self.over:  # the server has given up; the client does not hear of that either
                        time.sleep(TICK_S)
                elif not data:
                    self.state = self.state if self.over else _State.CLOSED
                elif self.state is _State.OPEN:
                    self._pass_on(data, target, frames)
        except OSError:
            self.state = self.state if self.over else _State.RESET

    def _is_paused(self, way: Way) -> bool:
        toxic = self.proxy.toxic
        return way in toxic.paused and (self.replication or not toxic.paused_feedback_only)

    def _pass_on(self, data: bytes, target: socket.socket, frames: _Frames) -> None:
        while data and self.state is _State.OPEN:
            toxic = self.proxy.toxic
            size = self._chance.randint(1, toxic.slice_bytes) if toxic.slice_bytes else len(data)
            if toxic.bytes_per_s:
                size = min(size, max(1, int(toxic.bytes_per_s * TICK_S)))
            time.sleep(toxic.latency_s + (size / toxic.bytes_per_s if toxic.bytes_per_s else 0))
            piece, data = data[:size], data[size:]
            # Heard before it is sent: what is durable now was all that capture could know of.
            frames.feed(piece)
            while piece and not self.over:
                if select.select([], [target], [], TICK_S)[1]:
                    piece = piece[target.send(piece) :]

    def _heard_up(self, kind: bytes, body: bytes) -> None:
        if self.replication and kind == b"d" and body[:1] == b"r":
            write, flush, apply = struct.unpack_from("!QQQ", body, 1)
            self.proxy.confirmed.append(Confirmed(write, flush, apply, self.proxy.durable_lsn()))

    def _heard_down(self, kind: bytes, body: bytes) -> None:
        if self.replication and kind == b"d" and body[:1] == b"w":
            self.proxy.messages += 1
            if 0 < self.proxy.cut_after <= self.proxy.messages:
                self.proxy.cut_after = 0
                self.state = _State.RESET

    def go_deaf(self) -> None:
        """The kernel drops every packet of the client's from now on, unacknowledged, as a router does that has forgotten the connection."""
        self.state = _State.GONE
        with contextlib.suppress(OSError):  # it has just ended by itself
            _drop_all(self.client)


def _drop_all(connection: socket.socket) -> None:
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0 bytes of the packet
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(drop))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def may_drop_all() -> bool:
    """Whether the kernel lets us: newer ones let root alone."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        try:
            _drop_all(one)
        except PermissionError:
            return False
    return True


class Proxy:
    """Listens on a loopback ``port``. ``durable_lsn`` is asked whenever capture confirms something, before the server hears of it."""

    def __init__(self, target_port: int, durable_lsn: Callable[[], int]) -> None:
        self.durable_lsn = durable_lsn
        self.toxic = HARMLESS
        self.confirmed: list[Confirmed] = []
        self.messages = 0
        """XLogData messages that have passed."""
        self.cut_after = 0
        """The connection over which this message (as ``messages`` counts) comes is reset with it; 0: none, or it has been."""
        self.connections = 0
        """Replication connections so far."""
        self._target_port = target_port
        self._links: list[tuple[_Link, threading.Thread]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TICK_S)
        self._closing = False
        self.port = int(self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, name="proxy accepts")
        self._acceptor.start()

    def reset(self) -> None:
        """RST to both ends."""
        self._all(_State.RESET)

    def swallow(self, *, replication: bool = True) -> None:
        """Open connections (replication ones, or all others) lead nowhere, though TCP acknowledges what is sent (a proxy or a tunnel that
        hangs)."""
        for link, _ in list(self._links):
            if link.replication == replication and not link.over:
                link.state = _State.SWALLOWING

    def half_open(self) -> None:
        """Nothing answers on open connections any more, and nobody is told."""
        for link, _ in list(self._links):
            if not link.over:
                link.go_deaf()

    def carries(self, application: str) -> bool:
        """Whether it has an open connection now."""
        return any(link.application == application and link.state is _State.OPEN for link, _ in list(self._links))

    def stands_still(self, way: Way) -> bool:
        """Whether every replication connection has come to rest after this way was paused."""
        open_ones = [link for link, _ in list(self._links) if link.replication and not link.over]
        return bool(open_ones) and all(way in link.standing for link in open_ones)

    def close(self) -> None:
        self._closing = True
        self._acceptor.join()
        self._listener.close()
        self._all(_State.RESET)
        for _, thread in self._links:
            thread.join(60)
            assert not thread.is_alive()

    def _all(self, state: _State) -> None:
        for link, _ in list(self._links):
            link.state = link.state if link.over else state

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            thread = threading.Thread(target=link.run, name="proxy down")
            self._links.append((link, thread))
            thread.start()
