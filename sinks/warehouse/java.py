"""The classes of Iceberg and of Java's own library that ``catalog`` uses, and what is handed over between the two languages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sinks.warehouse.vectors import Blob


class Java:
    """The Java classes that are used, looked up once: every step through a Java package is a round trip to the JVM."""

    def __init__(self, jvm: Any) -> None:
        iceberg = jvm.org.apache.iceberg
        # Iceberg looks every 10 ms whether its worker threads are done, several times a commit. Done at once, nothing is waited for.
        self.directly = iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
        self.values = Values(jvm)
        self.files = Files(iceberg)
        self.table_identifier = iceberg.catalog.TableIdentifier
        self.schema_parser = iceberg.SchemaParser
        self.snapshot_parser = iceberg.SnapshotParser
        self.manifest_files = iceberg.ManifestFiles
        self.types = iceberg.types.Types
        self.always_true = iceberg.expressions.Expressions.alwaysTrue()
        self.namespace = iceberg.catalog.Namespace
        self.unpartitioned = iceberg.PartitionSpec.unpartitioned()


class Values:
    """Values from one language for the other, in few round trips."""

    def __init__(self, jvm: Any) -> None:
        self.hash_map = jvm.java.util.HashMap
        self.hash_set = jvm.java.util.HashSet
        self.lists = jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists
        self._array_list = jvm.java.util.ArrayList
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        self._consumer = jvm.java.lang.Class.forName("java.util.function.Consumer")
        self._handlers = jvm.java.beans.EventHandler

    def kept(self) -> tuple[Any, Any]:
        """A Java list, and a Java consumer that adds to it whatever it is given."""
        kept = self._array_list()
        return kept, self._handlers.create(self._consumer, kept, "add", "")

    def java_list(self, texts: Iterable[str]) -> Any:
        found = self._array_list()
        for text in texts:
            found.add(text)
        return found

    def java_map(self, given: Mapping[str, str]) -> Any:
        made = self.hash_map()
        for key, value in given.items():
            made.put(key, value)
        return made

    def texts(self, java_list: Any) -> list[str]:
        """A Java list of strings, in one round trip."""
        found: list[str] = json.loads(self._mapper.writeValueAsString(java_list))
        return found

    def strings(self, java_map: Any) -> dict[str, str]:
        """A Java map of strings, in one round trip; iterating over it would take several an entry, and an exception to end."""
        found: dict[str, str] = json.loads(self._mapper.writeValueAsString(java_map))
        return found


class Files:
    """Describes files that were just written, as a commit takes them. ``table``: Iceberg's object for the table that they are of."""

    def __init__(self, iceberg: Any) -> None:
        self._data_files = iceberg.DataFiles
        self._file_metadata = iceberg.FileMetadata
        self._metrics_config = iceberg.MetricsConfig
        self._parquet_util = iceberg.parquet.ParquetUtil

    def data(self, table: Any, path: str, size: int) -> Any:
        """A Parquet file, with the bounds of its columns."""
        metrics = self._parquet_util.fileMetrics(table.io().newInputFile(path), self._metrics_config.forTable(table))
        builder = self._data_files.builder(table.spec()).withPath(path).withFormat("parquet")
        return builder.withFileSizeInBytes(size).withMetrics(metrics).build()

    def vector(self, table: Any, puffin: str, size: int, location: str, blob: Blob) -> Any:
        """The deletion vector of the data file at this location. ``size``: the Puffin file's."""
        builder = self._file_metadata.deleteFileBuilder(table.spec()).ofPositionDeletes()
        builder = builder.withFormat("puffin").withPath(puffin).withFileSizeInBytes(size).withRecordCount(blob.cardinality)
        builder = builder.withReferencedDataFile(location).withContentOffset(blob.offset)
        return builder.withContentSizeInBytes(blob.length).build()
