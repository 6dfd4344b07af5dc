"""An identity provider's token endpoint for tests: the client-credentials grant of OAuth 2, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl


class TokenEndpoint:
    """``wanted``: the form's fields, all of them. ``lives_s``: how long a token is taken."""

    def __init__(self, wanted: dict[str, str], lives_s: int = 3600) -> None:
        self.issued: dict[str, float] = {}
        """Token → until when it is taken (``time.monotonic``)."""
        self.asked: list[dict[str, str]] = []
        self._wanted = wanted
        self._lives_s = lives_s
        server = self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/realms/lake/token"

    def accepts(self, token: str) -> bool:
        return self.issued.get(token, 0.0) > time.monotonic()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(form)
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if form != self._wanted:
            secrets = ("client_id", "client_secret")
            known = all(form.get(key) == self._wanted[key] for key in secrets)
            return (400, {"error": "invalid_scope"}) if known else (401, {"error": "invalid_client"})
        token = f"token-{len(self.issued)}"
        self.issued[token] = time.monotonic() + self._lives_s
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self._lives_s}


def _handler(endpoint: TokenEndpoint) -> type[BaseHTTPRequestHandler]:
    class TokenHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()))
            status, said = endpoint.answer(form)
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    return TokenHandler
