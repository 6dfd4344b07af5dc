"""A small HTTP server of the demo's own, on loopback, in a thread."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections, and writes nothing to the terminal."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...


class LoopbackServer:
    """Listens at ``port`` (0: a free one) until it is stopped; ``handler`` answers, each connection in a thread of its own. ``name``: the thread's."""

    def __init__(self, port: int, handler: type[QuietHandler], name: str) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
