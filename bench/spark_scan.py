"""Spark reading a table's changes from the log, against Spark reading the same rows from plain Parquet that it has written itself.

Both are read whole, every column of every row, warm, in the same session and in turns. ``scan_spark`` is ``cdc.spark.scan.scan`` over a log as it
stands after a long time (sealed segments, and a segment that is not sealed yet); ``scan_spark_format`` is ``format("cdc")`` over the same; in
``…_tail`` nothing is sealed (from about 550,000 rows on that goes through ``format("cdc")``); ``…_column`` asks for one column of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.result import Figure, faster
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import EXACT_TYPE, Op, batch_schema
from cdc.model.pgtypes import BOOL, DATE, FLOAT8, INT4, INT8, NUMERIC, TEXT, TIMESTAMPTZ
from cdc.model.position import Lsn
from cdc.model.table import Column, Table

NUMBER: Final = (12 << 16 | 2) + 4
FLIGHTS: Final = Table(
    2,
    "public",
    "flights",
    (
        Column("id", INT8, key=True),
        *(Column(name, INT4) for name in ("departure", "arrival", "delay", "distance", "hour", "minute")),
        *(Column(name, INT8) for name in ("plane_id", "crew_id")),
        *(Column(name, TEXT) for name in ("origin", "destination", "carrier", "tail", "status", "remark")),
        Column("price", NUMERIC, NUMBER),
        Column("weight", FLOAT8),
        Column("cancelled", BOOL),
        Column("day", DATE),
        Column("changed_at", TIMESTAMPTZ),
    ),
)
TOPIC: Final = FLIGHTS.qualified
COMMIT_ROWS: Final = 5_000


def flights(first: int, count: int) -> pa.RecordBatch:
    """``count`` flights of 20 columns, about 170 bytes each."""
    numbers = np.arange(first, first + count)
    chance = np.random.default_rng(first)
    stamps = pa.array(numbers * 1000 + 1_700_000_000_000_000).cast(pa.timestamp("us", tz="UTC"))
    places = pa.array(["EWR", "JFK", "LGA", "ORD", "ATL", "LAX", "BOS", "MCO"])
    words = [places.take(pa.array(chance.integers(0, 8, count))) for _ in range(3)]
    columns = [
        pa.array(numbers), pa.array(np.full(count, Op.INSERT, np.int8)), pa.array(numbers // 100), stamps, pa.nulls(count, EXACT_TYPE),
        pa.array(numbers), *(pa.array(chance.integers(0, 2400, count).astype(np.int32)) for _ in range(6)),
        *(pa.array(chance.integers(0, 10**9, count)) for _ in range(2)), *words,
        pa.array([f"N{number:05d}" for number in chance.integers(0, 99999, count).tolist()]),
        pa.array(["scheduled", "departed", "landed"]).take(pa.array(numbers % 3)),
        pa.array([f"flight {number} is on its way" for number in numbers.tolist()]),
        pa.array(chance.integers(0, 10**7, count)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pa.array(chance.random(count)), pa.array(numbers % 50 == 0), pa.array((numbers // 1000 % 365 + 15706).astype(np.int32)).cast(pa.date32()), stamps,
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=batch_schema(FLIGHTS))


def write_log(root: Path, rows: int, *, segment_bytes: int) -> None:
    writer = EmbeddedLogWriter(root, segment_bytes=segment_bytes)
    for number, first in enumerate(range(1, rows + 1, COMMIT_ROWS), 1):
        writer.append(flights(first, min(COMMIT_ROWS, rows + 1 - first)))
        writer.commit(Lsn(number), 0)
    writer.drain_seals()
    writer.close()


def measure(folder: Path, rows: int, runs: int, warm: int = 2) -> dict[str, Figure]:
    """Rows per second, each against plain Parquet in the same run. The first ``warm`` runs do not count."""
    from cdc.spark import session as sessions
    from cdc.spark.scan import scan
    from cdc.spark.source import CdcSource

    # About a tenth is not sealed, as in a log of some hundred megabytes with the segments that are the default.
    write_log(folder / "sealed", rows, segment_bytes=max(4096, rows * 170 // 9))
    write_log(folder / "tail", rows, segment_bytes=2**30)
    spark = sessions.session(scratch=folder / "spark", iceberg_sql=False)
    spark.dataSource.register(CdcSource)

    def by_format(log: str) -> Any:
        return spark.read.format("cdc").option("log", str(folder / log)).option("table", TOPIC).load()

    by_format("tail").write.parquet(str(folder / "plain"))
    ours: dict[str, Callable[[], Any]] = {
        "scan_spark": lambda: scan(spark, folder / "sealed", TOPIC),
        "scan_spark_format": lambda: by_format("sealed"),
        "scan_spark_tail": lambda: scan(spark, folder / "tail", TOPIC),
        "scan_spark_column": lambda: scan(spark, folder / "sealed", TOPIC, columns=["distance"]),
    }
    plain = {name: lambda: spark.read.parquet(str(folder / "plain")) for name in ours}
    plain["scan_spark_column"] = lambda: spark.read.parquet(str(folder / "plain")).select("distance")
    rates: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ours}
    for run in range(runs + warm):
        for name, number, seconds in _timed(ours, plain):
            if run >= warm:  # the JVM compiles what is hot meanwhile
                rates[name][number].append(rows / seconds)
    for name, frame in ours.items():
        found = frame().count()
        assert found == rows, (name, found)
    sessions.stop()
    return {name: faster(*both, "rows/s", bar=0.8 if name == "scan_spark" else None) for name, both in rates.items()}


def _timed(ours: dict[str, Callable[[], Any]], plain: dict[str, Callable[[], Any]]) -> Iterator[tuple[str, int, float]]:
    for name in ours:
        for number, frames in enumerate((ours, plain)):
            began = time.perf_counter()
            frames[name]().write.format("noop").mode("overwrite").save()
            yield name, number, time.perf_counter() - began
