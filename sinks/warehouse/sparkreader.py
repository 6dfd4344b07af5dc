"""Whole tables as Spark reads them, not our own code: so that an audit sees what every reader of the table sees."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc.errors import StoreError
from cdc.model.batch import EXACT
from cdc.model.topic import TopicSchema
from sinks.warehouse.columns import labels, to_text
from sinks.warehouse.disk import Lacking
from sinks.warehouse.failures import java_name
from sinks.warehouse.names import safe
from sinks.warehouse.place import TablePlace


class SparkReader:
    """Over one session. ``warehouse``: the folder."""

    def __init__(self, spark: Any, store: str, warehouse: Path) -> None:
        self._spark = spark
        self._warehouse = warehouse
        # Spark remembers a catalog, and so the folder, by its name as long as the session lives.
        self._catalog = f"headwater_{safe(store)}_{hashlib.sha256(str(warehouse).encode()).hexdigest()[:16]}"

    def rows(self, place: TablePlace, schema: TopicSchema, path: Sequence[str], scratch: Path) -> Iterator[pa.RecordBatch]:
        """Every live row as ``sinks.contract.audit_schema(schema)``. ``path``: the table's namespace and name. ``scratch``: a folder for
        what Spark has read."""
        wanted = [field.name for field in place.iceberg.fields if field.name in {*labels(schema).values(), EXACT}]
        folder = scratch / f"scan-{uuid4().hex}"
        try:
            try:
                self._frame(path, wanted).write.parquet(str(folder))
            except (Py4JError, PySparkException, OSError) as error:
                raise self._unreadable(place, error) from error
            for file in sorted(folder.glob("*.parquet")):
                for batch in pq.ParquetFile(file).iter_batches():
                    rows = pa.Table.from_batches([batch]).rename_columns(wanted)
                    yield from to_text(rows, schema).to_batches()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _frame(self, path: Sequence[str], wanted: Sequence[str]) -> Any:
        """These columns of the table, as a DataFrame."""
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": self._warehouse,
            ".cache-enabled": "false",
        }.items():
            self._spark.conf.set(f"spark.sql.catalog.{self._catalog}{key}", str(value))
        frame = self._spark.table(".".join(f"`{part}`" for part in (self._catalog, *path)))
        # Numbered, because Spark's own reading of names knows dots and backquotes.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        return numbered.select(*(f"c{frame.columns.index(name)}" for name in wanted))

    def _unreadable(self, place: TablePlace, error: Exception) -> StoreError:
        """Spark's own words may show rows."""
        if not self._jvm_lives():
            return StoreError(
                f"Spark's JVM ended while it read the warehouse's table {place.name}",
                retryable=True,
                hint="it has 1 GB of memory, too little for values of hundreds of megabytes: leave such a table out with --table",
            )
        place.look_again()
        if (name := place.missing()) is not None:
            return Lacking(place.name, name)
        kind = type(error).__name__ if getattr(error, "java_exception", None) is None else java_name(error)
        return StoreError(f"Spark cannot read the warehouse's table {place.name}: {kind}", retryable=True)

    def _jvm_lives(self) -> bool:
        try:
            self._spark._jvm.java.lang.System.nanoTime()
        except (Py4JError, OSError):
            return False
        return True
