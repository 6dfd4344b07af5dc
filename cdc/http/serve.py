"""The HTTP port's socket and its thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn
from starlette.applications import Starlette

from cdc.errors import ConfigError
from cdc.http.app import make_app
from cdc.http.certificate import Certificate
from cdc.http.door import MAX_HEADER_BYTES, Door, Listener, protocol_behind
from cdc.settings.models import Settings
from cdc.settings.refusals import host_and_port

DRAIN_S: Final = 5
TICK_S: Final = 1.0
"""How often the server sets the date that its answers carry, and looks whether its certificate was renewed."""
BACKLOG: Final = 128
"""The number of connections accepted before those that make room for them are closed."""


class _Server(uvicorn.Server):
    """Is woken when it is to end. Uvicorn's own looks ten times a second, which was an eighth of what an idle daemon costs."""

    def __init__(self, config: uvicorn.Config, certificate: Certificate | None) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # 0: it sets the date
            if self._certificate is not None:
                self._certificate.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), TICK_S)

    def leave(self) -> None:
        """From another thread."""
        self.should_exit = True
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self._woken.set)


@contextmanager
def serving(settings: Settings, app: Starlette | None = None, *, current: Callable[[], Settings] | None = None) -> Iterator[str]:
    """Serves while the context lasts, in a thread; yields the URL (port 0 in ``http.listen`` takes a free one).

    current: the settings in force, whose stores may change.
    Raises ConfigError when the address is taken or no address, the certificate cannot be used, or the port would be open to others
    without a token and TLS.
    """
    app = app or make_app(settings, current=current)
    certificate = _certificate(settings)
    door = Door()
    listener = Listener(door, listen(settings.http.listen))
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol_behind(door),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        backlog=BACKLOG,
        log_config=None,
        log_level="error",  # it warns of every malformed request, and anybody can send those
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=DRAIN_S,
    )
    config.load()
    config.ssl = None if certificate is None else certificate.context
    server = _Server(config, certificate)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
    thread.start()
    try:
        host, port = listener.getsockname()[:2]
        yield f"{'http' if certificate is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        app.state.feed.end()
        app.state.waits.end()
        server.leave()
        thread.join(DRAIN_S + 1)
        listener.close()


def listen(address: str) -> socket.socket:
    """A listening socket on ``host:port``. Raises ConfigError."""
    host, port = host_and_port(address)
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise ConfigError(f"http.listen: cannot listen on {address}: {error.strerror}", hint="set another http.listen") from None


def _certificate(settings: Settings) -> Certificate | None:
    http = settings.http
    return None if http.tls_cert is None or http.tls_key is None else Certificate(http.tls_cert, http.tls_key)
