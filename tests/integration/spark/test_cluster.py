"""A real cluster in place of this machine's cores, by `[spark]` of cdc.toml alone: the same rows as without it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.processes import kill_group, spawn
from cdc.follow.follower import LARGE_ROWS
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.position import Position
from cdc.settings.file import load
from sinks import make_sink, options_model
from tests.integration.spark.traffic import Traffic, assert_equal
from tests.sparkbuilds import DEADLINE_S, JOINED, ViewProcess, configured, written_bed
from tests.sparkcluster import SparkCluster, spark_cluster
from tests.unit.derive.bed import Bed

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster") / "spark", workers=1, cores=2) as found:
        yield found


@pytest.fixture
def bed(tmp_path: Path, seed: int) -> Iterator[Bed]:
    with written_bed(tmp_path, seed) as found:
        yield found


def test_a_view_is_built_by_the_workers_of_a_cluster(bed: Bed, cluster: SparkCluster) -> None:
    configured(bed.folder, {**cluster.sections, **JOINED})
    came: set[int] = set()

    with ViewProcess(bed).running() as view:

        def shown() -> bool:
            came.update(one.pid for one in cluster.executors(cluster.workers[0]))
            return view.shows_all()

        view.until(shown)
        assert bed.shown() == bed.of_tables()
        assert view.drain() == 0
    assert len(came) == 2, "both of its processes had a part in it"
    assert view.left() == []


SCRIPT: Final = """
import sys
from pathlib import Path
from cdc.settings.file import load
from cdc.spark.session import session, stop
from cdc.spark.source import CdcSource
from sinks import options_model

def refuse(row):
    raise ValueError(f"a row has {row.note}")

spark = session(app="reading", options=load(Path(sys.argv[1]), options_model).spark, iceberg_sql=False)
spark.dataSource.register(CdcSource)
settings = dict(spark.sparkContext.getConf().getAll())
orders = spark.read.format("cdc").option("log", sys.argv[2]).option("table", "public.orders").load()
print(sorted(tuple(row) for row in orders.select("_cdc_position", "id", "note").collect()))
print(spark.sparkContext.master, settings["spark.authenticate"], settings["spark.network.crypto.enabled"], settings["spark.io.encryption.enabled"])
print(sorted(name for name, value in settings.items() if Path(sys.argv[3]).read_text() in value))
try:
    orders.rdd.foreach(refuse)
except Exception as error:
    print("a row has" in str(error))
stop()
"""


@pytest.mark.sampled(3)
def test_the_log_is_read_by_the_workers_of_a_cluster_which_log_no_row(bed: Bed, cluster: SparkCluster) -> None:
    path = configured(bed.folder, cluster.sections)
    command = [sys.executable, "-c", SCRIPT, str(path), str(bed.folder / "log"), str(cluster.secret_file)]
    ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    read, session, secret, failed = ended.stdout.splitlines()
    head = bed.reader.head().position
    batches = list(bed.reader.read("public.orders", Position(0), head))
    assert read == str([(row["_cdc_position"], row["id"], row["note"]) for one in batches for row in one.to_pylist()])
    assert session == f"{cluster.url} true true true"
    assert secret == "[]"
    assert failed == "True"
    assert "a row has" not in cluster.said()
    assert "ERROR" not in cluster.said(), "they log nothing at all"


@pytest.mark.slow
def test_a_large_range_of_a_store_is_written_by_the_workers_of_a_cluster(
    cluster: SparkCluster, opensearch: OpenSearch, tmp_path: Path, seed: int
) -> None:
    traffic = Traffic(tmp_path / "log", seed, truncates=False)
    traffic.bulk(LARGE_ROWS)  # in one commit: that waits for the workers
    traffic.close()
    store = {"kind": "opensearch", "url": opensearch.url, "workers_from_rows": 500}
    path = configured(tmp_path, {**cluster.sections, "stores.search": store})
    command = [sys.executable, "-m", "cdc", "--config", str(path), "follow", "search", "--until-caught-up"]
    process = spawn(command, log=tmp_path / "cdc.log")
    came: set[int] = set()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None:
            came.update(one.pid for one in cluster.executors(cluster.workers[0]))
            assert time.monotonic() < deadline, (tmp_path / "cdc.log").read_text()
            time.sleep(0.05)
    finally:
        kill_group(process)
    assert process.returncode == 0, (tmp_path / "cdc.log").read_text()
    assert came
    sink = make_sink("search", load(path, options_model).stores["search"])
    with closing(EmbeddedLogReader(traffic.folder)) as reader:
        assert sink.open(reader).position == reader.head().position
        sink.make_visible()
        assert_equal(sink, traffic.folder)
    sink.close()


ENDED: Final = """
import sys
from pathlib import Path
from pydantic import SecretStr
from cdc.errors import HeadwaterError
from cdc.settings.file import load
from cdc.spark import session
from sinks import options_model

options = load(Path(sys.argv[1]), options_model).spark
try:
    session.session(options=options.model_copy(update={"secret": SecretStr("x" * 32)}), iceberg_sql=False)
except HeadwaterError as error:
    print(error.line())
assert session.running() is None
first = session.session(options=options, iceberg_sql=False)
assert session.running() is first
first.sparkContext._jsc.sc().stop()  # as the master has it done
assert session.running() is None
second = session.session(options=options, iceberg_sql=False)
assert second.range(5).count() == 5
session.stop()
assert session.running() is None
"""


@pytest.mark.slow
def test_a_session_that_the_cluster_refuses_or_has_ended_is_followed_by_another(cluster: SparkCluster, tmp_path: Path) -> None:
    """It refuses one of another secret, and ends one whose workers cannot be started, say."""
    path = configured(tmp_path, cluster.sections)
    ended = subprocess.run(
        [sys.executable, "-c", ENDED, str(path)], capture_output=True, text=True, encoding="utf-8", timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"the Spark cluster at {cluster.url} gives no session: " in ended.stdout
