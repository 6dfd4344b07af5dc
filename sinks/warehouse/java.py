"""The classes of Iceberg and of Java's own library that ``catalog`` uses, and what is handed over between the two languages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class Java:
    """The Java classes that are used, looked up once: every step through a Java package is a round trip to the JVM."""

    def __init__(self, jvm: Any) -> None:
        iceberg = jvm.org.apache.iceberg
        self.hash_map = jvm.java.util.HashMap
        # Iceberg looks every 10 ms whether its worker threads are done, several times a commit. Done at once, nothing is waited for.
        self.directly = iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
        self.lists = iceberg.relocated.com.google.common.collect.Lists
        self.table_identifier = iceberg.catalog.TableIdentifier
        self.schema_parser = iceberg.SchemaParser
        self.snapshot_parser = iceberg.SnapshotParser
        self.types = iceberg.types.Types
        self.data_files = iceberg.DataFiles
        self.file_metadata = iceberg.FileMetadata
        self.metrics_config = iceberg.MetricsConfig
        self.parquet_util = iceberg.parquet.ParquetUtil
        self.always_true = iceberg.expressions.Expressions.alwaysTrue()
        self.unpartitioned = iceberg.PartitionSpec.unpartitioned()
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()

        self._consumer = jvm.java.lang.Class.forName("java.util.function.Consumer")
        self._handlers = jvm.java.beans.EventHandler
        self._array_list = jvm.java.util.ArrayList
        self.hash_set = jvm.java.util.HashSet
        self.manifest_files = iceberg.ManifestFiles

    def kept(self) -> tuple[Any, Any]:
        """A Java list, and a Java consumer that adds to it whatever it is given."""
        kept = self._array_list()
        return kept, self._handlers.create(self._consumer, kept, "add", "")

    def java_list(self, texts: Iterable[str]) -> Any:
        found = self._array_list()
        for text in texts:
            found.add(text)
        return found

    def texts(self, java_list: Any) -> list[str]:
        """A Java list of strings, in one round trip."""
        found: list[str] = json.loads(self._mapper.writeValueAsString(java_list))
        return found

    def strings(self, java_map: Any) -> dict[str, str]:
        """A Java map of strings, in one round trip; iterating over it would take several an entry, and an exception to end."""
        found: dict[str, str] = json.loads(self._mapper.writeValueAsString(java_map))
        return found
