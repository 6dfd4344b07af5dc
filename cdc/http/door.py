"""Who may stay connected to the HTTP port. Anybody who reaches it can open connections, before any token is asked for.

A connection is *at work* from the moment its request has come whole until the answer has gone; else it *waits*: for a TLS handshake, a header,
the rest of a body, the next request. Where too many are open, in all or by one peer, the one that has waited longest makes room, and a new one
is turned away only when all are at work. What waits for longer than ``REQUEST_S`` is ended, and so is a peer that does not read its answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 256
MAX_PER_PEER: Final = 128
"""More than all event streams and waits together, so that somebody behind the same proxy still gets an answer."""
MAX_HEADER_BYTES: Final = 16_384
REQUEST_S = 10.0
UNREAD_S = 30.0
"""So long a peer may leave what was sent to it unread."""


class Guest:
    """One open connection."""

    def __init__(self, door: Door, connection: socket.socket, peer: str) -> None:
        self.peer = peer
        self._door = door
        self._connection = connection
        self._deadline: asyncio.TimerHandle | None = None

    def waits(self) -> None:
        """From now on, for a whole request."""
        self._rest()
        self._door.idle[self] = None
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S, self.send_away)

    def works(self) -> None:
        """A whole request has come: no time limit until ``waits``."""
        self._rest()

    def send_away(self) -> None:
        """The event loop closes the connection when it sees the end."""
        self.left()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def left(self) -> None:
        """The connection is closed; called twice it does nothing."""
        self._rest()
        self._door.forget(self, self._connection.fileno())

    def _rest(self) -> None:
        self._door.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Door:
    """All connections of one port. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self.idle: dict[Guest, None] = {}
        """The longest waiting first."""
        self._guests: dict[int, Guest] = {}
        """By file descriptor."""

    def admit(self, connection: socket.socket, address: Any) -> Guest | None:
        """None when there is no room: every connection that counts is at work on a request."""
        peer = _peer(address)
        mine = [guest for guest in self._guests.values() if guest.peer == peer]
        if len(mine) >= MAX_PER_PEER and not self._make_room(lambda guest: guest.peer == peer):
            return None
        if len(self._guests) >= MAX_CONNECTIONS and not self._make_room(lambda _: True):
            return None
        guest = self._guests[connection.fileno()] = Guest(self, connection, peer)
        guest.waits()
        return guest

    def guest(self, descriptor: int) -> Guest | None:
        return self._guests.get(descriptor)

    def forget(self, guest: Guest, descriptor: int) -> None:
        if self._guests.get(descriptor) is guest:
            del self._guests[descriptor]

    def _make_room(self, concerns: Callable[[Guest], bool]) -> bool:
        longest = next(filter(concerns, self.idle), None)
        if longest is not None:
            longest.send_away()
        return longest is not None


class _Connection(socket.socket):
    """Tells the door when it is closed, by whomever: a handshake that failed has no protocol that could."""

    guest: Guest | None = None

    def close(self) -> None:
        if self.guest is not None:
            self.guest.left()
            self.guest = None
        super().close()


class Listener(socket.socket):
    """A listening socket that accepts whom the door admits. Takes ``plain`` over."""

    def __init__(self, door: Door, plain: socket.socket) -> None:
        super().__init__(fileno=plain.detach())
        self._door = door

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            plain, address = super().accept()
            connection = _Connection(fileno=plain.detach())
            connection.guest = self._door.admit(connection, address)
            if connection.guest is not None:
                return connection, address
            connection.close()


def protocol_behind(door: Door) -> type[H11Protocol]:
    """HTTP/1.1 that tells the door which of its connections are at work."""

    class Protocol(H11Protocol):
        _guest: Guest | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            super().connection_made(transport)
            self._guest = door.guest(transport.get_extra_info("socket").fileno())

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._at_work() and self._guest is not None:
                self._guest.works()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # The next request may have come already.
            if not self._at_work() and self._guest is not None and not self.transport.is_closing():
                self._guest.waits()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

        def resume_writing(self) -> None:
            self._read()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._read()
            self._guest = None
            super().connection_lost(exc)

        def _at_work(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _read(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

    return Protocol


def _peer(address: Any) -> str:
    """Whom an address counts for: of IPv6 the network, as one machine has as many addresses of it as it likes."""
    try:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except (ValueError, IndexError, TypeError):
        return str(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((int(ip), 64), strict=False))
    return str(ip)
