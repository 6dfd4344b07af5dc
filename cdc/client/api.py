"""``cdc.connect(config)``: for programs that write to Postgres and then read from a derived store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cdc.client.wait import Waited, parse_wanted, wait
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.model.position import Lsn
from cdc.settings.file import load
from cdc.settings.models import Settings
from sinks import options_model


@dataclass(frozen=True, slots=True)
class Client:
    """One configuration's stores. Holds no connection; may be shared by threads."""

    settings: Settings
    _open_reader: Callable[[], LogReader]

    def wait(self, store: str, lsn: int | str | None = None, timeout: float = 60.0) -> Waited:
        """Returns once ``store`` shows everything up to ``lsn``: an integer, Postgres's text ("16/B374D848"), or None for now.

        After your own commit, None includes it. Raises WaitTimeout after ``timeout`` seconds, Stopped when a part is in a stop state.
        """
        wanted = parse_wanted(lsn) if isinstance(lsn, str) else None if lsn is None else Lsn(lsn)
        with closing(self._open_reader()) as reader:
            return wait(self.settings, reader, store, lsn=wanted, timeout_s=timeout)


def connect(config: str | Path = "cdc.toml") -> Client:
    """Reads the configuration. Raises ConfigError."""
    settings = load(Path(config), options_model)
    return Client(settings, lambda: open_reader(settings.log.dir))
