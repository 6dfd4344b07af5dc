"""A real cluster in place of this machine's cores, by `[spark]` of cdc.toml alone: the same rows as without it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from cdc.demo.configuration import Value, toml
from cdc.embedded.processes import kill_group, spawn
from cdc.model.batch import Op
from cdc.model.position import Position
from tests.sparkcluster import SparkCluster, spark_cluster
from tests.unit.derive.bed import CUSTOMERS, ORDERS, Bed, bed_in
from tests.unit.inbox.parts import serve_all

pytestmark = pytest.mark.spark

DEADLINE_S: Final = 240.0
SQL: Final = "select o.id, c.name, o.note from orders o join customers c on c.id = o.customer"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster") / "spark", workers=1, cores=2) as found:
        yield found


@pytest.fixture
def bed(tmp_path: Path, seed: int) -> Iterator[Bed]:
    """A log that comes to slices of several tasks."""
    with bed_in(tmp_path) as found:
        dice = Random(seed)
        found.commit((CUSTOMERS, Op.INSERT, [{"id": n, "name": f"n{n}"} for n in range(6)]))
        for _ in range(30):
            found.traffic(dice)
        found.commit((CUSTOMERS, Op.INSERT, [{"id": n, "name": f"n{n}"} for n in range(6)]))
        found.commit((ORDERS, Op.UPDATE, [{"id": n, "customer": n % 6, "note": f"note {n}"} for n in range(3_000)]))
        yield found


def configured(folder: Path, cluster: SparkCluster, more: Mapping[str, Mapping[str, Value]]) -> Path:
    path = folder / "cdc.toml"
    path.touch(0o600)
    sections: dict[str, Mapping[str, Value]] = {
        "": {"run_dir": str(folder / "run")},
        "source": {"dsn": "postgresql://nobody@127.0.0.1:9/x"},
        "log": {"dir": str(folder / "log")},
        "spark": cluster.section,
        "spark.settings": cluster.settings,
        **more,
    }
    path.write_text(toml(sections))
    return path


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn([sys.executable, "-m", "cdc", "--config", str(folder / "cdc.toml"), *arguments], log=folder / "cdc.log")
    try:
        yield process
    finally:
        kill_group(process)


def until(what: Callable[[], Any], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        said = (folder / "cdc.log").read_text(errors="replace")[-4000:]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


def test_a_view_is_built_by_the_workers_of_a_cluster(bed: Bed, cluster: SparkCluster) -> None:
    configured(bed.folder, cluster, {"views.joined": {"sql": SQL, "key": ["id"], "workers_from_rows": 1}})
    came: set[int] = set()

    def shown() -> bool:
        came.update(one.pid for one in cluster.executors(cluster.workers[0]))
        serve_all(bed.inbox)
        return "views.joined" in {topic.name for topic in bed.reader.topics()} and len(bed.shown()) >= len(bed.of_tables())

    with running(bed.folder, "run", "--only", "view:joined") as process:
        until(shown, process, bed.folder)
        assert bed.shown() == bed.of_tables()
        process.terminate()
        assert process.wait(60) == 0
    assert len(came) == 2, "both workers had a part in it"
    assert not list((bed.folder / "log" / "views" / "joined").glob("g*/scratch/*"))


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
    path = configured(bed.folder, cluster, {})
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
