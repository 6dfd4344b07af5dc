"""Two processes that follow one store: one does, the other stands by. One that was stopped in the middle of something and wakes up after it was replaced changes
nothing, in any kind of store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdc.crashpoint import VARIABLE
from cdc.demo.configuration import toml
from cdc.embedded.processes import kill_group, spawn
from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.topic import TopicSchema
from cdc.state.status import read_follower
from sinks import make_sink, options_model
from sinks.sparksession import use_session
from tests.contract.rows import ORDERS, PAIRS
from tests.faults.points import EVERYTHING
from tests.integration.spark.traffic import Traffic, expected, held
from tests.waiting import until

TABLES = (ORDERS, PAIRS)
pytestmark = [pytest.mark.timeout(1200), pytest.mark.faults]
BY_NOW = "another process follows it by now"
STANDS_BY = "this one stands by"


class Process:
    """`cdc follow store`. ``crash``: as in ``cdc.crashpoint.VARIABLE``."""

    def __init__(self, folder: Path, name: str, crash: str = "") -> None:
        self.log = folder / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if key != VARIABLE} | ({VARIABLE: crash} if crash else {})
        command = [sys.executable, "-m", "cdc", "--config", folder / "cdc.toml", "follow", "store"]
        self.process: subprocess.Popen[bytes] = spawn(command, log=self.log, env=environment)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def says(self, words: str, times: int = 1) -> None:
        until(lambda: self.said.count(words) >= times, lambda: f"{words!r} in\n{self.said[-4000:]}")

    @property
    def sleeps(self) -> bool:
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def end(self) -> None:
        kill_group(self.process)


class Scene:
    """A log, a store that two processes may follow, and what it has to hold."""

    def __init__(self, folder: Path, seed: int, store: dict[str, Any]) -> None:
        self.folder = folder
        self.store = store
        self.traffic = Traffic(folder / "log", seed)
        self.processes: list[Process] = []
        sections = {"": {"run_dir": "run"}, "source": {"dsn": "host=nowhere"}, "log": {"dir": "log"}, "stores.store": store}
        (folder / "cdc.toml").touch(0o600)
        (folder / "cdc.toml").write_text(toml(sections))

    def start(self, name: str, crash: str = "") -> Process:
        self.processes.append(Process(self.folder, name, crash))
        return self.processes[-1]

    def wait(self) -> None:
        """The store holds what the log holds."""
        with closing(EmbeddedLogReader(self.folder / "log")) as reader:
            head = reader.head().position
            until(lambda: self._position(reader) == head, self._told)
        self.assert_equal()

    def _position(self, reader: LogReader) -> int:
        """What the store itself says; 0 while it cannot, such as when its ledger is just being made."""
        try:
            return int(self._asked(lambda sink: sink.open(reader).position))
        except StoreError as error:
            if not error.retryable:
                raise
            return 0

    def _told(self) -> str:
        return "the store to hold everything\n" + "\n".join(one.said[-3000:] for one in self.processes)

    def assert_equal(self) -> None:
        with closing(EmbeddedLogReader(self.folder / "log")) as reader:
            twin = expected(self.folder / "log")

            def look(sink: Any) -> None:
                assert sink.open(reader) == reader.head()
                sink.make_visible()
                for table in TABLES:
                    schema = TopicSchema.of(table)
                    wanted = [row for part in twin.scan(schema) for row in sink.as_held(part, schema).to_pylist()]
                    assert sorted(map(str, held(sink, table))) == sorted(map(str, wanted)), table.qualified

            self._asked(look)

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        options = options_model(self.store["kind"]).model_validate(self.store)
        with closing(make_sink("store", options)) as sink:
            return question(sink)

    def close(self) -> None:
        for one in self.processes:
            one.end()
        self.traffic.close()


@pytest.fixture
def scene_of(tmp_path: Path, seed: int) -> Iterator[Callable[[dict[str, Any]], Scene]]:
    made: list[Scene] = []

    def make(store: dict[str, Any]) -> Scene:
        made.append(Scene(tmp_path, seed, store))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sleeps_and_wakes(scene: Scene, point: str) -> None:
    """One process is stopped at the point, in the middle of what it does with a later range; another takes over and goes on; then the first wakes up."""
    mark = scene.folder / "reached"
    scene.traffic.transactions(5)
    nth = 4  # not in the first range
    first = scene.start("first", f"{point}=stop:{nth}@{mark}")
    second: Process | None = None
    for _ in range(40):
        scene.traffic.transactions(1)
        if second is None and "store" in first.said:
            second = scene.start("second")
            second.says(STANDS_BY)
        head = scene.traffic.writer.head.position
        until(lambda head=head: mark.exists() or reached(scene, head), scene._told)
        if mark.exists():
            break
    assert mark.exists(), f"{point} was not reached\n{first.said}"
    until(lambda: first.sleeps, "it to sleep")
    second = second or scene.start("second")
    second.says("taken over")
    scene.traffic.transactions(5)
    scene.wait()
    os.kill(first.process.pid, signal.SIGCONT)
    first.says(BY_NOW)
    first.says(STANDS_BY)
    scene.assert_equal()
    scene.traffic.transactions(3)
    scene.wait()
    second.end()
    first.says("taken over")
    scene.traffic.transactions(3)
    scene.wait()


def reached(scene: Scene, position: int) -> bool:
    told = read_follower(scene.folder / "run", "store")
    return told is not None and told.position >= position


@pytest.mark.parametrize("point", ["cache.write.sent", *(["cache.change.looked", "follower.before_commit"] if EVERYTHING else [])])
def test_a_cache(point: str, valkey: Any, scene_of: Callable[[dict[str, Any]], Scene]) -> None:
    sleeps_and_wakes(scene_of({"kind": "redis", "url": valkey.url}), point)


def test_a_cache_on_a_cluster(redis_cluster: Any, scene_of: Callable[[dict[str, Any]], Scene]) -> None:
    sleeps_and_wakes(scene_of({"kind": "redis", "url": redis_cluster.url, "lanes": 4}), "lanes.written")


@pytest.mark.opensearch
@pytest.mark.parametrize("point", ["search.bulk.before_together", *(["search.ledger.before_write"] if EVERYTHING else [])])
def test_a_search_index(point: str, opensearch: Any, scene_of: Callable[[dict[str, Any]], Scene]) -> None:
    sleeps_and_wakes(scene_of({"kind": "opensearch", "url": opensearch.url, "purge_after_s": 1.0}), point)


@pytest.mark.spark
@pytest.mark.parametrize("point", ["warehouse.before_ledger", *(["warehouse.before_table"] if EVERYTHING else [])])
def test_a_warehouse(point: str, spark: Any, tmp_path: Path, scene_of: Callable[[dict[str, Any]], Scene]) -> None:
    use_session(lambda: spark)
    sleeps_and_wakes(scene_of({"kind": "iceberg", "path": str(tmp_path / "warehouse")}), point)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("point", ["sql.before_commit", *(["sql.table_written", "sql.committed"] if EVERYTHING else [])])
def test_a_database(point: str, postgres: Any, scene_of: Callable[[dict[str, Any]], Scene]) -> None:
    """The one that sleeps does so in a transaction of the store's own database, with locks in it."""
    store = {"kind": "sql", "url": postgres.dsn, "namespace": "copy_{schema}", "timeout_s": 5}
    sleeps_and_wakes(scene_of(store), point)
