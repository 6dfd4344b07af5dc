"""The one file that talks to Iceberg's Java library: tables, their files, and commits. It lives in Spark's JVM; no Spark job runs.

Everything that a commit does is one Iceberg transaction: the snapshot (with position and commit LSN in its summary), the table's
properties and nothing between them. Raises StoreError only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from cdc.errors import StoreError
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from sinks.warehouse.columns import Add, Change, Field, Retire, Widen, parse_schema
from sinks.warehouse.vectors import Blob

POSITION_KEY: Final = "headwater.position"
LSN_KEY: Final = "headwater.commit-lsn"
TS_KEY: Final = "headwater.commit-ts-us"
STORE_KEY: Final = "headwater.store"
SOURCE_KEY: Final = "headwater.source"
TABLE_KEY: Final = "headwater.table"

_TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.metadata.compression-codec": "gzip",
    "commit.manifest.min-count-to-merge": "16",
    "commit.retry.num-retries": "0",
}


LAST_CUT: Final = Cut(Position(2**63 - 1), Lsn(2**63 - 1))


class CommitConflict(Exception):
    """Somebody else changed the table in between: look again, then commit again."""


class CommitUnknown(Exception):
    """The commit may or may not have happened: look for it before anything else."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A data file's deletion vector as it stands in the table: where to read it, and Iceberg's object for it."""

    path: str
    offset: int
    length: int
    java: Any


@dataclass(frozen=True, slots=True)
class DataFile:
    """One live data file. ``first_row_id`` and ``sequence`` are its rows' lineage (format v3); None until committed."""

    path: str
    rows: int
    bytes: int
    java: Any
    first_row_id: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit does to a table."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    add_vectors: Sequence[Vector] = ()
    drop_vectors: Sequence[Vector] = ()
    replace_all: bool = False
    """Every row that is there now goes."""
    rewrite: bool = False
    """The same rows in other files (compaction)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A commit in the making, and the columns that it will leave behind."""

    java: Any
    fields: tuple[Field, ...]


class Catalog:
    """A folder of Iceberg tables."""

    def __init__(self, jvm: Any, hadoop_configuration: Any, path: Path) -> None:
        self._jvm = jvm
        self._iceberg = jvm.org.apache.iceberg
        with errors("open the warehouse"):
            self._java = self._iceberg.hadoop.HadoopCatalog(hadoop_configuration, str(path))

    def load(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        with errors("look for a table"):
            identifier = self._identifier(namespace, name)
            return IcebergTable(self._jvm, self._java.loadTable(identifier)) if self._java.tableExists(identifier) else None

    def create(self, namespace: Sequence[str], name: str, schema: str, properties: Mapping[str, str]) -> IcebergTable:
        given = self._jvm.java.util.HashMap()
        for key, value in {**_TABLE_PROPERTIES, **properties}.items():
            given.put(key, value)
        unpartitioned = self._iceberg.PartitionSpec.unpartitioned()
        with errors("create a table"):
            parsed = self._iceberg.SchemaParser.fromJson(schema)
            return IcebergTable(self._jvm, self._java.createTable(self._identifier(namespace, name), parsed, unpartitioned, given))

    def _identifier(self, namespace: Sequence[str], name: str) -> Any:
        return self._iceberg.catalog.TableIdentifier.parse(".".join((*namespace, name)))


class IcebergTable:
    """One table at the version that was loaded or refreshed last."""

    def __init__(self, jvm: Any, java: Any) -> None:
        self._jvm = jvm
        self._iceberg = jvm.org.apache.iceberg
        self._java = java
        self.location = Path(java.location().removeprefix("file:"))
        self.renew()

    def renew(self) -> None:
        """Reads what Python looks at often, once for each version of the table."""
        self.version: str = self._java.operations().current().metadataFileLocation()
        self.properties: dict[str, str] = dict(self._java.properties())
        snapshot = self._java.currentSnapshot()
        self.snapshot: int | None = None if snapshot is None else snapshot.snapshotId()
        self._summary: dict[str, str] = {} if snapshot is None else dict(snapshot.summary())
        self.fields: tuple[Field, ...] = parse_schema(self._iceberg.SchemaParser.toJson(self._java.schema()))

    def refresh(self) -> None:
        with errors("read a table's metadata"):
            self._java.refresh()
            if self._java.operations().current().metadataFileLocation() != self.version:
                self.renew()

    def cut(self) -> Cut:
        """The cut that the table holds; ``ZERO_CUT`` when it never held one.

        The snapshot's own word counts where it is lower: somebody has rolled the table back.
        """
        return min(cut_of(self.properties), cut_of(self._summary) if POSITION_KEY in self._summary else LAST_CUT, key=_position)

    def files(self) -> list[tuple[DataFile, Vector | None]]:
        """Every live data file and its deletion vector."""
        found = []
        with errors("list a table's files"):
            tasks = self._java.newScan().planFiles()
            try:
                for task in tasks.iterator():
                    file = task.file()
                    found.append((_data_file(file), self._vector(task.deletes())))
            finally:
                tasks.close()
        return found

    def _vector(self, deletes: Any) -> Vector | None:
        files = list(deletes)
        if not files:
            return None
        delete = files[0]
        if len(files) > 1 or delete.contentOffset() is None:
            raise StoreError(
                f"the warehouse's table {self.properties.get(SOURCE_KEY)} has delete files of another writer that are no deletion vectors",
                retryable=False,
                hint="CALL system.rewrite_data_files(table => …, options => map('delete-file-threshold', '1')) in Spark",
            )
        return Vector(_local(delete.location()), delete.contentOffset(), delete.contentSizeInBytes(), delete)

    def data_file(self, path: Path) -> DataFile:
        """A Parquet file that was just written, with its column bounds, ready to be committed."""
        with errors("describe a data file"):
            metrics = self._iceberg.parquet.ParquetUtil.fileMetrics(
                self._java.io().newInputFile(str(path)), self._iceberg.MetricsConfig.forTable(self._java)
            )
            builder = self._iceberg.DataFiles.builder(self._java.spec()).withPath(str(path)).withFormat("parquet")
            return _data_file(builder.withFileSizeInBytes(path.stat().st_size).withMetrics(metrics).build())

    def vector(self, puffin: Path, size: int, of: DataFile, blob: Blob) -> Vector:
        """A deletion vector that was just written."""
        with errors("describe a deletion vector"):
            builder = self._iceberg.FileMetadata.deleteFileBuilder(self._java.spec()).ofPositionDeletes()
            builder = builder.withFormat("puffin").withPath(str(puffin)).withFileSizeInBytes(size).withRecordCount(blob.cardinality)
            builder = builder.withReferencedDataFile(of.java.location()).withContentOffset(blob.offset)
            return Vector(str(puffin), blob.offset, blob.length, builder.withContentSizeInBytes(blob.length).build())

    def begin(self) -> Pending:
        """Starts a commit."""
        with errors("begin a commit"):
            return Pending(self._java.newTransaction(), self.fields)

    def evolve(self, pending: Pending, evolution: Sequence[Change]) -> Pending:
        """Adds schema changes to the commit, before its rows, so that these are written under the columns' new ids."""
        if not evolution:
            return pending
        with errors("change a table's columns"):
            for change in evolution:
                # One update a step: Iceberg does not add a column under a name that the same update gives away.
                update = pending.java.updateSchema()
                match change:
                    case Retire(name, into):
                        update.renameColumn(name, into)
                    case Widen(name, kind):
                        update.updateColumn(name, self._kind(kind))
                    case Add(name, kind, doc):
                        update.addColumn(None, name, self._kind(kind), doc)
                update.commit()
            return Pending(pending.java, parse_schema(self._iceberg.SchemaParser.toJson(pending.java.table().schema())))

    def commit(self, pending: Pending, store: str, changes: Changes | None, cut: Cut, properties: Mapping[str, str]) -> None:
        """Makes everything durable at once. Raises CommitConflict or CommitUnknown (then refresh and look again)."""
        with commit_errors():
            if changes is not None:
                update = self._update(pending.java, changes)
                for key, value in {STORE_KEY: store, **cut_properties(cut)}.items():
                    update.set(key, value)
                update.commit()
            set_properties = pending.java.updateProperties()
            for key, value in {**cut_properties(cut), **properties}.items():
                set_properties.set(key, value)
            set_properties.commit()
            pending.java.commitTransaction()
        self.renew()
        self._sync()

    def _update(self, transaction: Any, changes: Changes) -> Any:
        if changes.replace_all:
            update = transaction.newOverwrite().overwriteByRowFilter(self._iceberg.expressions.Expressions.alwaysTrue())
            for file in changes.add:
                update.addFile(file.java)
            if self.snapshot is not None:
                update.validateFromSnapshot(self.snapshot)
            return update.validateNoConflictingData().validateNoConflictingDeletes()
        if changes.rewrite:
            update = transaction.newRewrite().validateFromSnapshot(self.snapshot)
            for file in changes.remove:
                update.deleteFile(file.java)
            for vector in changes.drop_vectors:
                update.deleteFile(vector.java)
            for file in changes.add:
                update.addFile(file.java)
            return update
        update = transaction.newRowDelta()
        for file in changes.add:
            update.addRows(file.java)
        for file in changes.remove:
            update.removeRows(file.java)
        for vector in changes.add_vectors:
            update.addDeletes(vector.java)
        for vector in changes.drop_vectors:
            update.removeDeletes(vector.java)
        if self.snapshot is not None:
            update.validateFromSnapshot(self.snapshot)
        return update.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()

    def _kind(self, kind: str) -> Any:
        return self._iceberg.types.Types.fromPrimitiveString(kind)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        with commit_errors():
            update = self._java.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
        self.renew()
        self._sync()

    def expire(self, older_than_ms: int) -> None:
        """Forgets snapshots older than that, and deletes the files that only they needed."""
        with commit_errors():
            self._java.expireSnapshots().expireOlderThan(older_than_ms).retainLast(2).cleanExpiredFiles(True).commit()
        self.renew()

    def _sync(self) -> None:
        """Iceberg's own files are renamed into place but never synced; a power cut must not take back what the ledger promises."""
        folder = self.location / "metadata"
        newest = [
            folder / "version-hint.text",
            Path(self._java.operations().current().metadataFileLocation().removeprefix("file:")),
        ]
        snapshot = self._java.currentSnapshot()
        if snapshot is not None:
            newest.append(Path(snapshot.manifestListLocation().removeprefix("file:")))
            mine = snapshot.snapshotId()
            manifests = snapshot.allManifests(self._java.io())
            newest += [Path(m.path().removeprefix("file:")) for m in manifests if m.snapshotId() == mine]
        for path in newest:
            sync(path)
        sync(folder)


def sync(path: Path) -> None:
    """fsync of a file or a folder. A file that upkeep has already replaced needs none."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_properties(cut: Cut) -> dict[str, str]:
    return {POSITION_KEY: str(cut.position), LSN_KEY: str(cut.commit_lsn), TS_KEY: str(cut.commit_ts_us)}


def _position(cut: Cut) -> int:
    return cut.position


def cut_of(properties: Mapping[str, str]) -> Cut:
    if POSITION_KEY not in properties:
        return ZERO_CUT
    return Cut(Position(int(properties[POSITION_KEY])), Lsn(int(properties[LSN_KEY])), int(properties[TS_KEY]))


def _data_file(java: Any) -> DataFile:
    return DataFile(
        _local(java.location()), java.recordCount(), java.fileSizeInBytes(), java, java.firstRowId(), java.dataSequenceNumber()
    )


def _local(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Java's exceptions as StoreError: the class only, for messages may show values."""
    try:
        yield
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        raise StoreError(f"the warehouse could not {doing}: {name}", retryable=name in _PASSING) from error
    except (Py4JError, OSError) as error:
        raise StoreError(f"the warehouse could not {doing}: {type(error).__name__}", retryable=True) from error


_PASSING: Final = frozenset(
    {"RuntimeIOException", "UncheckedIOException", "IOException", "CommitFailedException", "CommitStateUnknownException"}
)


@contextmanager
def commit_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        if name == "CommitStateUnknownException":
            raise CommitUnknown from error
        if name in ("CommitFailedException", "ValidationException"):
            raise CommitConflict from error
        raise StoreError(f"the warehouse could not commit: {name}", retryable=name in _PASSING) from error
    except Py4JError as error:
        raise CommitUnknown from error
