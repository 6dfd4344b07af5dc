"""Capture over a connection that is slow, sliced, paused, cut, reset or dead: nothing is confirmed early, nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc.capture import stream as streaming
from cdc.embedded.postgres import Postgres
from cdc.ingest import process as capturing
from cdc.log.embedded.format import HEAD_BYTES, decode_head
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import POSITION
from cdc.source import inspection, patience, watch
from cdc.source.sight import Sight
from tests import counters
from tests.faults.lab import remove
from tests.faults.proxy import HARMLESS, Confirmed, Proxy, Toxic, Way, may_drop_all
from tests.faults.truth import LogFold, difference, of_source, pin
from tests.faults.workload import Workload
from tests.integration.capture.running import Capture

NOTICED_S = 1.0
"""In these tests a dead connection is noticed after this long."""
SERVER_NOTICES_S = 1.5
"""wal_sender_timeout where nobody tells the server: until then it thinks that the slot is in use, and refuses the next connection."""
SERVER_WAITS_S = 60
"""wal_sender_timeout everywhere else: a busy machine must not look like a dead one."""
RECOVERED_S = 60.0
"""… and another one streams at most this much later: the noticing, the pause before connecting, and what it costs on a busy machine."""
STEPS = 6
WINDOWS = 10
PATIENT_S = 8
"""What the application waits for a lock in these tests."""
SILENT_S = 10
"""… and the silence after which a client gives its connection up by itself: longer, so that it is not what lets the application go on."""
ALIVE = f"tcp_user_timeout={int(NOTICED_S * 1000)}&keepalives_idle=1&keepalives_interval=1&keepalives_count=1"


@dataclass
class Bench:
    """A capture that reaches its server through the proxy, and an application that does not."""

    capture: Capture
    proxy: Proxy
    connection: psycopg.Connection[Any]
    work: Workload
    fold: LogFold | None = None
    sound: bool = True
    """False from a test's beginning until its last check has passed."""

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
        self.sound = True

    @contextmanager
    def impatient_server(self) -> Iterator[None]:
        """It gives up soon on a connection that says nothing."""
        self._reconnect(SERVER_NOTICES_S)
        yield
        self._reconnect(SERVER_WAITS_S)

    def _reconnect(self, wal_sender_timeout_s: float) -> None:
        self.connection.execute(
            sql.SQL("alter database {} set wal_sender_timeout = {}").format(
                sql.Identifier(self.connection.info.dbname), sql.Literal(int(wal_sender_timeout_s * 1000))
            )
        )
        before = self.proxy.connections
        self.proxy.reset()
        self.until(lambda: self.proxy.connections > before, "for another connection")
        self.traffic(1)
        self.until_equal()


class Benches:
    """The bench for all the toxics, and another one after a test that has failed on it."""

    def __init__(self, open_bench: Callable[[], AbstractContextManager[Bench]]) -> None:
        self._open_bench = open_bench
        self._opened = ExitStack()
        self._bench: Bench | None = None

    def get(self) -> Bench:
        if self._bench is None or not self._bench.sound or self._bench.capture.error is not None:
            self.close()
            self._bench = self._opened.enter_context(self._open_bench())
        return self._bench

    def close(self) -> None:
        self._bench = None
        self._opened.close()


@pytest.fixture(scope="module", params=["socket", "libpq"])
def benches(request: pytest.FixtureRequest, fault_server: Postgres, filled_database: str, server_folder: Path) -> Iterator[Benches]:
    """One capture for all the toxics, over its own reading of the socket and over libpq's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capturing, "BACKOFF_S", (0.05, 0.1, 0.2, 0.3))
        if request.param == "libpq":
            patch.setattr(streaming, "_Socket", streaming._Libpq)
        with closing(Benches(lambda: opened(fault_server, filled_database, server_folder))) as all_of_them:
            yield all_of_them


@pytest.fixture
def bench(benches: Benches) -> Iterator[Bench]:
    one = benches.get()
    one.sound = False
    yield one
    one.proxy.toxic, one.proxy.cut_after = HARMLESS, 0


@contextmanager
def opened(server: Postgres, template: str, server_folder: Path) -> Iterator[Bench]:
    name = f"proxy_{uuid.uuid4().hex[:10]}"
    folder = server_folder / name
    server.start()
    with psycopg.connect(server.unix_dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name} template {template}")
        admin.execute(f"alter database {name} set wal_sender_timeout = {SERVER_WAITS_S * 1000}")
    head = folder / "log" / "head"
    try:
        with closing(Proxy(server.port, lambda: durable_lsn(head))) as proxy:
            dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}?sslmode=disable&{ALIVE}"
            capture = Capture(dsn, folder, slot=name, publication="cdc", tables=["public.*"], snapshot_chunk_rows=15)
            with psycopg.connect(server.unix_dsn(name), autocommit=True) as connection, capture.running():
                pin(connection)
                connection.execute("set search_path = public")
                one = Bench(capture, proxy, connection, Workload(random.Random(name)))
                try:
                    capture.until_snapshot_done()
                    yield one
                finally:
                    proxy.toxic = HARMLESS
                    if one.fold is not None:
                        one.fold.close()
    finally:
        remove(server, name)


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

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("proxy"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", TOXICS)
def test_a_bad_connection_only_takes_longer(bench: Bench, name: str, seed: int) -> None:
    bench.work.chance = random.Random(seed)
    bench.proxy.toxic = TOXICS[name]
    before = bench.proxy.connections
    bench.connection.execute("update accounts set owner = 'sliced' where id < 20")
    if name != "slices of 1":
        bench.traffic()
    bench.until_equal()
    bench.until_confirmed()
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
    bench.proxy.toxic = Toxic(paused=frozenset({Way.UP}), paused_feedback_only=True)
    bench.until(lambda: bench.proxy.stands_still(Way.UP), "for the feedback to stand still")
    told = len(bench.proxy.confirmed)
    bench.traffic()
    bench.until_equal()
    assert len(bench.proxy.confirmed) == told
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
    while bench.proxy.cut_after:
        bench.traffic(3)
        time.sleep(0.05)
    bench.proxy.toxic = HARMLESS
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    counters.add("proxy", "cut after a message")


@pytest.mark.skipif(not may_drop_all(), reason="the kernel lets only root drop a connection's packets")
def test_a_half_open_connection_is_noticed(bench: Bench, seed: int) -> None:
    bench.work.chance = random.Random(seed)
    with bench.impatient_server():
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
    bench.work.chance = random.Random(seed)
    with bench.impatient_server():
        monkeypatch.setattr(streaming, "SILENCE_S", NOTICED_S)
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
    failed = Sight.failed

    def listen(sight: Sight, reason: str) -> None:
        said.append(reason)
        failed(sight, reason)

    monkeypatch.setattr(Sight, "failed", listen)
    bench.until(lambda: bench.proxy.carries("headwater catalog"), "for the watch to be connected")
    bench.proxy.swallow(replication=False)
    bench.connection.execute("create table latecomer (id int primary key, v text)")
    bench.connection.execute("insert into latecomer values (1, 'behind a dead link')")
    bench.until(lambda: "public.latecomer" in bench.capture.topics(), "for the new table")
    bench.traffic(1)
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    # The second, when it was connecting at that moment.
    bench.until(lambda: any("has not answered" in line or "timeout expired" in line for line in said), "for the watch to notice")
    counters.add("proxy", "catalog swallowed")


@pytest.mark.parametrize("dead", [True, False], ids=["dead link", "we stood still"])
def test_a_look_that_goes_no_further_does_not_hold_up_the_application(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    """In the middle of it tables are locked against TRUNCATE and ALTER. The next look begins anew."""
    bench.work.chance = random.Random(seed)
    bench.until_equal()
    held, went_on = threading.Event(), threading.Event()
    lock = inspection._lock

    def stuck(connection: psycopg.Connection[Any], facts: Any) -> bool:
        locked = lock(connection, facts)
        if not held.is_set():
            if dead:
                bench.proxy.swallow(replication=False)
            held.set()
            if not dead:
                went_on.wait(PATIENT_S)
        return locked

    monkeypatch.setattr(inspection, "_lock", stuck)
    monkeypatch.setattr(watch, "INTERVAL_S", 0.2)
    monkeypatch.setattr(watch, "_RETRY_S", 0.1)
    monkeypatch.setattr(watch, "_HELD_S", 1)
    monkeypatch.setattr(patience, "SILENCE_S", SILENT_S)
    monkeypatch.setattr(patience, "GRACE_S", NOTICED_S / 10)
    # So that the watch connects under the settings of this test, and has something to tell.
    bench.proxy.reset()
    bench.connection.execute("create table if not exists another (id int primary key)")
    bench.connection.execute("alter table another add column if not exists more text")
    bench.until(held.is_set, "for a look")
    bench.connection.execute(f"set statement_timeout = '{PATIENT_S}s'")
    with bench.connection.transaction():
        bench.connection.execute("lock table accounts, items, events, another in access exclusive mode")
    bench.connection.execute("set statement_timeout = 0")
    went_on.set()
    bench.connection.execute("insert into another values (1, 'behind the look')")
    bench.until_equal()
    bench.until_confirmed()
    bench.check()
    bench.connection.execute("drop table another")
    counters.add("proxy", "look held up")


def test_a_living_but_idle_server_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be slow to answer once, and once more; a server that is not asked, or not heard, is left in every window."""
    monkeypatch.setattr(streaming, "SILENCE_S", NOTICED_S)
    for _ in range(WINDOWS):
        bench.until_equal()
        bench.until_confirmed()
        before = bench.proxy.connections
        time.sleep(NOTICED_S * 2)
        if bench.proxy.connections == before:
            break
    else:
        pytest.fail(f"an idle server was given up {WINDOWS} times")
    bench.check()


def test_early_is_seen() -> None:
    assert Confirmed(1, 2, 1, durable=1).early
    assert not Confirmed(1, 1, 1, durable=1).early
