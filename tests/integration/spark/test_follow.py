"""Followers on real Spark: into real stores, through crashes, outages, lost checkpoints, restored and diverged stores."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from cdc.crashpoint import armed
from cdc.errors import HeadwaterError, StoreError
from cdc.follow import access, ranges, stride
from cdc.follow import apply as applying
from cdc.follow import follower as followers
from cdc.follow.rules import Rules
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import OP, Op
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.settings.models import StoreOptions
from cdc.spark import queries as following_module
from cdc.spark.queries import run_followers
from cdc.state.lease import Lease
from cdc.state.status import FollowerStatus, read_follower
from sinks import make_sink, memory, options_model, warehouse
from sinks.heldlog import HeldLog
from sinks.sparksession import use_session
from tests.contract.rows import ORDERS
from tests.integration.spark.traffic import Traffic, assert_equal, expected, held

pytestmark = pytest.mark.spark


@pytest.fixture
def traffic(tmp_path: Path, spark: Any, seed: int) -> Iterator[Traffic]:
    use_session(lambda: spark)
    made = Traffic(tmp_path / "log", seed)
    yield made
    made.close()


@pytest.fixture
def by_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores of this process have no workers that could write to them, and get queries all the same."""
    monkeypatch.setattr(followers.Follower, "by_query", True)


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch, by_query: None) -> None:  # noqa: ARG001
    """Every range is large enough for a Spark query."""
    monkeypatch.setattr(following_module, "LARGE_ROWS", 1)
    for bound in ("START_ROWS", "LEAST_ROWS", "GROWTH"):  # whatever comes first takes one transaction
        monkeypatch.setattr(stride, bound, 1)


class Following:
    """``run_followers`` in a thread of this process, on the session that is there."""

    def __init__(self, traffic: Traffic, run_dir: Path, stores: Mapping[str, StoreOptions], **more: Any) -> None:
        self.run_dir = run_dir
        self.stores = stores
        self._stop = threading.Event()
        self._answer: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(traffic.folder, more))
        self._thread.start()

    def _run(self, folder: Path, more: Any) -> None:
        try:
            self._answer.append(run_followers(folder, self.run_dir, self.stores, stop=self._stop, **more))
        except BaseException as error:
            self._answer.append(error)

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "it does not end"

    def status(self, store: str) -> FollowerStatus:
        return read_follower(self.run_dir, store) or FollowerStatus(store)

    def until(self, done: Callable[[], bool], timeout_s: float = 150) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, {store: self.status(store) for store in self.stores}
            assert not self._answer, self._answer
            time.sleep(0.02)

    def until_at(self, cut: Cut) -> None:
        self.until(lambda: all(self.status(store).position >= cut.position for store in self.stores))

    def answer(self) -> Any:
        self._thread.join(120)
        return self._answer[0]


def in_memory(**more: Any) -> tuple[str, memory.Options]:
    return f"m{uuid.uuid4().hex[:8]}", memory.Options(kind="memory", **more)


def redis_options(url: str, **more: Any) -> StoreOptions:
    return options_model("redis").model_validate({"kind": "redis", "url": url, **more})


def opened(name: str, options: StoreOptions, traffic: Traffic) -> Any:
    """For reading."""
    sink = make_sink(name, options)
    sink.open(EmbeddedLogReader(traffic.folder))
    return sink


def test_every_store_follows_and_new_topics_join_by_themselves(traffic: Traffic, tmp_path: Path, valkey: Any) -> None:
    name, options = in_memory()
    part, part_options = in_memory(tables=("public.*", "!public.pairs"))
    stores = {
        name: options,
        part: part_options,
        "cache": redis_options(valkey.url),
        f"w{uuid.uuid4().hex[:8]}": warehouse.Options(kind="iceberg", path=tmp_path / "warehouse", commit_interval_ms=100),
    }
    with Following(traffic, tmp_path / "run", stores) as following:
        following.until(lambda: all(following.status(store).state == "following" for store in stores))
        cut = traffic.transactions(40)
        following.until_at(cut)
        assert {following.status(store).commit_lsn for store in stores} == {cut.commit_lsn}
    for store, given in stores.items():
        if store != part:
            assert_equal(opened(store, given, traffic), traffic.folder)
    assert "public.pairs" not in memory.STORES[part].rows
    assert following.answer() == 0
    assert {following.status(store).state for store in stores} == {"exited"}


@pytest.mark.usefixtures("queries")
def test_a_lost_or_damaged_checkpoint_does_not_matter(traffic: Traffic, tmp_path: Path) -> None:
    name, options = in_memory(batch_rows=20)
    for number in range(2):
        cut = traffic.transactions(10)
        following = Following(traffic, tmp_path / "run", {name: options}, until_caught_up=True)
        assert following.answer() == 0, number
        assert following.status(name).position == cut.position
        leftover = tmp_path / "run" / "spark" / name / "old" / "offsets"
        leftover.mkdir(parents=True, exist_ok=True)
        (leftover / "0").write_text('v1\n{}\n{"position":999999}')
    assert_equal(opened(name, options, traffic), traffic.folder)


def test_a_store_that_no_workers_write_to_needs_no_spark_however_much_is_there(
    traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "LARGE_ROWS", 1)
    monkeypatch.setattr(following_module.Engine, "queries", lambda _: pytest.fail("Spark was asked for"))
    name, options = in_memory(batch_rows=100)
    for _ in range(5):
        traffic.bulk(400)
    cut = traffic.transactions(20)
    with Following(traffic, tmp_path / "run", {name: options}) as following:
        following.until_at(cut)
    assert following.answer() == 0
    assert_equal(opened(name, options, traffic), traffic.folder)


@pytest.mark.usefixtures("by_query")
def test_what_is_large_goes_through_a_query_and_what_is_small_does_not(
    traffic: Traffic, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "LARGE_ROWS", 500)
    monkeypatch.setattr(stride, "START_ROWS", 10)
    batches: list[int] = []
    name, options = in_memory(batch_rows=100)
    real = following_module.StoreQuery._run_a_query
    monkeypatch.setattr(
        following_module.StoreQuery,
        "_run_a_query",
        lambda query, spark: batches.append(query._follower.status.batches) or real(query, spark),
    )
    for _ in range(8):
        traffic.bulk(400)
    cut = traffic.transactions(20)
    with Following(traffic, tmp_path / "run", {name: options}) as following:
        following.until_at(cut)
        assert batches[0] == 1, "one small range comes first, so that something shows while Spark starts"
        following.until(lambda: not [query for query in spark.streams.active if query.name == name])
        queries = len(batches)  # one, or more where Spark has ended one on a busy machine
        for _ in range(5):
            following.until_at(traffic.transactions(3))
        assert len(batches) == queries, "small ranges need no query"
        traffic.bulk(1_000)
        following.until_at(traffic.writer.head)
        assert len(batches) > queries, "a large transaction is the workers'"
    assert_equal(opened(name, options, traffic), traffic.folder)


@pytest.mark.usefixtures("by_query")
def test_a_query_that_is_no_longer_needed_ends_while_its_next_batch_begins(
    traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits for the batch, so the batch may not wait for whoever ends the query."""
    monkeypatch.setattr(following_module, "LARGE_ROWS", 500)
    monkeypatch.setattr(stride, "START_ROWS", 10)
    real = following_module.Follower.follow_to

    def late(follower: Any, end: Cut, slices: Any = None) -> None:
        if slices is not None:
            time.sleep(0.5)
        real(follower, end, slices)

    monkeypatch.setattr(following_module.Follower, "follow_to", late)
    name, options = in_memory(batch_rows=400)
    for _ in range(4):
        traffic.bulk(400)
    cut = traffic.transactions(200)
    with Following(traffic, tmp_path / "run", {name: options}) as following:
        following.until_at(cut)
    assert_equal(opened(name, options, traffic), traffic.folder)


class Moody(memory.MemorySink):
    """Refuses as long as it is told to."""

    refusal: StoreError | None = None

    def apply(self, changes: Any) -> Any:
        if Moody.refusal is not None:
            raise Moody.refusal
        return super().apply(changes)


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = access.make_sink
    monkeypatch.setattr(
        access, "make_sink", lambda name, options: Moody(name, options) if name.startswith("moody") else real(name, options)
    )
    yield
    Moody.refusal = None


@pytest.mark.usefixtures("moody")
def test_a_refusing_store_holds_up_nobody_and_stops_for_an_operator(traffic: Traffic, tmp_path: Path) -> None:
    name, options = in_memory()
    refusing = f"moody{uuid.uuid4().hex[:6]}"
    Moody.refusal = StoreError("the disk is full", retryable=True)
    with Following(traffic, tmp_path / "run", {name: options, refusing: options}) as following:
        cut = traffic.transactions(5)
        following.until(lambda: following.status(name).position == cut.position)
        following.until(
            lambda: (following.status(refusing).state, following.status(refusing).error) == ("waiting", "the disk is full")
        )
        Moody.refusal = None
        following.until(
            lambda: (following.status(refusing).state, following.status(refusing).position) == ("following", cut.position)
        )
        Moody.refusal = StoreError("the index is read only", retryable=False, hint="unlock it")
        cut = traffic.transactions(2)
        following.until(lambda: following.status(refusing).state == "stopped")
        assert (following.status(refusing).stop, following.status(refusing).error) == (
            "STORE_REFUSES",
            f"STORE_REFUSES: the index is read only → unlock it; then cdc resume STORE_REFUSES:follow-{refusing}",
        )
        following.until(lambda: following.status(name).position == cut.position)
    assert following.answer() == 4


def test_a_store_that_goes_down_catches_up_when_it_is_back(traffic: Traffic, tmp_path: Path, valkey_server: Any) -> None:
    valkey_server.start()
    stores = {"cache": redis_options(valkey_server.url)}
    with Following(traffic, tmp_path / "run", stores) as following:
        following.until_at(traffic.transactions(5))
        valkey_server.crash()
        traffic.transactions(10)
        following.until(lambda: following.status("cache").state == "waiting")
        valkey_server.start()
        following.until_at(traffic.writer.head)
        # Flushed behind the follower's back, with no failing call: the store is rebuilt.
        with redis.Redis.from_url(valkey_server.url) as client:
            client.flushall()
        following.until(lambda: _applied(stores["cache"], traffic) == traffic.writer.head)
    assert_equal(opened("cache", stores["cache"], traffic), traffic.folder)


def _applied(options: StoreOptions, traffic: Traffic) -> Cut:
    sink = opened("cache", options, traffic)
    try:
        found: Cut = sink.applied()
        return found
    finally:
        sink.close()


def test_a_store_that_knows_more_than_the_log_stops(traffic: Traffic, tmp_path: Path) -> None:
    name, options = in_memory()
    traffic.transactions(2)
    sink = make_sink(name, options)
    sink.open(EmbeddedLogReader(traffic.folder), 1)
    sink.commit(Cut(Position(10**6), Lsn(10**7)))
    following = Following(traffic, tmp_path / "run", {name: options})
    assert following.answer() == 4
    assert following.status(name).stop == "DIVERGED"


def test_one_follower_a_store(traffic: Traffic, tmp_path: Path) -> None:
    lease = Lease(traffic.folder, "cache")
    other, cache = memory.Options(kind="memory"), memory.Options(kind="memory")
    with pytest.raises(HeadwaterError, match=f"process {os.getpid()} already follows store cache"):
        run_followers(
            traffic.folder, tmp_path / "run", {"other": other, "cache": cache}, until_caught_up=True, stop=threading.Event()
        )
    lease.close()
    for store in ("other", "cache"):
        Lease(traffic.folder, store).close()


@pytest.mark.usefixtures("queries")
@pytest.mark.parametrize("truncates", [False, True])
def test_workers_and_driver_apply_the_same(
    traffic: Traffic, tmp_path: Path, opensearch: Any, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    """A range with a TRUNCATE is an order of its own and stays in the driver, where a table's rows before its last one are skipped."""
    shipped: list[Any] = []
    real = applying.outcome_of
    monkeypatch.setattr(ranges, "outcome_of", lambda results: shipped.append(results) or real(results))
    traffic.truncates = truncates
    traffic.bulk(3_000)
    traffic.transactions(150 if truncates else 30)
    options = options_model("opensearch").model_validate({"kind": "opensearch", "url": opensearch.url, "workers_from_rows": 500})
    stores = {"search": options}
    following = Following(traffic, tmp_path / "run", stores, until_caught_up=True)
    assert following.answer() == 0
    assert bool(shipped) == (not truncates)
    assert following.status("search").batches == 1, "what is skipped is known of one range only"
    done = following.status("search")
    # Of two rows of one key that are under way in two requests the later may be taken first.
    assert done.written + done.stale == _from_the_last_truncate(traffic)
    assert_equal(opened("search", stores["search"], traffic), traffic.folder)


def _from_the_last_truncate(traffic: Traffic) -> int:
    """How many rows the log has that matter: of each table its last TRUNCATE and what follows it, or all when it has none."""
    rows = 0
    with closing(EmbeddedLogReader(traffic.folder)) as reader:
        for topic in reader.topics():
            ops = [
                op for found in reader.read(topic.name, Position(0), reader.head().position) for op in found.column(OP).to_pylist()
            ]
            rows += ops[::-1].index(Op.TRUNCATE) + 1 if Op.TRUNCATE in ops else len(ops)
    return rows


def test_a_store_that_fails_on_the_workers_is_waited_for(traffic: Traffic) -> None:
    rules = Rules("cache", redis_options("redis://127.0.0.1:1/0"))
    results = list(applying.on_workers(rules, applying.StoreWriter(traffic.folder, 1, 1))(iter([_slice()])))
    with pytest.raises(StoreError) as refused:
        applying.outcome_of(pa.Table.from_batches(results))
    assert refused.value.retryable


def test_an_accident_outside_a_batch_ends_the_query_and_not_the_follower(
    traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store has been opened, and when it is looked at between two batches."""
    looked: list[None] = []

    def look(follower: followers.Follower) -> None:
        looked.append(None)
        if len(looked) == 1:
            raise OSError(errno.EIO, "once")
        real(follower)

    real = followers.Follower.idle
    monkeypatch.setattr(followers.Follower, "idle", look)
    name, options = in_memory()
    with armed("follower.opened=error") as point, Following(traffic, tmp_path / "run", {name: options}) as following:
        following.until(lambda: len(looked) > 1)
        following.until_at(traffic.transactions(3))
    assert point.hit
    assert following.answer() == 0


@pytest.mark.usefixtures("by_query")
def test_a_store_goes_on_without_queries_while_they_cannot_run(
    traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is too busy for Spark's workers to report in time: each query ends by an accident."""
    monkeypatch.setattr(following_module, "LARGE_ROWS", 1)
    monkeypatch.setattr(stride, "START_ROWS", 1)
    monkeypatch.setattr(following_module, "ALONE_S", (0.0, 3600.0))
    tried: list[int] = []

    def never(query: following_module.StoreQuery, _session: Any, _checkpoint: Path) -> Any:
        tried.append(query._follower.status.batches)
        raise RuntimeError("the worker failed to connect back")

    monkeypatch.setattr(following_module.StoreQuery, "_started", never)
    name, options = in_memory()
    cut = traffic.transactions(300)
    with Following(traffic, tmp_path / "run", {name: options}) as following:
        following.until_at(cut)
        assert tried == [0], "after the first one it needs no other to go on"
        following.until_at(traffic.transactions(100))
    assert_equal(opened(name, options, traffic), traffic.folder)


@pytest.mark.usefixtures("queries")
def test_what_spark_ended_a_query_for_is_told(traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once where it reads the log, and once where it makes its checkpoint; the third time it may run."""
    monkeypatch.setattr(following_module, "ALONE_S", (0.0,))
    told: list[str | None] = []
    started, explain = following_module.StoreQuery._started, following_module.StoreQuery._explain

    def start(query: following_module.StoreQuery, session: Any, checkpoint: Path) -> Any:
        if not told:
            with monkeypatch.context() as wrong:
                wrong.setattr(query, "_log_dir", tmp_path / "nowhere")
                return started(query, session, checkpoint)
        if len(told) == 1:
            (tmp_path / "file").touch()
            return started(query, session, tmp_path / "file" / "checkpoint")
        return started(query, session, checkpoint)

    def listen(query: following_module.StoreQuery) -> None:
        explain(query)
        told.append(query._follower.status.error)

    monkeypatch.setattr(following_module.StoreQuery, "_started", start)
    monkeypatch.setattr(following_module.StoreQuery, "_explain", listen)
    name, options = in_memory()
    for _ in range(20):  # each attempt takes one before it asks for a query
        traffic.transactions(2)
    with Following(traffic, tmp_path / "run", {name: options}) as following:
        following.until(lambda: len(told) >= 2)
        following.until_at(traffic.transactions(3))
    again = f"the query of store {name} starts again: "
    assert told[0] is not None
    assert told[0].startswith(f"{again}AnalysisException: ConfigError: there is no log in ")
    assert str(tmp_path / "nowhere") in told[0]
    assert told[1] is not None
    assert told[1].startswith(f"{again}ParentNotDirectoryException: ")


def test_a_thread_that_cannot_go_on_ends_the_process(traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look alive for ever; its supervisor starts it again."""
    monkeypatch.setattr(following_module.StoreQuery, "_explain", _no_room)
    monkeypatch.setattr(followers.Follower, "start", _no_room)
    name, options = in_memory()
    following = Following(traffic, tmp_path / "run", {name: options})
    assert isinstance(following.answer(), OSError)


def _no_room(_: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


def _slice() -> Any:
    from cdc.replay.rows import SLICES

    return pa.RecordBatch.from_pylist([{"topic": "public.orders", "after": 0, "upto": 1, "rows": 1}], schema=SLICES)


FOLLOW = """
import sys, threading
from pathlib import Path
from cdc.spark.queries import run_followers
from sinks import options_model
stores = {
    "cache": options_model("redis").model_validate({"kind": "redis", "url": sys.argv[3]}),
    "house": options_model("iceberg").model_validate({"kind": "iceberg", "path": sys.argv[4], "commit_interval_ms": 50}),
}
run_followers(Path(sys.argv[1]), Path(sys.argv[2]), stores, stop=threading.Event())
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_kill_9_in_the_middle_of_traffic_loses_and_doubles_nothing(traffic: Traffic, tmp_path: Path, valkey: Any) -> None:
    run_dir, house = tmp_path / "run", tmp_path / "house"
    command = [sys.executable, "-c", FOLLOW, str(traffic.folder), str(run_dir), valkey.url, str(house)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            traffic.transactions(3)
            time.sleep(0.02)
            at = [found.position if (found := read_follower(run_dir, store)) else 0 for store in ("cache", "house")]
            if min(at) > 20 and traffic.random.random() < 0.1:
                break
        assert min(at) > 20
    finally:
        # The process alone, not its group: what it leaves behind has to end by itself.
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    traffic.transactions(5)
    traffic.bulk(3)  # so that something is there to be found, even right after a TRUNCATE
    stores = {"cache": redis_options(valkey.url), "house": warehouse.Options(kind="iceberg", path=house)}
    following = Following(traffic, run_dir, stores, until_caught_up=True)
    assert following.answer() == 0
    for store, options in stores.items():
        sink = opened(store, options, traffic)
        assert sink.applied() != ZERO_CUT
        assert_equal(sink, traffic.folder)
    assert held(opened("house", stores["house"], traffic), ORDERS)


@pytest.mark.usefixtures("queries")
def test_workers_and_driver_call_the_same_function(
    traffic: Traffic, tmp_path: Path, opensearch: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large range goes to Spark's workers, the small ones after it stay in the driver."""
    module = tmp_path / f"rows_{uuid.uuid4().hex[:8]}.py"
    module.write_text(
        "import os\nimport pyarrow as pa\n\n\ndef named(rows):\n"
        f"    name = 'driver' if os.getpid() == {os.getpid()} else 'worker'\n"
        f"    open(os.path.join({str(tmp_path)!r}, name), 'w').close()\n"
        "    at = rows.schema.get_field_index('note')\n"
        "    return rows.set_column(at, 'note', pa.array(['hidden'] * len(rows), pa.utf8()))\n"
    )
    spark.sparkContext.addPyFile(str(module))  # as if it were installed
    monkeypatch.syspath_prepend(str(tmp_path))
    said = {"select": ["public.orders"], "public.orders": {"transform": f"{module.stem}:named", "transform_columns": ["note"]}}
    options = options_model("opensearch").model_validate(
        {"kind": "opensearch", "url": opensearch.url, "workers_from_rows": 500, "tables": said}
    )
    shipped: list[Any] = []
    real = applying.outcome_of
    monkeypatch.setattr(ranges, "outcome_of", lambda results: shipped.append(results) or real(results))
    traffic.truncates = False
    traffic.bulk(3_000)
    following = Following(traffic, tmp_path / "run", {"search": options}, until_caught_up=True)
    assert following.answer() == 0
    assert shipped
    assert (tmp_path / "worker").exists()
    traffic.transactions(5)
    following = Following(traffic, tmp_path / "again", {"search": options}, until_caught_up=True)
    assert following.answer() == 0
    assert (tmp_path / "driver").exists()
    with closing(make_sink("search", options)) as sink, closing(EmbeddedLogReader(traffic.folder)) as reader:
        log = HeldLog(reader, "search", options)
        sink.open(log)
        log.settle(sink)
        sink.make_visible()
        [topic] = [one for one in log.topics() if one.name == "public.orders"]
        found = [row for part in sink.scan(topic.schema) for row in part.to_pylist()]
    wanted = [row["id"] for row in held(expected(traffic.folder), ORDERS)]
    assert sorted(row["id"] for row in found) == sorted(wanted)
    assert {row["note"] for row in found} == {"hidden"}
