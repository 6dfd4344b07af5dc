"""Capture as a thread of the test (its own process in tests/end_to_end), and the log as plain rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import SecretStr

from cdc.capture.warm import warm
from cdc.errors import HeadwaterError
from cdc.ingest.loop import Ingest
from cdc.ingest.process import run_capture
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import EXACT, OP, POSITION, table_of
from cdc.model.evolution import schema_change_of
from cdc.model.pgtypes import canonical_text
from cdc.model.position import Position
from cdc.settings.models import Log, Settings, Source
from cdc.source.watch import CatalogWatch
from cdc.state import status

DEADLINE_S = 120.0
_READ = "select 1 from pg_replication_slots where slot_name = %s and active"


class Capture:
    """``folder`` holds log and status; starting again over the same folder goes on."""

    def __init__(self, dsn: str, folder: Path, **source: Any) -> None:
        self.settings = Settings(
            source=Source(dsn=SecretStr(dsn), **source), log=Log(dir=folder / "log", segment_bytes=1 << 20), run_dir=folder / "run"
        )
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Capture:
        # Compiling takes a minute on a machine with much else to do, and no deadline shall count it.
        warm()
        self.error = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture under test")
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            run_capture(self.settings, self._stop)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(DEADLINE_S)
            assert not self._thread.is_alive()
        self.reader.close()
        del self.reader

    @contextmanager
    def running(self) -> Iterator[Capture]:
        self.start()
        try:
            yield self
        finally:
            self.stop()
        if self.error is not None:
            raise self.error

    @property
    def status(self) -> status.CaptureStatus:
        found = status.read_capture(self.settings.run_dir)
        assert found is not None
        return found

    def until(self, condition: Callable[[], bool], what: str = "", *, deadline_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + deadline_s
        while True:
            asked = time.monotonic()
            if condition():
                return
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"waited in vain {what}: {status.read_capture(self.settings.run_dir)}"
            # Capture runs in this very process: a condition that takes long (a status of hundreds of tables) is asked less often.
            time.sleep(max(0.01, 2 * (time.monotonic() - asked)))

    def until_snapshot_done(self, *, deadline_s: float = DEADLINE_S) -> None:
        def done() -> bool:
            found = status.read_capture(self.settings.run_dir)
            return found is not None and found.state == "streaming" and all(table.finished for table in found.snapshot)

        self.until(done, "for the snapshot", deadline_s=deadline_s)

    def until_lsn(self, lsn: int) -> None:
        """Until everything up to the LSN is durable in the log."""
        self.until(lambda: self.reader.head().commit_lsn >= lsn or self.status.received_lsn >= lsn, f"for LSN {lsn}")

    def until_released(self, connection: psycopg.Connection[Any]) -> None:
        """Until the server has let go of the slot, which it does a little after a stream that we end: so long nobody else can have it."""
        deadline = time.monotonic() + DEADLINE_S
        while connection.execute(_READ, (self.settings.source.slot,)).fetchone() is not None:
            assert time.monotonic() < deadline, "the slot is still read"
            time.sleep(0.01)

    def failure(self) -> HeadwaterError:
        """What capture ended with."""
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert isinstance(self.error, HeadwaterError), self.error
        return self.error

    @cached_property
    def reader(self) -> EmbeddedLogReader:
        """One for all that the test reads: each holds file descriptors."""
        return EmbeddedLogReader(self.settings.log.dir)

    def topics(self) -> list[str]:
        return [topic.name for topic in self.reader.topics()]

    def batches(self, topic: str, after: int = 0) -> list[pa.RecordBatch]:
        reader = self.reader
        return list(reader.read(topic, Position(after), reader.head().position))

    def changes(self, topic: str, after: int = 0) -> list[tuple[int, str, dict[str, str | None]]]:
        """(position, operation, canonical text by column)."""
        return [change for batch in self.batches(topic, after) for change in changes_of(batch)]

    def rows(self, topic: str) -> dict[tuple[str | None, ...], dict[str, str | None]]:
        """The table as the log leaves it: the fold of its changes, by key."""
        table: dict[tuple[str | None, ...], dict[str, str | None]] = {}
        for batch in self.batches(topic):
            key = [column.name for column in table_of(batch.schema).key]
            change = schema_change_of(batch)
            if change is not None:
                if change.empties:
                    table.clear()
                continue
            for _, op, values in changes_of(batch):
                if op == "t":
                    table.clear()
                elif op == "d":
                    table.pop(tuple(values[name] for name in key), None)
                else:
                    table[tuple(values[name] for name in key)] = values
        return table


def unobserved(monkeypatch: pytest.MonkeyPatch) -> threading.Lock:
    """While it is held, capture neither looks at the catalog nor takes in what the stream brings; to be asked for before capture starts."""
    held = threading.Lock()

    def under(method: Callable[..., None]) -> Callable[..., None]:
        def waiting(*arguments: Any) -> None:
            with held:
                method(*arguments)

        return waiting

    monkeypatch.setattr(CatalogWatch, "_look", under(CatalogWatch._look))
    monkeypatch.setattr(Ingest, "_consume", under(Ingest._consume))
    return held


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One number: how many looks at the catalog have ended. To be asked for before capture starts."""
    looks, look = [0], CatalogWatch._look

    def one_more(self: CatalogWatch, connection: psycopg.Connection[Any]) -> None:
        look(self, connection)
        looks[0] += 1

    monkeypatch.setattr(CatalogWatch, "_look", one_more)
    return looks


def changes_of(batch: pa.RecordBatch) -> list[tuple[int, str, dict[str, str | None]]]:
    table = table_of(batch.schema)
    columns = {name: canonical_text(batch.column(name)).to_pylist() for name in table.names}
    exact = [dict(entry or ()) for entry in batch.column(EXACT).to_pylist()]
    positions, ops = batch.column(POSITION).to_pylist(), batch.column(OP).to_pylist()
    return [
        (position, chr(op), {name: exact[row].get(name, columns[name][row]) for name in table.names})
        for row, (position, op) in enumerate(zip(positions, ops, strict=True))
    ]
