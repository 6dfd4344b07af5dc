"""An answer that has to be whole in time. A socket's own time-out is one for each of its bytes: a receiver that sends one now and then could hold a request for ever."""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any, Final

import urllib3

_INTERIM: Final = range(102, 200)
"""Answers that say that another follows, whether anybody knows them or not (RFC 9110, 15.2). ``http.client`` itself passes over 100; behind 101 none follows."""


class TimedAnswer(http.client.HTTPResponse):
    """Raises TimeoutError where its last byte comes later than the socket's time-out after its connection began to wait for it."""

    def __init__(self, sock: socket.socket, *given: Any, **more: Any) -> None:
        super().__init__(sock, *given, **more)
        self.fp = io.BufferedReader(_InTime(sock, self.fp.detach()))

    def begin(self) -> None:
        super().begin()
        while self.status in _INTERIM:
            self.headers = self.msg = None  # type: ignore[assignment]  # else there is nothing left to begin
            super().begin()


class _InTime(io.RawIOBase):
    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        super().__init__()
        self._sock, self._raw = sock, raw
        self._most_s = sock.gettimeout() or 0.0
        self._end = time.monotonic() + self._most_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        try:
            return self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(self._most_s)

    def close(self) -> None:
        self._raw.close()
        super().close()


class PlainConnection(urllib3.connection.HTTPConnection):
    """See ``TimedAnswer``."""

    response_class = TimedAnswer


class SecureConnection(urllib3.connection.HTTPSConnection):
    """See ``TimedAnswer``."""

    response_class = TimedAnswer
