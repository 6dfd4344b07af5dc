"""Who may ask, and what every answer tells the browser. Reading only: no method but GET and HEAD exists here.

On loopback any local user may read. The Host header must then name loopback, so that a web page elsewhere cannot reach the port by
pointing a name of its own at 127.0.0.1 (DNS rebinding). Nor may it have its readers' browsers send requests here. On any other address
a token is required, over TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdc.settings.models import Http
from cdc.settings.refusals import host_and_port, is_loopback, of_http

OPEN_PATHS: Final = frozenset(
    {"/", "/page.css", "/page.js", "/parts.js", "/words.js", "/draw.js", "/stream.js", "/icon.svg", "/healthz"}
)
"""Hold no facts, so they need no token: the page asks its reader for it."""
_WAITING: Final = frozenset({"/v1/wait", "/v1/events"})
"""What is asked for there is kept for as long as the asker likes."""
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What every answer tells the browser."""


@dataclass(frozen=True, slots=True)
class Access:
    """``hosts``: the names that a Host header may carry; None when any may. ``token``: None when none is asked for."""

    hosts: frozenset[str] | None
    token: str | None


def access_of(http: Http) -> Access:
    """Raises ConfigError when the port would be open to others without a token and TLS."""
    for refusal in of_http(http):
        raise refusal.error()
    host, _ = host_and_port(http.listen)
    token = http.token.get_secret_value().strip() if http.token else None
    if is_loopback(host):
        return Access(_LOCAL_NAMES | {host.lower()} | {name.lower() for name in http.hosts}, token)
    return Access(None, token)


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    status: int
    error: str
    headers: Mapping[str, str]


def judge(access: Access, method: str, path: str, headers: Mapping[str, str]) -> RequestRefusal | None:
    """Why this request is refused, or None. ``headers``: looked up in lower case."""
    if method not in ("GET", "HEAD"):
        return RequestRefusal(405, "this port is for reading: GET only", {"Allow": "GET, HEAD"})
    host = headers.get("host", "")
    if access.hosts is not None and _name(host) not in access.hosts:
        return RequestRefusal(403, "the Host header names no host of this port (add it to hosts in [http])", {})
    origin = headers.get("origin")
    if origin is not None and _place(origin) != host.lower():
        return RequestRefusal(403, "other sites may not read this port", {})
    if _is_from_another_site(path, headers):
        return RequestRefusal(403, "other sites may not use this port", {})
    if access.token is not None and path not in OPEN_PATHS and not _bears(headers.get("authorization", ""), access.token):
        return RequestRefusal(401, "a token is needed: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
    return None


class Guard:
    """ASGI middleware: refuses what ``judge`` refuses, and adds the browser's orders to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = judge(self._access, scope["method"], scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        answer = JSONResponse({"error": refusal.error}, refusal.status, dict(refusal.headers))
        await answer(scope, receive, send_guarded)


def _bears(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    # Compared as digests: compare_digest tells lengths apart, and takes no text beyond ASCII.
    same = hmac.compare_digest(hashlib.sha256(given.strip().encode()).digest(), hashlib.sha256(token.encode()).digest())
    return scheme.lower() == "bearer" and same


def _is_from_another_site(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site's page has sent it here: an image, say, whose address asks for a wait. Such a request
    carries no Origin. A link may be followed, unless what it leads to waits."""
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return not (followed and path not in _WAITING)


def _place(origin: str) -> str | None:
    """Host and port of an Origin header; None for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str | None:
    """The name in a Host header, without the port; None for what is not a host."""
    if set(host) & set("@/?#\\"):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
