"""The one file that talks to Iceberg's Java library (its classes are in ``java``): tables, their files, and commits. It lives in Spark's JVM;
no Spark job runs.

Everything that a commit does is one Iceberg transaction: the snapshot (with position and commit LSN in its summary), the table's
properties and nothing between them. Raises StoreError only.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from cdc.errors import StoreError
from cdc.model.lineage import Mark
from cdc.model.position import ZERO_CUT
from sinks.warehouse.columns import Add, Change, Field, Rename, Widen, parse_schema
from sinks.warehouse.disk import looked_at, stamp, sync
from sinks.warehouse.failures import Vanished, commit_errors, errors, java_name
from sinks.warehouse.java import Java
from sinks.warehouse.marks import EPOCH_KEY, SOURCE_KEY, Signed, mark_of
from sinks.warehouse.vectors import Blob

_CLOCKS_DIFFER_S: Final = 60
"""By so much Iceberg lets the clocks of a table's writers differ."""
KEPT_VERSIONS: Final = 10
"""So many former versions of a table's metadata stay on disk, for readers that are just opening one."""
_METADATA: Final = re.compile(r"\.?v(\d+)(\.gz)?\.metadata\.json(\.crc)?")

_TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Old metadata is deleted by ``_tidy``: Iceberg's own way of doing it takes a third of a commit.
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": str(KEPT_VERSIONS),
    "write.metadata.compression-codec": "gzip",
    "commit.manifest.min-count-to-merge": "16",
    "commit.retry.num-retries": "0",
}


class Gone(StoreError):
    """A table that was there is not there any more."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the warehouse's table {table} is gone", retryable=True)


@dataclass(frozen=True, slots=True)
class Vector:
    """A data file's deletion vector as it stands in the table: where to read it, and Iceberg's object for it. ``of``: the file's location."""

    of: str
    path: str
    offset: int
    length: int
    java: Any


@dataclass(frozen=True, slots=True)
class DataFile:
    """One live data file. ``first_row_id`` and ``sequence`` are its rows' lineage (format v3); None until committed."""

    path: str
    location: str
    """The path as Iceberg writes it."""
    rows: int
    bytes: int
    java: Any
    first_row_id: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that one commit makes to a table."""

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
        with errors("open the warehouse"):
            self._use = Java(jvm)
            self._path = path
            self._java = jvm.org.apache.iceberg.hadoop.HadoopCatalog(hadoop_configuration, str(path))

    def load(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        folder = self._path.joinpath(*namespace, name)
        try:
            return looked_at(".".join((*namespace, name)), folder, partial(self._found, namespace, name))
        except Vanished:
            if stamp(folder) is not None:
                raise
            return None

    def _found(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        with errors("look for a table"):
            identifier = self._identifier(namespace, name)
            there = self._java.tableExists(identifier)
            return IcebergTable(self._use, partial(self._java.loadTable, identifier)) if there else None

    def create(self, namespace: Sequence[str], name: str, schema: str, properties: Mapping[str, str]) -> IcebergTable:
        """Nothing of the new table is durable before its ``sync_all``."""
        with errors("create a table"):
            given = self._use.hash_map()
            for key, value in {**_TABLE_PROPERTIES, **properties}.items():
                given.put(key, value)
            parsed = self._use.schema_parser.fromJson(schema)
            identifier = self._identifier(namespace, name)
            self._java.createTable(identifier, parsed, self._use.unpartitioned, given)
            return IcebergTable(self._use, partial(self._java.loadTable, identifier))

    def _identifier(self, namespace: Sequence[str], name: str) -> Any:
        return self._use.table_identifier.parse(".".join((*namespace, name)))


class IcebergTable:
    """One table at the version that was loaded or refreshed last."""

    def __init__(self, use: Java, load: Callable[[], Any]) -> None:
        """load: gives Iceberg's object for the table at its newest version."""
        self._use = use
        self._load = load
        self._java = load()
        self._operations = self._java.operations()
        self.location = Path(self._java.location().removeprefix("file:"))
        self.fields: tuple[Field, ...] = ()
        self._schema_id = -1
        self._synced: frozenset[str] | None = None
        """The metadata files that are known to be durable; None where this object only reads, and nobody counts on what it has read."""
        self.renew()
        self._stamp = self._stamped()

    def renew(self) -> None:
        """Reads what Python looks at often, once for each version of the table."""
        current = self._operations.current()
        self.version: str = current.metadataFileLocation()
        self._updated_ms: int = current.lastUpdatedMillis()
        self.properties: dict[str, str] = self._use.strings(current.properties())
        snapshot = current.currentSnapshot()
        described = {} if snapshot is None else json.loads(self._use.snapshot_parser.toJson(snapshot))
        self.snapshot: int | None = described.get("snapshot-id")
        self.mark = self._marked(described)
        if current.currentSchemaId() != self._schema_id:
            self._schema_id = current.currentSchemaId()
            self.fields = parse_schema(self._use.schema_parser.toJson(current.schema()))

    def changed(self) -> bool:
        """Whether anything happened to the table's metadata, by whomever, since this object last looked. Asks the file system alone."""
        return self._stamp != self._stamped()

    def refresh(self) -> None:
        """Raises Gone."""
        if not self.changed():
            return
        known, stamp = self._stamp[1], self._stamped()
        with errors("read a table's metadata"):
            if stamp[1] != known or not self._went_forward():
                # Iceberg goes from version to version. The one that it knows was deleted (others have committed often since), or is
                # another by the same number: the folder was put back from a copy.
                self._java = self._load_again()
                self._operations = self._java.operations()
            self.renew()
            if self._synced is not None:
                self._sync()  # it may be a commit of ours whose answer was lost
        self._stamp = stamp

    def _went_forward(self) -> bool:
        try:
            self._java.refresh()
        except Py4JJavaError as error:
            if java_name(error) != "ValidationException":
                raise
            return False
        return True

    def _stamped(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The folder of the table's metadata and the version that was read last, as they stand now."""
        with errors("look at a table's metadata"):
            return stamp(self.location / "metadata"), stamp(Path(_local(self.version)))

    def _load_again(self) -> Any:
        try:
            return self._load()
        except Py4JJavaError as error:
            if java_name(error) != "NoSuchTableException":
                raise
            raise Gone(self.name) from error

    @property
    def name(self) -> str:
        """The table of the source, or of ours where it is none of those."""
        return self.properties.get(SOURCE_KEY, self.location.name)

    @property
    def epoch(self) -> int:
        """The highest writer's that committed here."""
        return int(self.properties.get(EPOCH_KEY, 0))

    def _marked(self, described: Mapping[str, Any]) -> Mark | None:
        """What the rows that are there now are marked with: by the snapshot, or where others have made it (a rewrite, a DELETE), by the
        nearest of ours before it. So a table that was rolled back says so. Properties speak where no snapshot can: of the newest commit, so
        not where the table was rolled back to an earlier one."""
        sequence = described.get("sequence-number")
        while described:
            if (found := mark_of(described.get("summary", {}))) is not None:
                return found
            parent = described.get("parent-snapshot-id")
            snapshot = None if parent is None else self._operations.current().snapshot(parent)
            if snapshot is None and parent is not None:
                break  # it has expired
            described = {} if snapshot is None else json.loads(self._use.snapshot_parser.toJson(snapshot))
        written = mark_of(self.properties)
        if written is None or self.snapshot is None or (described and sequence == self._operations.current().lastSequenceNumber()):
            return written
        return replace(written, cut=ZERO_CUT)

    def files(self) -> list[tuple[DataFile, Vector | None]]:
        """Every live data file and its deletion vector."""
        return looked_at(self.name, self.location, self._files)

    def _files(self) -> list[tuple[DataFile, Vector | None]]:
        found = []
        with errors("list a table's files"):
            tasks = self._java.newScan().planFiles()
            try:
                listed = self._use.lists.newArrayList(tasks)
                for task in (listed.get(number) for number in range(listed.size())):
                    file = _data_file(task.file())
                    found.append((file, self._vector(file, task.deletes())))
            finally:
                tasks.close()
        return found

    def needed(self) -> frozenset[str]:
        """The names of all files that any snapshot needs, those of other branches and tags among them."""
        with errors("look for the files that its snapshots need"):
            use, io, manifests = self._use, self._java.io(), self._use.hash_set()
            snapshots = use.lists.newArrayList(self._java.snapshots())
            for number in range(snapshots.size()):
                manifests.addAll(snapshots.get(number).allManifests(io))
            found: set[str] = set()
            for manifest in use.lists.newArrayList(manifests):
                paths = use.manifest_files.readPaths(manifest, io, self._java.specs())
                try:
                    found.update(Path(path).name for path in use.texts(use.lists.newArrayList(paths)))
                finally:
                    paths.close()
        return frozenset(found)

    def _vector(self, file: DataFile, deletes: Any) -> Vector | None:
        if not deletes.size():
            return None
        delete = deletes.get(0)
        if deletes.size() > 1 or delete.contentOffset() is None:
            raise StoreError(
                f"the warehouse's table {self.name} has delete files of another writer that are not deletion vectors",
                retryable=False,
                hint="CALL system.rewrite_data_files(table => …, options => map('delete-file-threshold', '1')) in Spark",
            )
        return Vector(file.location, _local(delete.location()), delete.contentOffset(), delete.contentSizeInBytes(), delete)

    def data_file(self, path: Path) -> DataFile:
        """A Parquet file that was just written, with its column bounds, ready to be committed."""
        with errors("describe a data file"):
            metrics = self._use.parquet_util.fileMetrics(
                self._java.io().newInputFile(str(path)), self._use.metrics_config.forTable(self._java)
            )
            builder = self._use.data_files.builder(self._java.spec()).withPath(str(path)).withFormat("parquet")
            return _data_file(builder.withFileSizeInBytes(path.stat().st_size).withMetrics(metrics).build())

    def vector(self, puffin: Path, size: int, of: DataFile, blob: Blob) -> Vector:
        """A deletion vector that was just written."""
        with errors("describe a deletion vector"):
            builder = self._use.file_metadata.deleteFileBuilder(self._java.spec()).ofPositionDeletes()
            builder = builder.withFormat("puffin").withPath(str(puffin)).withFileSizeInBytes(size).withRecordCount(blob.cardinality)
            builder = builder.withReferencedDataFile(of.location).withContentOffset(blob.offset)
            return Vector(of.location, str(puffin), blob.offset, blob.length, builder.withContentSizeInBytes(blob.length).build())

    def begin(self) -> Pending:
        """Starts a commit."""
        self._refuse_the_past()
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
                    case Rename(name, into):
                        update.renameColumn(name, into)
                    case Widen(name, kind):
                        update.updateColumn(name, self._kind(kind))
                    case Add(name, kind, doc):
                        update.addColumn(None, name, self._kind(kind), doc)
                update.commit()
            return Pending(pending.java, parse_schema(self._use.schema_parser.toJson(pending.java.table().schema())))

    def commit(self, pending: Pending, changes: Changes, signed: Signed, properties: Mapping[str, str]) -> None:
        """Makes everything durable at once, as a snapshot of its own also when no row changes. Raises CommitConflict or CommitUnknown
        (then refresh and look again)."""
        with commit_errors():
            update = self._update(pending.java, changes).scanManifestsWith(self._use.directly)
            for key, value in signed.properties().items():
                update.set(key, value)
            update.commit()
            set_properties = pending.java.updateProperties()
            for key, value in {**signed.properties(), **properties}.items():
                set_properties.set(key, value)
            set_properties.commit()
            pending.java.commitTransaction()
        self._committed()

    def _committed(self) -> None:
        """A commit of ours was taken, which a table that is opened again says, too: whatever fails from here on is tried again."""
        with errors("read what it has committed"):
            self.renew()
        with errors("sync what it has committed"):
            self._sync()
        self._stamp = self._stamped()

    def _update(self, transaction: Any, changes: Changes) -> Any:
        if changes.replace_all:
            update = transaction.newOverwrite().overwriteByRowFilter(self._use.always_true)
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
        # Rows that were marked as gone in a file are not gone from the file that has taken its place (a merge, by whomever).
        update.validateDeletedFiles().validateDataFilesExist(self._use.java_list(vector.of for vector in changes.add_vectors))
        if self.snapshot is not None:
            update.validateFromSnapshot(self.snapshot)
        return update.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()

    def _kind(self, kind: str) -> Any:
        return self._use.types.fromPrimitiveString(kind)

    def _refuse_the_past(self) -> None:
        """Iceberg takes no commit of a time before the table's last one, and calls it a bug of its own."""
        ahead_s = self._updated_ms / 1e3 - time.time()
        if ahead_s > _CLOCKS_DIFFER_S:
            by = f"{ahead_s / 3600:.0f} h" if ahead_s >= 7200 else f"{ahead_s / 60:.0f} min"
            raise StoreError(
                f"this machine's clock is {by} before the last commit of the warehouse's table {self.name}, and Iceberg commits in order of time",
                retryable=True,
                hint="set the clock right; the store goes on by itself when that time has come again",
            )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._refuse_the_past()
        with commit_errors():
            update = self._java.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
        self._committed()

    def expire(self, older_than_ms: int) -> None:
        """Forgets snapshots older than that, and deletes the files that only they needed: not before the metadata without them is durable, for
        a power cut brings the former back."""
        unneeded, keep = self._use.kept()
        with commit_errors():
            expiry = self._java.expireSnapshots().expireOlderThan(older_than_ms).retainLast(2)
            expiry.cleanExpiredFiles(True).deleteWith(keep).commit()
        self._committed()
        with errors("delete what has expired"):
            for path in map(Path, map(_local, self._use.texts(unneeded))):
                path.unlink(missing_ok=True)
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def sync_all(self, warehouse: Path) -> None:
        """For whoever will write: everything of the table's metadata, and every folder from there up to the one that the warehouse's is in.

        What a file system shows may still be in memory alone: the process that committed it (or made the table) died before it was synced,
        or the disk failed. No mark says so, not even one that the ledger has reached, for a merge of files leaves the mark as it is. So a
        writer counts on nothing that it finds, and syncs it all once; what is durable already costs next to nothing. Data files and
        deletion vectors need none of it: they are synced before the commit that names them.
        """
        with errors("sync a table's metadata"):
            self._sync()
            for folder in (self.location, *self.location.parents):
                sync(folder)
                if folder.samefile(warehouse):
                    break
            sync(warehouse.parent)

    def _sync(self) -> None:
        """Iceberg's own files are renamed into place but never synced; a power cut must not take back what the ledger promises."""
        folder = self.location / "metadata"
        present = self._metadata()
        known = self._synced or frozenset()
        for path in (folder / "version-hint.text", *(path for path in present if path.name not in known)):
            sync(path)
        sync(folder)
        self._synced = frozenset(path.name for path in present)
        self._tidy(present)

    def _tidy(self, present: Sequence[Path]) -> None:
        numbered = [(int(found[1]), path) for path in present if (found := _METADATA.fullmatch(path.name))]
        newest = max((number for number, _ in numbered), default=0)
        for number, path in numbered:
            if number < newest - KEPT_VERSIONS:
                path.unlink(missing_ok=True)
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def _metadata(self) -> list[Path]:
        return [Path(entry.path) for entry in os.scandir(self.location / "metadata") if not entry.name.startswith(".")]


def _data_file(java: Any) -> DataFile:
    location: str = java.location()
    return DataFile(
        _local(location), location, java.recordCount(), java.fileSizeInBytes(), java, java.firstRowId(), java.dataSequenceNumber()
    )


def _local(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")
