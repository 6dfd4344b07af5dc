"""Another program of the demo's airport: it takes the application's events as signed POST requests, and remembers them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

SECRET: Final = "whsec_" + base64.b64encode(b"the demo is no secret to anybody").decode()


class DemoReceiver:
    """Listens on loopback at ``port`` until it is stopped. ``taken``: how often each event came, by its id."""

    def __init__(self, port: int) -> None:
        self.taken: Counter[str] = Counter()
        taken = self.taken

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                names = ("webhook-id", "webhook-timestamp", "webhook-signature")
                identity, moment, signature = (self.headers.get(name, "") for name in names)
                known = _is_signed(identity, moment, body, signature)
                if known:
                    taken[identity] += 1
                self.send_response(204 if known else 401)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _is_signed(identity: str, moment: str, body: bytes, signature: str) -> bool:
    """As any library of Standard Webhooks checks it; a receiver that is not a demo refuses an old moment as well."""
    text = b".".join((identity.encode(), moment.encode(), body))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(one, expected) for one in signature.split())
