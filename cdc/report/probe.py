"""A probe that asks the source about its slot, over one connection that is kept."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

import psycopg
from pydantic import SecretStr

from cdc.errors import HeadwaterError
from cdc.model.position import format_lsn
from cdc.report.shape import SlotReport, SourceReport
from cdc.source.budget import alarms, wal_rate
from cdc.source.connection import CONFIGURED, address, connect, reason
from cdc.source.pins import Pin, PinWatch
from cdc.source.slot import SlotFacts, read_slot

RETRY_SOURCE_S: Final = 5.0
"""A source that was down is asked again no more often than this."""
_RATE_WINDOW_S: Final = 60.0


@dataclass(slots=True)
class SourceProbe:
    """Asks the source for its slot over one connection that it keeps. Safe to use from several threads.

    A source that does not answer is part of the report, not an error: it is asked again after ``RETRY_SOURCE_S``.
    """

    dsn: SecretStr
    slot: str
    connect_timeout_s: int = 3
    _connection: psycopg.Connection | None = None
    _failed_at: float = float("-inf")
    _error: str | None = None
    _clock: tuple[float, float] | None = None
    """The server's time, and the monotonic one when it said so."""
    _samples: list[tuple[float, int]] = field(default_factory=list)
    _pins: list[Pin] = field(default_factory=list)
    _watch: PinWatch = field(default_factory=PinWatch)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _address: str = CONFIGURED

    def read(self) -> SourceReport:
        with self._lock:
            facts = self._facts()
            if facts is None:
                return SourceReport(False, self._error, self._address, None)
            found = alarms(facts, wal_rate(self._samples), self._pins)
            return SourceReport(True, None, self._address, self._slot(facts), tuple(found), tuple(self._pins))

    def now(self) -> float:
        """The server's time now (Unix time, seconds), whatever our own wall clock shows; ours as long as no server has answered."""
        with self._lock:
            clock = self._clock
        return time.time() if clock is None else clock[0] + time.monotonic() - clock[1]

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _facts(self) -> SlotFacts | None:
        now = time.monotonic()
        if self._connection is None and now - self._failed_at < RETRY_SOURCE_S:
            return None
        dsn = self.dsn.get_secret_value()
        try:
            if self._connection is None:
                self._address = address(dsn)
                self._connection = connect(dsn, application="headwater-status", connect_timeout_s=self.connect_timeout_s)
            facts = read_slot(self._connection, self.slot)
            self._pins = self._watch.look(self._connection)
        except (HeadwaterError, psycopg.Error) as error:
            self._error = reason(error) if isinstance(error, psycopg.Error) else str(error)
            self._failed_at = now
            self._drop()
            return None
        self._error = None
        self._clock = facts.server_time, time.monotonic()
        self._samples = [sample for sample in self._samples if now - sample[0] <= _RATE_WINDOW_S] + [(now, facts.server_lsn)]
        return facts

    def _slot(self, facts: SlotFacts) -> SlotReport:
        rate = wal_rate(self._samples)
        return SlotReport(
            name=facts.name,
            exists=facts.exists,
            active=facts.reader is not None,
            wal_status=facts.wal_status,
            server_lsn=format_lsn(facts.server_lsn),
            confirmed_lsn=format_lsn(facts.confirmed_lsn) if facts.confirmed_lsn else None,
            lag_bytes=facts.wal.lag_bytes,
            held_bytes=facts.wal.bytes,
            max_keep_bytes=facts.wal.limit_bytes,
            safe_wal_bytes=facts.wal.safe_bytes,
            wal_bytes_per_s=rate,
            budget_eta_s=facts.wal.eta_s(rate),
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
