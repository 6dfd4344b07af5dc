"""The HTTP port, in a thread of the process that asks for it."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from cdc.errors import ConfigError
from cdc.settings import Settings

_DRAIN_S: Final = 5


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serves the status page and the API while the context lasts; yields their URL (port 0 in ``http.listen`` takes a free one).

    Raises ConfigError when the address is taken, or is no loopback address: there is neither a token nor TLS here yet.
    """
    from cdc.http.app import make_app

    listener = listen(settings.http.listen)
    server = uvicorn.Server(
        uvicorn.Config(make_app(settings), log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=_DRAIN_S)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
    thread.start()
    try:
        host, port = listener.getsockname()[:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(_DRAIN_S + 1)
        listener.close()


def listen(address: str) -> socket.socket:
    """A listening socket on ``host:port``. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http.listen: {address!r} is no address", hint="write host:port, such as 127.0.0.1:8642")
    if not _is_loopback(host):
        raise ConfigError(
            f"http.listen: {host!r} is no loopback address",
            hint="listen on 127.0.0.1 and put a proxy with TLS and a login in front",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise ConfigError(f"http.listen: cannot listen on {address}: {error.strerror}", hint="set another http.listen") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
