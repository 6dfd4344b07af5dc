"""The capture process's eye on the slot's WAL: a thread that warns in the log, once for each danger, while it grows and not after."""

from __future__ import annotations

import threading
import time
from typing import Final

import psycopg
import structlog
from pydantic import SecretStr

from cdc.errors import HeadwaterError
from cdc.source.budget import alarms, wal_rate
from cdc.source.connection import connect
from cdc.source.pins import PinWatch
from cdc.source.slot import read_slot
from cdc.state.chronicle import without_figures

INTERVAL_S: Final = 10.0
_WINDOW_S: Final = 60.0

_log = structlog.get_logger("capture")


class Alarms:
    """Warns until ``stop`` is set. That the source does not answer is said elsewhere."""

    def __init__(self, dsn: SecretStr, slot: str, stop: threading.Event) -> None:
        self._current: tuple[str, ...] = ()
        """Dangers to the slot now, one line each."""
        self._dsn = dsn
        self._slot = slot
        self._stop = stop
        self._samples: list[tuple[float, int]] = []
        self._pins = PinWatch()
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """After ``stop`` was set. It may be waiting for a server that has vanished, and holds nothing."""
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._dsn.get_secret_value(), application="headwater alarms") as connection:
                    while not self._stop.is_set():
                        self._look(connection)
                        self._stop.wait(INTERVAL_S)
            except (HeadwaterError, psycopg.Error):
                # The stream's own connection says what is wrong.
                self._stop.wait(INTERVAL_S)

    def _look(self, connection: psycopg.Connection) -> None:
        now, facts = time.monotonic(), read_slot(connection, self._slot)
        self._samples = [sample for sample in self._samples if now - sample[0] <= _WINDOW_S] + [(now, facts.server_lsn)]
        found = tuple(alarms(facts, wal_rate(self._samples), self._pins.look(connection)))
        known = set(map(without_figures, self._current))
        for line in found:
            if without_figures(line) not in known:
                _log.warning("the slot's WAL is in danger", alarm=line)
        self._current = found
