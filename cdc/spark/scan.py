"""A table's changes as one DataFrame, read at the speed of Parquet: Spark's own reader takes the log's sealed files, and ``format("cdc")`` the rest.

Spark 4.1 gives a data source in Python no way to hand its files to the reader of Parquet, nor does it say which columns are asked for. So this is a
function beside ``format("cdc")``, with the same rows and columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ByteType, StructField, StructType

from cdc.log.contract import LogReader, ParquetFile
from cdc.log.home import parquet_files
from cdc.model.batch import OP, POSITION
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.rows import chosen, rows_schema
from cdc.spark.options import ReadPlan
from cdc.spark.source import CdcSource

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

    Which files hold them is decided now: later changes are not among them. columns: only these. Spark leaves out columns that are not asked for by
    itself where it reads Parquet, but not in what ``format("cdc")`` reads.
    Raises ConfigError for a log, a table or a column that does not exist.
    """
    options = {"log": str(log), "table": table, "startPosition": str(start)}
    plan = ReadPlan.of(options | ({} if end is None else {"endPosition": str(end)}))
    reader = plan.log()
    try:
        topic = plan.one_topic(reader)
        wanted = chosen(rows_schema(topic.schema), columns)
        ((after, upto),) = plan.wanted(reader)
        files = [file for file in parquet_files(plan.dir, topic.name, after, upto) if _readable(file, topic.schema)]
        rest = _uncovered(reader, topic.name, files, after, upto)
    finally:
        reader.close()
    spark.dataSource.register(CdcSource)
    parts = []
    if files:
        parts.append(_from_parquet(spark, files, topic.schema, after, upto).select(*map(_quoted, wanted.names)))
    if rest or not files:
        given = {"log": str(log), "table": table, "ranges": json.dumps(rest), "columns": json.dumps(wanted.names)}
        parts.append(spark.read.format("cdc").options(**given).load())
    return reduce(DataFrame.unionAll, parts)


def _from_parquet(
    spark: SparkSession, files: Sequence[ParquetFile], shape: TopicSchema, after: Position, upto: Position
) -> DataFrame:
    schema = from_arrow_schema(rows_schema(shape))
    held = StructType([StructField(OP, ByteType()) if field.name == OP else field for field in schema])
    options = {"parquet.page.verify-checksum.enabled": "true", "datetimeRebaseMode": "CORRECTED"}
    frame = spark.read.schema(held).options(**options).parquet(*(_literal(file.path) for file in files))
    if files[0].first <= after or files[-1].last > upto:
        frame = frame.where((F.col(POSITION) > after) & (F.col(POSITION) <= upto))
    return frame.withColumn(OP, F.char(F.col(OP)))


def _readable(file: ParquetFile, shape: TopicSchema) -> bool:
    """Whether Spark reads from the file what ``format("cdc")`` gives: every column has the type that it has now, and Spark has that type."""
    there = file.schema.names
    same = all(file.schema.field(field.name).type == field.type for field in shape.fields if field.name in there)
    return same and not any(pa.types.is_time64(field.type) for field in shape.fields)


def _uncovered(log: LogReader, topic: str, files: Sequence[ParquetFile], after: Position, upto: Position) -> Ranges:
    """The pieces (after, upto] that no file holds, without those that hold no change of the topic."""
    edges = [after, *(position for file in files for position in (Position(file.first - 1), file.last)), upto]
    gaps = [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]
    return [(low, high) for low, high in gaps if log.last_change(topic, high) > low]


def _literal(path: Path) -> str:
    """The pattern that means this path: its folders' names may hold what patterns mean something by."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path.absolute()))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
