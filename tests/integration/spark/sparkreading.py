"""Whole tables as Spark reads them, not our own code: what an audit says that a warehouse holds has to be what every reader of the table sees."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.model.batch import EXACT
from cdc.model.topic import TopicSchema
from sinks.sparksession import spark_session
from sinks.warehouse.columns import labels, to_text
from sinks.warehouse.connection import serving
from sinks.warehouse.names import place_of
from sinks.warehouse.sink import Warehouse


def rows_by_spark(sink: Warehouse, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
    """Every live row as ``sinks.contract.audit_schema(schema)``; nothing where the warehouse has no such table."""
    spark, warehouse = spark_session(sink.name), sink.options.path.absolute()
    namespace, name = place_of(schema, sink.options.namespace)
    if sink.options.catalog == "hadoop" and not warehouse.joinpath(*namespace, name, "metadata").is_dir():
        return
    if sink.options.catalog != "hadoop" and not spark.catalog.tableExists(".".join((_catalog(spark, sink), *namespace, name))):
        return
    frame = spark.table(".".join(f"`{part}`" for part in (_catalog(spark, sink), *namespace, name)))
    wanted = [label for label in frame.columns if label in {*labels(schema).values(), EXACT}]
    # Numbered, because Spark's own reading of names knows dots and backquotes.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    folder = warehouse.parent / f"by-spark-{uuid4().hex}"
    numbered.select(*(f"c{frame.columns.index(label)}" for label in wanted)).write.parquet(str(folder))
    try:
        for file in sorted(folder.glob("*.parquet")):
            yield from to_text(pq.read_table(file).rename_columns(wanted), schema).to_batches()
    finally:
        shutil.rmtree(folder)


def _catalog(spark: Any, sink: Warehouse) -> str:
    """Spark remembers a catalog, and so the folder, by its name as long as the session lives."""
    options, warehouse = sink.options, str(sink.options.path.absolute())
    name = f"by_spark_{hashlib.sha256(warehouse.encode()).hexdigest()[:16]}"
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}
    if options.catalog == "hadoop":
        settings |= {".type": "hadoop", ".warehouse": warehouse}
    else:
        served = serving(options)
        # Under whose name the rows stand in the database: Spark would give its own.
        settings |= {f".{key}": value for key, value in served.properties.items()}
        settings[".catalog-impl"] = served.implementation
        name = served.name if options.catalog == "sql" else name
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", str(value))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return name
