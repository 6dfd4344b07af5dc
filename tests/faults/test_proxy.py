"""Capture over a connection that is slow, sliced, paused, cut, reset or dead: nothing is confirmed early, nothing lost, nothing twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc import capturing
from cdc.capture import stream as streaming
from cdc.embedded.postgres import Postgres
from cdc.log.format import HEAD_BYTES, decode_head
from cdc.log.reader import EmbeddedLogReader
from cdc.model.batch import POSITION
from cdc.source import patience, watch
from tests import counters
from tests.faults.lab import remove
from tests.faults.proxy import HARMLESS, Confirmed, Proxy, Toxic, Way
from tests.faults.truth import LogFold, difference, of_source, pin
from tests.faults.workload import Workload
from tests.integration.capture.running import Capture

NOTICED_S = 1.0
"""In these tests a dead connection is noticed after this long."""
SERVER_NOTICES_S = 1.5
"""wal_sender_timeout: until then the server thinks that the slot is in use, and refuses the next connection."""
RECOVERED_S = 20.0
"""… and another one streams at most this much later: the noticing, the pause before connecting, and what it costs on a busy machine."""
STEPS = 6
ALIVE = f"tcp_user_timeout={int(NOTICED_S * 1000)}&keepalives_idle=1&keepalives_interval=1&keepalives_count=1"


@dataclass
class Bench:
    """A capture that reaches its server through the proxy, and an application that does not."""

    capture: Capture
    proxy: Proxy
    connection: psycopg.Connection[Any]
    work: Workload
    fold: LogFold | None = None

    def traffic(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.work.step(self.connection)

    def until_equal(self, deadline_s: float = RECOVERED_S) -> None:
        """The log holds what the source holds."""
        source = of_source(self.connection)
        last: list[str | None] = [""]

        def equal() -> bool:
            self.fold = self.fold or LogFold(self.capture.settings.log.dir)
            last[0] = difference(source, self.fold.tables())
            return last[0] is None

        try:
            self.capture.until(equal, "for the log to equal the source", deadline_s=deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {last[0]}") from None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.capture.until(condition, what, deadline_s=RECOVERED_S)

    def until_confirmed(self) -> None:
        """The server has heard of all that is durable."""
        head = self.capture.reader.head().commit_lsn
        self.until(lambda: self.proxy.confirmed[-1].flush >= head, "for the confirmation")

    def check(self) -> None:
        early = [told for told in self.proxy.confirmed if told.early]
        assert not early, f"confirmed before it was durable: {early[:3]}"
        with closing(EmbeddedLogReader(self.capture.settings.log.dir)) as reader:
            head = reader.head().position
            found = sorted(
                position
                for topic in reader.topics()
                for batch in reader.read(topic.name, 0, head)  # type: ignore[arg-type]
                for position in batch.column(POSITION).to_pylist()
            )
        assert found == list(range(1, head + 1)), "positions are missing, or there twice"


@pytest.fixture(scope="module", params=["socket", "libpq"])
def bench(request: pytest.FixtureRequest, fault_server: Postgres, filled_database: str, server_folder: Path) -> Iterator[Bench]:
    """One capture for all the toxics, over its own reading of the socket and over libpq's."""
    name = f"proxy_{request.param}"
    folder = server_folder / name
    with pytest.MonkeyPatch.context() as patch, psycopg.connect(fault_server.unix_dsn(), autocommit=True) as admin:
        patch.setattr(capturing, "BACKOFF_S", (0.05, 0.1, 0.2, 0.3))
        if request.param == "libpq":
            patch.setattr(streaming, "_Socket", streaming._Libpq)
        admin.execute(f"create database {name} template {filled_database}")
        admin.execute(f"alter database {name} set wal_sender_timeout = {int(SERVER_NOTICES_S * 1000)}")
        head = folder / "log" / "head"
        with closing(Proxy(fault_server.port, lambda: durable_lsn(head))) as proxy:
            dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}?sslmode=disable&{ALIVE}"
            capture = Capture(dsn, folder, slot=name, publication="cdc", tables=["public.*"], snapshot_chunk_rows=15)
            with psycopg.connect(fault_server.unix_dsn(name), autocommit=True) as connection, capture.running():
                pin(connection)
                connection.execute("set search_path = public")
                one = Bench(capture, proxy, connection, Workload(random.Random(name)))
                capture.until_snapshot_done()
                yield one
                proxy.toxic = HARMLESS
                if one.fold is not None:
                    one.fold.close()
    remove(fault_server, name)


def durable_lsn(head: Path) -> int:
    """What the log's head says is durable. It is overwritten in place, so it is read until it is whole."""
    for _ in range(200):
        try:
            found = decode_head(head.read_bytes()[:HEAD_BYTES])
        except FileNotFoundError:
            return 0
        if found is not None:
            return found.commit_lsn
        time.sleep(0.001)
    raise AssertionError("the head stays damaged")


TOXICS = {
    "latency": Toxic(latency_s=0.02),
    "slices of 1": Toxic(slice_bytes=1),
    "slices of up to 40": Toxic(slice_bytes=40),
    "slow": Toxic(bytes_per_s=300_000),
    "all of it": Toxic(latency_s=0.0005, slice_bytes=2000, bytes_per_s=2_000_000),
}

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("proxy"), pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", TOXICS)
def test_a_bad_connection_only_takes_longer(bench: Bench, name: str, seed: int) -> None:
    bench.work.chance = random.Random(seed)
    bench.proxy.toxic = TOXICS[name]
    before = bench.proxy.connections
    try:
        bench.connection.execute("update accounts set owner = 'sliced' where id < 20")
        if name != "slices of 1":
            bench.traffic()
        bench.until_equal()
        bench.until_confirmed()
    finally:
        bench.proxy.toxic = HARMLESS
    bench.check()
    assert bench.proxy.connections - before < 5, "a slow connection is no broken one"
    counters.add("proxy", name)


@pytest.mark.parametrize("ways", [{Way.UP}, {Way.DOWN}, {Way.UP, Way.DOWN}], ids=["up", "down", "both"])
def test_a_direction_that_stands_still_and_goes_on(bench: Bench, ways: set[Way], seed: int) -> None:
    bench.work.chance = random.Random(seed)
    bench.proxy.toxic = Toxic(paused=frozenset(ways))
    bench.traffic()
    time.sleep(NOTICED_S / 3)
    bench.traffic()
    bench.proxy.toxic = HARMLESS
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    counters.add("proxy", "direction paused")


def test_while_the_feedback_alone_stands_still_the_log_goes_on(bench: Bench, seed: int) -> None:
    bench.work.chance = random.Random(seed)
    bench.traffic(1)
    bench.until_equal()
    bench.until_confirmed()
    told = len(bench.proxy.confirmed)
    bench.proxy.toxic = Toxic(paused=frozenset({Way.UP}), paused_feedback_only=True)
    try:
        bench.traffic()
        bench.until_equal()
        assert len(bench.proxy.confirmed) <= told + 1, "the feedback stands still"
    finally:
        bench.proxy.toxic = HARMLESS
    bench.until_confirmed()
    bench.check()
    counters.add("proxy", "feedback paused")


def test_reset_again_and_again(bench: Bench, seed: int) -> None:
    bench.work.chance = random.Random(seed)
    for _ in range(3):
        bench.traffic(1)
        before = bench.proxy.connections
        bench.proxy.reset()
        bench.traffic(2)
        bench.until(lambda before=before: bench.proxy.connections > before, "for another connection")  # type: ignore[misc]
        counters.add("proxy", "reset")
    bench.until_equal()
    bench.until_confirmed()
    bench.check()


@pytest.mark.parametrize("later", [1, 2, 7, 40])
def test_cut_after_a_message(bench: Bench, later: int, seed: int) -> None:
    """In the middle of a transaction, mostly: it comes again, whole, and takes no position twice."""
    bench.work.chance = random.Random(seed)
    bench.until_equal()
    bench.proxy.toxic = Toxic(slice_bytes=100)
    bench.proxy.cut_after = bench.proxy.messages + later
    while bench.proxy.messages < bench.proxy.cut_after:
        bench.traffic(3)
        time.sleep(0.05)
    bench.proxy.toxic = HARMLESS
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    counters.add("proxy", "cut after a message")


def test_a_half_open_connection_is_noticed(bench: Bench, seed: int) -> None:
    bench.work.chance = random.Random(seed)
    bench.until_equal()
    before = bench.proxy.connections
    bench.proxy.half_open()
    bench.traffic()
    bench.until(lambda: bench.proxy.connections > before, "for another connection")
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    counters.add("proxy", "half-open")


def test_a_dead_server_is_told_from_one_that_has_nothing_to_say(bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP's acknowledgements still come, so only asking tells."""
    monkeypatch.setattr(streaming, "SILENCE_S", NOTICED_S)
    bench.work.chance = random.Random(seed)
    bench.until_equal()
    before = bench.proxy.connections
    bench.proxy.swallow()
    bench.until(lambda: bench.proxy.connections > before, "for another connection")
    bench.traffic(2)
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    counters.add("proxy", "swallowed")


def test_a_look_at_the_catalog_is_not_waited_for_when_the_link_is_dead(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's own link lives, but only a look over another one finds the new table, and its rows are read over a third."""
    monkeypatch.setattr(patience, "SILENCE_S", NOTICED_S / 2)
    monkeypatch.setattr(patience, "GRACE_S", NOTICED_S / 10)
    bench.work.chance = random.Random(seed)
    bench.until_equal()
    said: list[str] = []
    monkeypatch.setattr(watch, "INTERVAL_S", 0.2)
    monkeypatch.setattr(watch, "_RETRY_S", 0.1)
    monkeypatch.setattr(watch._log, "warning", lambda event, **more: said.append(f"{event}: {more['reason']}"), raising=False)
    bench.proxy.swallow(replication=False)
    bench.connection.execute("create table latecomer (id int primary key, v text)")
    bench.connection.execute("insert into latecomer values (1, 'behind a dead link')")
    bench.until(lambda: "public.latecomer" in bench.capture.topics(), "for the new table")
    bench.traffic(1)
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    assert any(line.startswith("cannot look at the catalog now: the server has not answered") for line in said), said
    counters.add("proxy", "catalog swallowed")


def test_a_living_but_idle_server_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SILENCE_S", NOTICED_S)
    bench.until_equal()
    bench.until_confirmed()
    before = bench.proxy.connections
    time.sleep(NOTICED_S * 2)
    assert bench.proxy.connections == before


def test_early_is_seen() -> None:
    assert Confirmed(1, 2, 1, durable=1).early
    assert not Confirmed(1, 1, 1, durable=1).early
