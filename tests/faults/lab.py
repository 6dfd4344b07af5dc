"""One database, one log, one capture process after another: what the fault tests start, break and compare."""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from cdc.embedded.postgres import Postgres
from cdc.errors import PositionGone
from cdc.log.embedded.format import HEAD_BYTES, decode_head
from cdc.state import status, stops
from snapshots.progress import SnapshotProgress
from tests.faults.nursery import Nursery, Process
from tests.faults.truth import LogFold, difference, of_source, pin

DEADLINE_S: Final = 120.0
"""For whatever is waited for: far more than it ever takes, on a machine with much else to do."""
POLL_S: Final = 0.01
RESTARTS_MAX: Final = 4
STREAMING: Final = ("snapshot", "streaming")


class Lab:
    """``connection`` is the application's, in autocommit and pinned; it is made anew after the server went down."""

    def __init__(self, server: Postgres, nursery: Nursery, folder: Path, database: str, *, unix: bool = True) -> None:
        self.server = server
        self.folder = folder
        self.database = database
        self.unix = unix
        self.slot = database
        self.segment_bytes = 16384
        self.log_options: dict[str, Any] = {}
        self.process: Process | None = None
        self.dsn_override: str | None = None
        self._nursery = nursery
        self._runs = 0
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def dsn(self) -> str:
        return self.server.unix_dsn(self.database) if self.unix else self.server.dsn(self.database)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.server.unix_dsn(self.database), autocommit=True)
            pin(self._connection)
            self._connection.execute("set search_path = public")
        return self._connection

    # --- the process ---------------------------------------------------------------------------------------------------------

    def job(self, run: str = "capture", **more: Any) -> dict[str, Any]:
        source = {
            "dsn": self.dsn_override or self.dsn, "slot": self.slot, "publication": "cdc", "tables": ["public.*"], "snapshot_chunk_rows": 15,
        }  # fmt: skip
        log = {"segment_bytes": self.segment_bytes, **self.log_options}
        return {"run": run, "folder": str(self.folder), "source": source, "log_options": log, **more}

    def start(self, crash: str | None = None, run: str = "capture", **more: Any) -> Process:
        self._runs += 1
        self.process = self._nursery.start(self.job(run, crash=crash, **more), self.folder / f"process-{self._runs}.log")
        return self.process

    def end(self) -> None:
        """kill -9, if it lives."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def ask_to_stop(self) -> int | None:
        """SIGTERM; the exit code, or None when it does not end in time."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    @property
    def streams(self) -> bool:
        """Whether this very process has come so far that it connects again when its stream breaks, and drains when it is asked to end."""
        told = status.read_capture(self.folder / "run")
        return told is not None and self.process is not None and told.pid == self.process.pid and told.state in STREAMING

    def wal_end(self) -> int:
        row = self.connection.execute("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8").fetchone()
        assert row is not None
        return int(row[0])

    def heard_of(self, lsn: int) -> Callable[[], bool]:
        """Whether this very process has received everything before ``lsn``, by its own status."""
        process = self.process

        def heard() -> bool:
            told = status.read_capture(self.folder / "run")
            return told is not None and process is not None and told.pid == process.pid and told.received_lsn >= lsn

        return heard

    @property
    def told(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2500:] for path in sorted(self.folder.glob("process-*.log"))[-3:])

    # --- what must be true in the end ----------------------------------------------------------------------------------------

    def settled(self) -> str | None:
        """None when the log holds exactly what the source holds and every snapshot is finished; else what is missing."""
        if not (self.folder / "log" / "head").exists():
            return "there is no log yet"
        tables = SnapshotProgress(self.folder / "log").tables()
        if not tables or not all(table.finished for table in tables):
            return "the snapshot is not finished"
        fold = LogFold(self.folder / "log")
        try:
            return difference(of_source(self.connection), fold.tables())
        except PositionGone:
            return "the log was compacted while it was read"
        finally:
            fold.close()

    def converge(self, *, restart: bool = True) -> None:
        """Runs capture (again, when it died) until the log equals the source. Nobody writes meanwhile."""
        deadline = time.monotonic() + DEADLINE_S
        restarts = 0
        while (lacks := self.settled()) is not None:
            assert self.process is not None
            if self.ended:
                restarts += 1
                assert restart, f"capture ended with {self.process.code}\n{self.told}"
                assert restarts <= RESTARTS_MAX, f"capture ends again and again: {lacks}\n{self.told}"
                assert self.process.code != 4, f"a fault became a stop state\n{self.told}"
                self.start()
            assert time.monotonic() < deadline, f"{lacks}\n{self.told}"
            time.sleep(POLL_S)
        assert not stops.held(self.folder / "run"), self.told
        self.check_confirmed()

    def check_confirmed(self) -> None:
        """What the server was told to be durable is in the log."""
        row = self.connection.execute(
            "select (confirmed_flush_lsn - '0/0'::pg_lsn)::int8 from pg_replication_slots where slot_name = %s", (self.slot,)
        ).fetchone()
        if row is not None and row[0] is not None and (self.folder / "log" / "source.json").exists():
            head = decode_head((self.folder / "log" / "head").read_bytes()[:HEAD_BYTES])
            assert head is None or row[0] <= head.commit_lsn, f"{row[0]} is confirmed, {head.commit_lsn} is durable"

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def drop_slot(self) -> None:
        remove_slots(self.connection, self.database)

    def forget_log(self) -> None:
        """Begins anew: an empty log, and whatever else capture keeps in its folder."""
        shutil.rmtree(self.folder / "log")

    def has_slot(self) -> bool:
        found = self.connection.execute(
            "select 1 from pg_replication_slots where slot_name = %s and confirmed_flush_lsn is not null", (self.slot,)
        )
        return found.fetchone() is not None

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{self.told}"
            time.sleep(POLL_S)

    def close(self) -> None:
        self.end()
        if self._connection is not None:
            self._connection.close()


@contextmanager
def lab(server: Postgres, nursery: Nursery, folder: Path, *, template: str | None = None, unix: bool = True) -> Iterator[Lab]:
    """A database of its own (a copy of ``template``), removed with its slot at the end."""
    name = f"faults_{uuid.uuid4().hex[:10]}"
    server.start()
    with psycopg.connect(server.unix_dsn(), autocommit=True) as admin:
        copied = f' template "{template}" strategy wal_log' if template else ""
        admin.execute(f'create database "{name}"{copied}')
    one = Lab(server, nursery, folder, name, unix=unix)
    try:
        yield one
    finally:
        one.close()
        server.start()
        remove(server, name)


def remove(server: Postgres, name: str) -> None:
    with psycopg.connect(server.unix_dsn(), autocommit=True) as admin:
        remove_slots(admin, name)
        admin.execute(f'drop database if exists "{name}" with (force)')


def remove_slots(admin: psycopg.Connection[Any], database: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while slots := admin.execute(
        "select slot_name, active_pid from pg_replication_slots where database = %s", (database,)
    ).fetchall():
        for slot, active in slots:
            if active is not None:
                admin.execute("select pg_terminate_backend(%s)", (active,))
            else:
                admin.execute("select pg_drop_replication_slot(%s)", (slot,))
        assert time.monotonic() < deadline, f"slots of {database} are still in use"
        time.sleep(0.005)
