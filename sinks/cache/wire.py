"""Answers of the server (RESP 2), read in bulk: a transaction of some hundred writes has as many, and none of them matters alone."""

from __future__ import annotations

import select
import socket
from typing import Final

import numpy as np
import numpy.typing as npt

from sinks.cache.answerkernels import answers_end, line_at

Reply = bytes | int | None | list["Reply"]

_LINE: Final = b"\r\n"
_ERROR: Final = ord("-")
_READ_BYTES: Final = 1 << 18


class Refused(Exception):
    """The server answered an error. Its text may quote what was sent, so only its first word is kept."""

    def __init__(self, line: bytes) -> None:
        text = line[1:]
        if text.startswith(b"EXECABORT"):  # why a transaction was not carried out stands behind that
            text = text.partition(b"because of: ")[2] or text
        word = text.strip().split(b" ", 1)[0].decode("ascii", "replace")
        self.code = word if word.isupper() and word.isalpha() else "ERR"
        super().__init__(self.code)


class RedisWire:
    """One connection that is past its handshake. Raises OSError when it breaks; it is of no use afterwards."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = bytearray()
        self._room = memoryview(bytearray(_READ_BYTES))

    @property
    def usable(self) -> bool:
        """Whether it is still open, as far as this side knows. To be asked when no answer is awaited: what can be read then is its end."""
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        return not ready.poll(0)

    def send(self, data: bytes | memoryview) -> None:
        self._socket.sendall(data)

    def expect(self, answer: bytes) -> bool:
        """Whether exactly these bytes come next; they are consumed then, and nothing is otherwise."""
        while len(self._unread) < len(answer):
            if not answer.startswith(self._unread):
                return False
            self._read()
        if not self._unread.startswith(answer):
            return False
        del self._unread[: len(answer)]
        return True

    def answers(self, count: int) -> memoryview:
        """The next ``count`` answers as they are, whatever their kinds: read-only bytes."""
        at, left = 0, count
        while left:
            if at == len(self._unread):
                self._read()
            here = at
            at, left = answers_end(np.frombuffer(self._unread, np.uint8), at, left)
            if left and at == here:
                self._read()
        found, self._unread = self._unread, self._unread[at:]
        return memoryview(found)[:at].toreadonly()

    def lines(self, count: int) -> bytes:
        """The next ``count`` answers, each of which is one line: a status, a number or an error."""
        at, left = 0, count
        while (found := self._unread.count(b"\n", at)) < left:
            at, left = len(self._unread), left - found
            self._read()
        # What comes behind the last of them belongs to the next answers.
        rest = self._unread[at:].split(b"\n", left)[-1] if left else self._unread
        end = len(self._unread) - len(rest)
        lines = bytes(self._unread[:end])
        del self._unread[:end]
        return lines

    def reply(self) -> Reply:
        """One answer, whatever its kind. Raises Refused when it is an error."""
        line = self.lines(1)[: -len(_LINE)]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise Refused(line)
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"$":
            return self._bulk(size)
        return [self.reply() for _ in range(size)]

    def _bulk(self, size: int) -> bytes:
        while len(self._unread) < size + len(_LINE):
            self._read()
        found = bytes(self._unread[:size])
        del self._unread[: size + len(_LINE)]
        return found

    def _read(self) -> None:
        size = self._socket.recv_into(self._room)
        if size == 0:
            raise ConnectionResetError("the server closed the connection")
        self._unread += self._room[:size]


def refuse_error(data: npt.NDArray[np.uint8], at: int) -> None:
    """Raises Refused where the answer that begins there is an error."""
    if data[at] == _ERROR:
        raise Refused(data[at : line_at(data, at)[2] - len(_LINE)].tobytes())


def bulk(item: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(item), item)


def command(*items: bytes | str | int) -> bytes:
    """One command as the bytes on the wire."""
    parts = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    return b"*%d\r\n" % len(parts) + b"".join(map(bulk, parts))
