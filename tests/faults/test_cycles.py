"""Cycles of a random workload and one fault from a list, on a real Postgres; in between the log must equal the tables.

100 cycles in every run, 500 by `make faults` (HEADWATER_FAULTS=500). One seed decides everything: workload, faults, moments.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from cdc.embedded.postgres import VOLATILE, Postgres
from cdc.errors import StopState
from cdc.state import stops
from tests import counters
from tests.faults.conftest import SMALL
from tests.faults.lab import DEADLINE_S, Lab, lab
from tests.faults.nursery import Nursery
from tests.faults.workload import Workload

CYCLES: Final = int(os.environ.get("HEADWATER_FAULTS", "100"))
ROUNDS: Final = 4
"""Test functions that share them; each has a log of its own."""
COMPARED_EVERY: Final = 3
STEPS: Final = 6


class Cycles:
    """One lab under a workload, and what may happen to it."""

    def __init__(self, one: Lab, seed: int) -> None:
        self.one = one
        self.chance = random.Random(seed)
        self.work = Workload(self.chance, ddl=True)
        self._faults: list[tuple[int, str, Callable[[], None]]] = [
            (2, "server stopped fast", lambda: self._server("fast")),
            (2, "server stopped at once", lambda: self._server("immediate")),
            (1, "server stopped smartly", self._smart),
            (2, "server killed", self._server_killed),
            (4, "walsender terminated", self._walsender),
            (4, "capture stopped and continued", self._paused),
            (5, "capture killed", self._killed),
            (2, "capture drained", self._drained),
            (1, "slot dropped", self._slot_dropped),
            (2, "commit held by sync replication", self._sync_replication),
            (2, "schema changed", self._schema),
        ]

    def run(self, count: int) -> None:
        self.one.start()
        self.one.until(self.one.has_slot, "the slot")
        for number in range(1, count + 1):
            self._traffic(self.chance.randrange(STEPS))
            [(_, name, fault)] = self.chance.choices(self._faults, [weight for weight, _, _ in self._faults])
            fault()
            counters.add("fault cycles", name)
            self._traffic(self.chance.randrange(1, STEPS))
            if number % COMPARED_EVERY == 0 or number == count:
                self.one.converge()
            elif self.one.ended:
                self.one.start()

    def _traffic(self, count: int) -> None:
        for _ in range(count):
            self.work.step(self.one.connection)

    # --- faults --------------------------------------------------------------------------------------------------------------

    def _server(self, mode: str) -> None:
        self.one.disconnect()
        self.one.server.stop(mode, timeout_s=30)  # type: ignore[arg-type]
        self._down()

    def _smart(self) -> None:
        """Waits for every client; capture's catalog and snapshot connections are clients, so capture goes first."""
        self.one.disconnect()
        self.one.end()
        self.one.server.stop("smart", timeout_s=30)
        self._down()

    def _server_killed(self) -> None:
        self.one.disconnect()
        self.one.server.crash()
        self._down()

    def _down(self) -> None:
        time.sleep(self.chance.choice((0, 0.05)))
        self.one.server.start()

    def _walsender(self) -> None:
        for _ in range(self.chance.randrange(1, 3)):
            self.one.connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (self.one.slot,)
            )
            self._traffic(1)

    def _paused(self) -> None:
        assert self.one.process is not None
        self.one.process.signal(signal.SIGSTOP)
        self._traffic(self.chance.randrange(1, STEPS))
        self.one.process.signal(signal.SIGCONT)

    def _killed(self) -> None:
        self.one.end()
        self._traffic(self.chance.randrange(2))
        self.one.start()

    def _drained(self) -> None:
        # One that is just starting may end with what the fault before has left it.
        self.one.until(lambda: self.one.ended or self.one.streams, "capture to stream")
        if not self.one.ended:
            assert self.one.ask_to_stop() == 0, self.one.told
        self.one.start()

    def _slot_dropped(self) -> None:
        """A stop state, which holds; what ends it here is a fresh log."""
        self.one.converge()
        self.one.end()
        self.one.drop_slot()
        assert self.one.start().wait(DEADLINE_S) == 4, self.one.told
        [held] = stops.held(self.one.folder / "run")
        assert held.state is StopState.SLOT_MISSING
        assert self.one.start().wait(DEADLINE_S) == 4, "the stop state did not survive a restart"
        stops.clear(self.one.folder / "run", held.name)
        self.one.forget_log()
        self.one.start()
        self.one.until(self.one.has_slot, "the slot")

    def _sync_replication(self) -> None:
        """Commits are in the WAL and in the stream, and nobody sees them, until the standby that there is not is no longer waited for."""
        with psycopg.connect(
            self.one.server.unix_dsn(self.one.database), autocommit=True, options="-c search_path=public"
        ) as other:
            sent = other.pgconn
            self._tell_server("set synchronous_standby_names = 'nobody'")
            try:
                sent.send_query(
                    b"insert into events values (-1, 'held', null), (-2, 'held', null); update accounts set owner = 'held' where id < 20"
                )
                time.sleep(self.chance.choice((0.02, 0.1)))
                if self.chance.random() < 0.5:
                    self.one.end()
                    self.one.start()
            finally:
                self._tell_server("reset synchronous_standby_names")
            while sent.get_result() is not None:
                pass
        self.one.connection.execute("delete from events where id < 0")

    def _tell_server(self, setting: str) -> None:
        self.one.connection.execute(f"alter system {setting}")
        self.one.connection.execute("select pg_reload_conf()")

    def _schema(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self.work.alter(self.one.connection)
            self._traffic(1)


@pytest.fixture(scope="module")
def hurt_server(server_folder: Path) -> Iterator[Postgres]:
    """Of this module's own: it is stopped and killed all the time."""
    server = Postgres(server_folder / "cycles", options={**VOLATILE, **SMALL})
    server.start()
    with psycopg.connect(server.unix_dsn(), autocommit=True) as admin:
        admin.execute("create database first_rows")
    with psycopg.connect(server.unix_dsn("first_rows")) as connection:
        Workload(random.Random("first rows")).fill(connection)
    yield server
    server.stop("immediate")


@pytest.mark.faults
@pytest.mark.timeout(300 + 20 * CYCLES // ROUNDS)
@pytest.mark.xdist_group("cycles")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_cycles(round: int, hurt_server: Postgres, nursery: Nursery, server_folder: Path, seed: int) -> None:
    print(f"seed {seed}")
    folder = server_folder / f"cycles-{round}"
    with lab(hurt_server, nursery, folder, template="first_rows", unix=round % 2 == 0) as one:
        Cycles(one, seed).run(-(-CYCLES // ROUNDS))
