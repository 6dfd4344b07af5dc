"""The crash points that a follower and the warehouse meet on real Spark: whatever becomes of it, the store ends up equal to the log.

Starting Spark's JVM takes seconds, so a process that is killed is followed by one that is killed at the next point, and errors happen to
queries of the session that is there already. `make test` takes a few points, `make faults` every one × {kill, error, hang}.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest

from cdc.crashpoint import KILLED, VARIABLE, CrashKind, Fault, armed
from cdc.demo.configuration import toml
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.processes import kill_group, spawn
from cdc.errors import StopState
from cdc.follow.follower import LARGE_ROWS
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.spark.queries import run_followers
from cdc.state import rebuilds
from sinks import make_sink, options_model
from sinks.rowversions import TO_POSITION
from sinks.sparksession import use_session
from tests import counters
from tests.end_to_end.daemon import lives
from tests.faults import points
from tests.faults.points import EVERYTHING
from tests.faults.stores import Written, apply_all, held_by
from tests.faults.truth import difference
from tests.integration.spark.traffic import Traffic, assert_equal

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.usefixtures("session")]

DEADLINE_S: Final = 600.0
"""Far more than a process takes, on a machine with much else to do."""
CHOSEN: Final = ("warehouse.vectors_written", "warehouse.table_committed")
"""Between the files and the commit that names them, and between the commit of one table and that of the store."""
IN_TURN: Final = (
    "follower.opened", "follower.batch.read", "follower.batch.applied", "follower.before_commit", "warehouse.files_written",
    "warehouse.before_history", "warehouse.before_table", "warehouse.table_committed", "warehouse.cuts_written", "warehouse.before_ledger", "warehouse.ledger_written", "follower.committed",
    "warehouse.vectors_written", "follower.schema.read", "follower.schema.applied",
)  # fmt: skip
"""Each is met in what its predecessors leave of the log: the ledger's commits let go of a range each, and the last has the changes of definitions."""
HISTORIES: Final = {"public.*": {"history": True}}
FOLLOWER: Final = [point for point in points.of("cache") if point.startswith("follower.")]
ALL: Final = [*points.of("warehouse"), *FOLLOWER]


@pytest.fixture
def session(spark: Any) -> None:
    """For what this process itself does with a warehouse."""
    use_session(lambda: spark)


class Follow:
    """`cdc follow store --until-caught-up` processes over one log and one store, one after the other."""

    def __init__(self, folder: Path, log: Path, **store: Any) -> None:
        self.folder = folder
        self.log = log
        self.options = options_model(store["kind"]).model_validate(store)
        tables = store.pop("tables", {})
        given = {name: value if isinstance(value, int) else str(value) for name, value in store.items()}
        sections = {
            "": {"run_dir": f"{folder}/run"},
            "source": {"dsn": "postgresql://"},
            "log": {"dir": str(log)},
            "stores.store": given,
            **{f'stores.store.tables."{pattern}"': options for pattern, options in tables.items()},
        }
        (folder / "cdc.toml").write_text(toml(sections))

    @contextmanager
    def process(self, crash: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "cdc", "--config", str(self.folder / "cdc.toml"), "follow", "store", "--until-caught-up"]
        environment = {**os.environ, **({VARIABLE: crash} if crash else {})}
        process = spawn(command, log=self.folder / "follow.log", env=environment)
        try:
            yield process
        finally:
            kill_group(process)

    def here(self) -> None:
        """A query that nothing more happens to, on this process's session, until the store has caught up."""
        stop = threading.Event()
        late = threading.Timer(DEADLINE_S, stop.set)
        late.start()
        try:
            assert run_followers(self.log, self.folder / "run", {"store": self.options}, until_caught_up=True, stop=stop) == 0
            assert not stop.is_set(), "it did not catch up"
        finally:
            late.cancel()
            late.join()

    def end(self, point: str, kind: CrashKind) -> None:
        """A process that is killed at the point, or that hangs there and is killed. What it leaves behind (the JVM) ends as well."""
        mark = self.folder / f"{point}-{kind}"
        with self.process(f"{point}={kind}@{mark}") as process:
            deadline = time.monotonic() + DEADLINE_S
            children: Sequence[psutil.Process] = ()
            while process.poll() is None and not (kind is CrashKind.HANG and mark.exists()):
                with suppress(psutil.NoSuchProcess):
                    children = psutil.Process(process.pid).children(recursive=True) or children
                assert time.monotonic() < deadline, f"{point} was not reached\n{self.told}"
                time.sleep(0.01)
            assert mark.exists(), f"{point} was not reached\n{self.told}"
            if kind is CrashKind.HANG:
                process.kill()
                process.wait()
            else:
                assert process.returncode == KILLED, self.told
            while any(map(lives, children)):
                assert time.monotonic() < deadline, [child for child in children if lives(child)]
                time.sleep(0.01)
        counters.add("crash points in Spark", str(kind))

    @property
    def told(self) -> str:
        return (self.folder / "follow.log").read_text(errors="replace")[-6000:]


def check(follow: Follow, written: Written) -> None:
    """The store says that it has everything, and it has."""
    sink = make_sink("store", follow.options)
    try:
        with closing(EmbeddedLogReader(follow.log)) as reader:
            assert sink.open(reader).position == reader.head().position
            agrees(sink)
        assert difference(written.tables, held_by(sink, written.folder)) is None
    finally:
        sink.close()


def agrees(sink: Any) -> None:
    """The open versions of each history are the current rows."""
    tables = sink._opened()[2]
    assert tables.histories
    for topic, place in tables.histories.items():
        current = sum(len(part) for part in sink.scan(tables.places[topic].known()))
        live = place.live().values()
        rows = [place.standing({one.path: np.arange(one.file.rows)}, place.iceberg.fields).rows for one in live]
        assert sum(part.column(TO_POSITION).null_count for part in rows) == current, topic


def warehouse_of(folder: Path, written: Written) -> Follow:
    return Follow(
        folder, written.folder / "log", kind="iceberg", path=folder / "warehouse", batch_rows=400, cuts=True, tables=HISTORIES
    )


def test_no_point_is_forgotten() -> None:
    assert sorted(IN_TURN) == sorted(ALL)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.HANG] if EVERYTHING else [CrashKind.KILL])
def test_one_point_after_the_other(kind: CrashKind, written: Written, tmp_path: Path) -> None:
    """Each process goes on where its predecessor came to its end; the last one is a query of this process."""
    follow = warehouse_of(tmp_path, written)
    for point in IN_TURN if EVERYTHING else CHOSEN:
        follow.end(point, kind)
    follow.here()
    check(follow, written)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ALL if EVERYTHING else [])
def test_an_error_in_a_query(point: str, written: Written, tmp_path: Path) -> None:
    """The same follower goes on by itself, with a new query."""
    follow = warehouse_of(tmp_path, written)
    with armed(f"{point}={CrashKind.ERROR}") as fault:
        follow.here()
    assert fault.hit, f"{point} was not reached"
    check(follow, written)
    counters.add("crash points in Spark", str(CrashKind.ERROR))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.ERROR])
@pytest.mark.parametrize("point", ["follower.batch.read", "follower.batch.applied"] if EVERYTHING else [])
def test_on_sparks_workers(point: str, kind: CrashKind, opensearch: OpenSearch, seed: int, tmp_path: Path) -> None:
    """The worker is gone in the middle of its part, and the driver's query starts again."""
    traffic = Traffic(tmp_path / "log", seed, truncates=False)
    traffic.bulk(LARGE_ROWS)  # in one commit: that waits for the workers
    traffic.close()
    follow = Follow(tmp_path, traffic.folder, kind="opensearch", url=opensearch.url, workers_from_rows=500)
    mark = tmp_path / "reached"
    with follow.process(f"{point}={kind}@{mark}") as process:
        assert process.wait(DEADLINE_S) == 0, follow.told
    assert mark.exists()
    sink = make_sink("store", follow.options)
    with closing(EmbeddedLogReader(traffic.folder)) as reader:
        sink.open(reader)
        sink.make_visible()
        assert_equal(sink, traffic.folder)
    sink.close()
    counters.add("crash points in Spark", f"{kind} of a worker")


@pytest.mark.parametrize("point", points.of("warehouse"))
def test_an_error_in_this_process(point: str, written: Written, tmp_path: Path) -> None:
    """What an error leaves behind, a new sink meets."""
    options = options_model("iceberg").model_validate(
        {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "batch_rows": 400, "cuts": True, "tables": HISTORIES}
    )
    with closing(EmbeddedLogReader(written.folder / "log")) as reader:
        with armed(f"{point}=error") as fault, suppress(Fault):
            apply_all(options, reader, written, tmp_path)
        assert fault.hit, f"{point} was not reached"
        apply_all(options, reader, written, tmp_path)
        sink = make_sink("store", options)
        assert sink.open(reader).position == reader.head().position
        agrees(sink)
    assert difference(written.tables, held_by(sink, written.folder)) is None
    sink.close()
    counters.add("crash points", "error")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [CrashKind.ERROR, CrashKind.KILL] if EVERYTHING else [CrashKind.ERROR])
@pytest.mark.parametrize("point", points.of("rebuild"))
def test_a_store_that_is_built_again_is_broken_off(point: str, kind: CrashKind, written: Written, tmp_path: Path) -> None:
    """Between the request, the emptying of each table and of all, and the opening: the next follower does it again."""
    options = options_model("iceberg").model_validate(
        {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "batch_rows": 400, "cuts": True, "tables": HISTORIES}
    )

    def follow() -> None:
        with closing(EmbeddedLogReader(written.folder / "log")) as reader:
            apply_all(options, reader, written, tmp_path)

    follow()
    rebuilds.request(tmp_path / "run", "store", StopState.DIVERGED)
    points.broken_off(follow, point, kind, 1)
    follow()
    assert rebuilds.requested(tmp_path / "run", "store") is None
    sink = make_sink("store", options)
    with closing(EmbeddedLogReader(written.folder / "log")) as reader:
        assert sink.open(reader).position == reader.head().position
        agrees(sink)
    assert difference(written.tables, held_by(sink, written.folder)) is None
    sink.close()
