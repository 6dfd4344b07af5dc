"""How long a statement's answer is waited for: as long as the server works on it, be it for hours, and no longer.

A link can be silent though TCP acknowledges everything (a proxy or a tunnel that hangs), and a slow statement is as silent as a dead
link. So after ``SILENCE_S`` the server is asked over another connection what its process does: one that waits for its client, while we wait
for it, and still does when it is asked once more, will never be heard again.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

SILENCE_S: Final = 30.0
GRACE_S: Final = 3.0
"""The pause before the server is asked once more: bytes that either side has just sent may still be on their way when it is asked first."""
UNKNOWN_MAX: Final = 10
"""So often in a row the server may have no room for who asks. Dead links of ours may be what fills it."""
_CROWDED: Final = ("too many", "remaining connection slots")
_ASK_TIMEOUT_S: Final = 10
_INTERVAL_S: Final = 0.1
_WORKS: Final = "select coalesce(wait_event not in ('ClientRead', 'ClientWrite'), true) from pg_stat_activity where pid = %s"

RV = TypeVar("RV")


class Patience:
    """One connection's. Its reader says when bytes came, and now and then that none do."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.heard()

    def heard(self) -> None:
        """Bytes came, or could be sent."""
        self._since = time.monotonic()
        self._left_s = SILENCE_S
        self._doubted = False
        self._unknown = 0

    def check(self) -> None:
        """Nothing has come. Raises psycopg.OperationalError, with the connection closed, when nothing ever will."""
        if time.monotonic() - self._since < self._left_s:
            return
        works = _works(self._connection)
        self._unknown = self._unknown + 1 if works is None else 0
        idle = works is False or self._unknown >= UNKNOWN_MAX
        # One answer may be an accident: what we sent had not arrived yet, or the asking thread met a fault of its own.
        if idle and self._doubted and not self._has_bytes():
            self._connection.pgconn.finish()
            raise psycopg.OperationalError(f"the server has not answered for {SILENCE_S:g} s, and is not at work on it")
        self._doubted = idle or (works is None and self._doubted)
        self._since = time.monotonic()
        self._left_s = min(GRACE_S, SILENCE_S) if self._doubted else SILENCE_S

    def _has_bytes(self) -> bool:
        """Some have come while nobody looked."""
        look = select.poll()  # select(2) takes no descriptor above 1023
        look.register(self._connection.pgconn.socket, select.POLLIN)
        return bool(look.poll(0))

    def during(self, generator: PQGen[RV]) -> PQGen[RV]:
        """The same steps of psycopg's, watched."""
        try:
            wanted = next(generator)
            while True:
                ready = yield wanted
                if ready:
                    self.heard()
                else:
                    self.check()
                wanted = generator.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """One on which no statement waits for a link that is dead."""

    opened_with: Mapping[str, str]
    """The parameters that the server took, but for what only this connection adds: another one (the stream's) opens with the same."""

    @classmethod
    def opened(cls, parts: Mapping[str, str], added: Mapping[str, str]) -> Self:
        """In autocommit. What is in ``parts`` counts before what is ``added``. Raises psycopg.Error."""
        connection = cls.connect(make_conninfo(**{**added, **parts}), autocommit=True)
        connection.opened_with = parts
        return connection

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_S, timeout: float | None = None) -> RV:
        return super().wait(Patience(self).during(gen), interval, timeout)


class _Asking(psycopg.Connection[tuple[Any, ...]]):
    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_S, timeout: float | None = _ASK_TIMEOUT_S) -> RV:
        return super().wait(gen, interval, timeout)


def _works(connection: psycopg.Connection[Any]) -> bool | None:
    """Whether the connection's server process is at work, rather than waiting for us, or gone; None when there is no room to ask."""
    info = connection.info
    parts = {**info.get_parameters(), "host": info.host, "port": str(info.port), "password": info.password}
    if "hostaddr" in parts:
        parts["hostaddr"] = info.hostaddr
    given = {name: value for name, value in parts.items() if value}
    try:
        with _Asking.connect(make_conninfo(**{**given, "connect_timeout": str(_ASK_TIMEOUT_S)}), autocommit=True) as asking:
            row = asking.execute(_WORKS, (info.backend_pid,)).fetchone()
    except psycopg.Error as error:
        # Else the next attempt to connect will say why.
        return None if any(words in str(error) for words in _CROWDED) else False
    return row is not None and bool(row[0])
