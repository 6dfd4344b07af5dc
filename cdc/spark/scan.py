"""A table's changes as one DataFrame, read at the speed of Parquet: Spark's own reader takes the log's sealed files, and what is not sealed yet
is handed over beside them.

Spark 4.1 gives a data source in Python no way to hand its files to the reader of Parquet, nor does it say which columns are asked for. So this is a
function beside ``format("cdc")``, with the same rows and columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ByteType, StructField, StructType

from cdc.log.contract import LogReader, ParquetFile
from cdc.log.home import parquet_files
from cdc.model.batch import OP, POSITION, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.rows import alike, chosen, rows_schema, to_rows
from cdc.replay.state import last_change
from cdc.spark.options import ReadPlan
from cdc.spark.source import CdcSource, begun_in

HANDED_OVER_BYTES: Final = 96 * 2**20
"""So much that is not sealed is read by the caller and handed to the JVM: a segment and a half. Reading it on Spark's Python workers takes
two to three times the CPU, and half a second to begin with; but several of them can read at once, and none of it lies in the driver's memory."""

Ranges = list[tuple[Position, Position]]


def scan(
    spark: SparkSession,
    log: str | Path,
    table: str,
    *,
    start: int = 0,
    end: int | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """The table's changes in (start, end], by default all of the log: the rows of ``format("cdc")``, in no particular order.

    Which files hold them is decided now, and what is not sealed is read now: later changes are not among them. columns: only these; where it reads
    Parquet, Spark leaves out columns that are not asked for by itself.
    Raises ConfigError for a log, a table or a column that does not exist.
    """
    options = {"log": str(log), "table": table, "startPosition": str(start)}
    plan = ReadPlan.of(options | ({} if end is None else {"endPosition": str(end)}))
    reader = plan.log()
    try:
        topic = plan.one_topic(reader)
        wanted = chosen(rows_schema(topic.schema), columns)
        ((after, upto),) = plan.wanted(reader)
        history = begun_in(reader, after)
        reader.slices([topic.name], after, upto, 2**62, history)  # whether it may be read from there
        files = [file for file in parquet_files(plan.dir, topic.name, after, upto) if _readable(file, topic.schema)]
        rest = _uncovered(reader, topic.name, files, after, upto)
        size = sum(piece.bytes for low, high in rest for piece in reader.slices([topic.name], low, high, 2**62, history))
        parts = []
        if files:
            parts.append(_from_parquet(spark, files, topic.schema, after, upto).select(*map(_quoted, wanted.names)))
        if size <= HANDED_OVER_BYTES and (rest or not files):
            parts.append(_handed_over(spark, reader, topic.name, rest, wanted, history))
    finally:
        reader.close()
    if size > HANDED_OVER_BYTES:
        spark.dataSource.register(CdcSource)
        given = {"log": str(log), "table": table, "ranges": json.dumps(rest), "columns": json.dumps(wanted.names)}
        if history is not None:
            given["history"] = history
        parts.append(spark.read.format("cdc").options(**given).load())
    return reduce(DataFrame.unionAll, parts)


def _handed_over(
    spark: SparkSession, log: LogReader, topic: str, ranges: Ranges, wanted: pa.Schema, history: str | None
) -> DataFrame:
    """These pieces, read here."""
    batches = [to_rows(batch, wanted) for low, high in ranges for batch in log.read(topic, low, high, history)]
    rows = pa.Table.from_batches(batches, wanted) if batches else []
    return spark.createDataFrame(rows, from_arrow_schema(wanted))


def _from_parquet(
    spark: SparkSession, files: Sequence[ParquetFile], shape: TopicSchema, after: Position, upto: Position
) -> DataFrame:
    schema = from_arrow_schema(rows_schema(shape))
    held = StructType([StructField(OP, ByteType()) if field.name == OP else field for field in schema])
    options = {"parquet.page.verify-checksum.enabled": "true", "datetimeRebaseMode": "CORRECTED"}
    options |= {
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }  # whatever the session says: nothing may be left out in silence
    frame = spark.read.schema(held).options(**options).parquet(*(_literal(file.path) for file in files))
    if files[0].first <= after or files[-1].last > upto:
        frame = frame.where((F.col(POSITION) > after) & (F.col(POSITION) <= upto))
    return frame.withColumn(OP, F.char(F.col(OP)))


def _readable(file: ParquetFile, shape: TopicSchema) -> bool:
    """Whether Spark reads from the file what ``format("cdc")`` gives: every column has the name and type that it has now, and Spark has that type."""
    return alike(topic_schema(file.schema), shape) and not any(pa.types.is_time64(field.type) for field in shape.fields)


def _uncovered(log: LogReader, topic: str, files: Sequence[ParquetFile], after: Position, upto: Position) -> Ranges:
    """The pieces (after, upto] that no file holds, without those that hold no change of the topic."""
    edges = [after, *(position for file in files for position in (Position(file.first - 1), file.last)), upto]
    gaps = [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]
    return [(low, high) for low, high in gaps if last_change(log, topic, high) > low]


def _literal(path: Path) -> str:
    """The pattern that means this path: its folders' names may hold what patterns mean something by."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path.absolute()))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
