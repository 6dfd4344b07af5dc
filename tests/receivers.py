"""A webhook's receiver that does as a test says: a real HTTP server on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Received:
    """One request. ``at_s``: Unix time."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at_s: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True, slots=True)
class Answer:
    """``hang_up``: without any. ``after_s``: so much later."""

    status: int = 204
    headers: Mapping[str, str] | None = None
    body: bytes = b""
    hang_up: bool = False
    after_s: float = 0.0


Script = Callable[[Received], Answer]


def content(_: Received) -> Answer:
    return Answer()


class ScriptedReceiver:
    """Answers each request as ``script`` says, which may be replaced at any time, and remembers all of them."""

    def __init__(self, script: Script = content, port: int = 0) -> None:
        self.script = script
        self.received: list[Received] = []
        self._lock = threading.Lock()
        self.connections = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with receiver._lock:
                    receiver.connections += 1

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = self.rfile.read(length)
                if len(body) < length:  # the sender was killed in the middle: no receiver takes that for an event
                    self.close_connection = True
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                one = Received(self.path, headers, body, time.time())
                answer = receiver.script(one)
                with receiver._lock:
                    receiver.received.append(one)
                if answer.after_s:
                    time.sleep(answer.after_s)
                if answer.hang_up:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in (answer.headers or {}).items():
                    self.send_header(name, value)
                if answer.status >= 200 and answer.status != 204:
                    self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign, assignment]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    def ids(self, path: str | None = None) -> Sequence[str]:
        with self._lock:
            return [one.id for one in self.received if path in (None, one.path)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
