"""examples/spark: a streaming job, a notebook and a declarative pipeline, run on a log as they stand there."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from cdc.embedded.java import java_home
from cdc.inbox.writerside import Inbox
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import TS, Op
from cdc.model.position import Lsn, Position
from tests.contract.rows import ORDERS, batch, order
from tests.unit.inbox.parts import served

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = ROOT / "examples" / "spark"
MINUTE_US: Final = 60_000_000
FIRST: Final[Sequence[tuple[Op, dict[str, Any]]]] = (
    (Op.INSERT, order(9, "before the truncate")),
    (Op.TRUNCATE, {}),
    (Op.READ, order(1, "new")),
    (Op.INSERT, order(2, "new")),
    (Op.UPDATE, order(1, "paid")),
    (Op.DELETE, order(2)),
)
LATER: Final[Sequence[tuple[Op, dict[str, Any]]]] = (
    (Op.INSERT, order(3, "new")),
    (Op.UPDATE, order(3, "paid")),
    (Op.UPDATE, order(1, "paid")),
)


def log(writer: EmbeddedLogWriter, changes: Sequence[tuple[Op, dict[str, Any]]], minute: int) -> None:
    """Two changes a minute, from this one on."""
    for number, (change, row) in enumerate(changes):
        at, time_us = int(writer.next_position), (minute + number // 2) * MINUTE_US
        made = batch(ORDERS, [(change, at, row)])
        time = pa.array([time_us], pa.int64()).view(made.schema.field(TS).type)
        writer.append(made.set_column(made.schema.get_field_index(TS), made.schema.field(TS), time))
        writer.commit(Lsn(at), time_us)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cdc.toml, in which the test stands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def writer(folder: Path) -> Iterator[EmbeddedLogWriter]:
    with closing(EmbeddedLogWriter(folder / "var" / "log")) as made:
        log(made, FIRST, 0)
        yield made


def counted(folder: Path) -> tuple[dict[int, int], int]:
    """The changes of each minute as the topic has them, and how many records it has."""
    with closing(EmbeddedLogReader(folder / "var" / "log")) as reader:
        batches = reader.read("derived.orders_per_minute", Position(0), reader.head().position)
        rows = [row for rows in batches for row in rows.to_pylist() if row["minute"] is not None]
    return {int(row["minute"].timestamp()) // 60: row["changes"] for row in rows}, len(rows)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_job_counts_each_change_once_also_when_its_checkpoint_is_lost(folder: Path, writer: EmbeddedLogWriter) -> None:
    inbox = Inbox(folder / "var" / "log", writer, folder / "var" / "run", source="postgres", tables=["public.*"])
    job = runpy.run_path(str(EXAMPLES / "orders_per_minute.py"))["main"]
    with served(inbox):
        job(follow=False)
    # The TRUNCATE, and the row that a snapshot read, are no changes of an order.
    assert counted(folder) == ({0: 1, 1: 1, 2: 2}, 3)
    log(writer, LATER, 2)
    with served(inbox):
        job(follow=False)
    now = ({0: 1, 1: 1, 2: 4, 3: 1}, 5)
    assert counted(folder) == now
    shutil.rmtree(folder / "var" / "orders_per_minute")
    with served(inbox):
        job(follow=False)
    assert counted(folder) == now


@pytest.mark.spark
@pytest.mark.usefixtures("spark", "writer", "folder")
def test_the_notebook_runs_from_its_first_cell_to_its_last() -> None:
    cells = json.loads((EXAMPLES / "changes.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert dict(names["by_kind"].itertuples(index=False)) == {"c": 2, "d": 1, "r": 1, "t": 1, "u": 1}
    assert names["changed"][["id", "was", "became"]].values.tolist() == [[1, "new", "paid"]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_pipeline_takes_what_is_new_in_each_run(folder: Path, writer: EmbeddedLogWriter) -> None:
    pipeline = folder / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", pipeline)
    spec = pipeline / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/headwater-pipeline", f"file://{folder}/storage"))
    assert run_pipeline(folder, spec) == {("paid", 1)}
    log(writer, LATER, 2)
    assert run_pipeline(folder, spec) == {("paid", 2)}
    changes = ds.dataset(folder / "spark-warehouse" / "changes").to_table().column("_cdc_position").to_pylist()
    assert sorted(changes) == list(range(1, 10))


def run_pipeline(folder: Path, spec: Path) -> set[tuple[str, int]]:
    """The materialized view behind a run: status and number of orders."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "HEADWATER_LOG": str(folder / "var" / "log"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    settings = ("driver.memory=1g", "ui.enabled=false", "connect.grpc.binding.address=127.0.0.1", "sql.catalogImplementation=hive")
    options = [part for setting in settings for part in ("--conf", f"spark.{setting}")]
    command = ["spark-pipelines", *options, "run", "--spec", str(spec)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = ds.dataset(folder / "spark-warehouse" / "orders_by_status").to_table()
    return set(zip(found.column("status").to_pylist(), found.column("orders").to_pylist(), strict=True))
