"""A view's first build, against Spark that computes the same join from the same Parquet files and writes it as Parquet.

Both are given one after the other in each run, and compared by the CPU time that they take: Spark's by that of its JVM, warm, without its start. The view's kernel
gives its rows, and keeps everything that it needs to be kept up from then on, durably. It is given its tables as the runner of views gives them: in pieces of rows that
are new, the tables that others look up first (``cdc.derive.runner``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.result import Figure, paired
from cdc.model.position import Position
from cdc.views.contract import Delta
from cdc.views.definition import ViewDefinition
from cdc.views.kernel import SqlKernel

BAR = 0.5
_JVM = "-XX:+UseParallelGC"
"""In place of our own settings, which are for a quick start: every compiler of the JVM's."""
CHUNK = 200_000
Rows = Callable[[str], Iterator[pa.Table]]


def measure(folder: Path, definition: ViewDefinition, sql: str, rows: Rows, count: int, runs: int, memory: str) -> Figure:
    """Rows of the largest table for each second of CPU. ``rows``: a topic's, in pieces. ``sql``: the same in Spark's SQL."""
    from cdc.settings.sparkoptions import SparkOptions
    from cdc.spark import session as sessions

    files = {topic: _written(folder / f"{topic}.parquet", rows(topic)) for topic in definition.reads}
    session = sessions.session(options=SparkOptions(driver_memory="2g"), settings={"spark.driver.extraJavaOptions": _JVM})
    jvm = next(one for one in _children() if b"java" in Path(f"/proc/{one}/cmdline").read_bytes())
    try:
        for topic, path in files.items():
            session.read.parquet(str(path)).createOrReplaceTempView(topic.partition(".")[2])
        ours, theirs = [], []
        for run in range(runs + 1):
            before = _cpu_s(jvm)
            session.sql(sql).write.mode("overwrite").parquet(str(folder / "joined"))
            spark_s = _cpu_s(jvm) - before
            view_s = build(folder / f"built{run}", definition, files, memory)
            if run:
                ours.append(count / view_s)
                theirs.append(count / spark_s)
    finally:
        sessions.stop()
    return paired(ours, theirs, "rows/CPU s", bar=BAR)


def build(folder: Path, definition: ViewDefinition, files: dict[str, Path], memory: str) -> float:
    """The CPU seconds of the first build."""
    folder.mkdir()
    began, cut = time.process_time(), 0
    with closing(SqlKernel(definition, folder, memory)) as kernel:
        for topic in definition.reads:
            for batch in pq.ParquetFile(files[topic]).iter_batches(CHUNK):
                cut += 1
                read = pa.Table.from_batches([batch])
                delta = Delta(read, read.select(["id"]).slice(0, 0), fresh=True)
                kernel.advance({topic: delta}, Position(cut), partial=True)
                kernel.commit()
        kernel.advance({}, Position(cut + 1))
        kernel.commit()
        kernel.rows()
    return time.process_time() - began


def _written(path: Path, pieces: Iterator[pa.Table]) -> Path:
    first = next(pieces)
    with pq.ParquetWriter(path, first.schema, compression="snappy") as writer:
        writer.write_table(first)
        for piece in pieces:
            writer.write_table(piece)
    return path


def _children() -> list[int]:
    """The processes below this one."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found, left = [], [os.getpid()]
    while left:
        one = left.pop()
        below = [process for process, parent in parents.items() if parent == one]
        found += below
        left += below
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _cpu_s(process: int) -> float:
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
