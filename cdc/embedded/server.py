"""A server that is one process over one folder."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from cdc.embedded.processes import kill_group, stop


class EmbeddedServer(ABC):
    """Once started, it keeps its port and its data over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def start(self) -> None:
        """Returns when the server answers. Raises EmbeddedError when it does not come up."""

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def crash(self) -> None:
        """kill -9."""
        if self._process is not None:
            kill_group(self._process)

    def restart(self) -> None:
        """Same data, same port."""
        self.stop()
        self.start()
