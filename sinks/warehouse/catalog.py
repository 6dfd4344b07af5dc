"""The one file that talks to Iceberg's Java library (its classes are in ``java``): tables, their files, and commits. It lives in Spark's JVM;
no Spark job runs.

Everything that a commit does is one Iceberg transaction: the snapshot (with position and commit LSN in its summary), the table's
properties and nothing between them. Raises StoreError only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from cdc.errors import StoreError
from cdc.model.lineage import Mark
from sinks.warehouse.columns import Add, Change, Drop, IcebergField, Rename, Widen, parse_schema
from sinks.warehouse.disk import Lacking, looked_at, stamp, sync
from sinks.warehouse.failures import Vanished, commit_errors, errors, java_name
from sinks.warehouse.java import Java
from sinks.warehouse.marks import EPOCH_KEY, SOURCE_KEY, Signed
from sinks.warehouse.vectors import Blob
from sinks.warehouse.versions import KEPT_VERSIONS, MetadataFiles, read_version

_CLOCKS_DIFFER_S: Final = 60
"""By so much Iceberg lets the clocks of a table's writers differ."""

_TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Old metadata is deleted by ``versions``: Iceberg's own way of doing it takes a third of a commit.
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
    fields: tuple[IcebergField, ...]


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
            given = self._use.values.hash_map()
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
        self._metadata = MetadataFiles(self.location)
        self._seen = read_version(use, self._operations.current(), None)
        self._stamp = self._stamped()

    @property
    def fields(self) -> tuple[IcebergField, ...]:
        return self._seen.fields

    @property
    def properties(self) -> Mapping[str, str]:
        return self._seen.properties

    @property
    def snapshot(self) -> int | None:
        """The id of the current one."""
        return self._seen.snapshot

    @property
    def mark(self) -> Mark | None:
        """The mark of the rows that are there now."""
        return self._seen.mark

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
            self._renew()
            if self._metadata.counted_on:
                self._metadata.sync()  # it may be a commit of ours whose answer was lost
        self._stamp = stamp

    def _renew(self) -> None:
        self._seen = read_version(self._use, self._operations.current(), self._seen)

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
            return stamp(self._metadata.folder), stamp(Path(_local(self._seen.file)))

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

    def files(self) -> list[tuple[DataFile, Vector | None]]:
        """Every live data file and its deletion vector. Raises what ``looked_at`` does; Vanished where another version stands there by now than was read."""
        try:
            return looked_at(self.name, self.location, self._files)
        except Lacking:
            if self.changed():  # what stands there, such as a copy that was put back, may well have all its files
                raise Vanished("list a table's files", self.name) from None
            raise

    def _files(self) -> list[tuple[DataFile, Vector | None]]:
        found = []
        with errors("list a table's files"):
            tasks = (
                self._java.newScan().planWith(self._use.directly).planFiles()
            )  # on this thread's own in the JVM, where it is counted
            try:
                listed = self._use.values.lists.newArrayList(tasks)
                for task in (listed.get(number) for number in range(listed.size())):
                    file = _data_file(task.file())
                    found.append((file, self._vector(file, task.deletes())))
            finally:
                tasks.close()
        return found

    def size(self) -> tuple[int, int]:
        """(rows, bytes) of the current snapshot, as its summary says them: data files and deletion vectors."""
        with errors("read a snapshot's summary"):
            snapshot = self._operations.current().currentSnapshot()
            said = {} if snapshot is None else self._use.values.strings(snapshot.summary())
        rows, gone, taken = (int(said.get(key, 0)) for key in ("total-records", "total-position-deletes", "total-files-size"))
        return rows - gone, taken

    def needed(self, *, vectors_only: bool = False) -> frozenset[str]:
        """The names of all files that any snapshot needs, those of other branches and tags among them. ``vectors_only``: those of deletion
        vectors."""
        with errors("look for the files that its snapshots need"):
            use, io, manifests = self._use, self._java.io(), self._use.values.hash_set()
            snapshots = use.values.lists.newArrayList(self._java.snapshots())
            for number in range(snapshots.size()):
                snapshot = snapshots.get(number)
                manifests.addAll(snapshot.deleteManifests(io) if vectors_only else snapshot.allManifests(io))
            found: set[str] = set()
            for manifest in use.values.lists.newArrayList(manifests):
                paths = use.manifest_files.readPaths(manifest, io, self._java.specs())
                try:
                    found.update(Path(path).name for path in use.values.texts(use.values.lists.newArrayList(paths)))
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
            return _data_file(self._use.files.data(self._java, path))

    def vector(self, puffin: Path, size: int, of: DataFile, blob: Blob) -> Vector:
        """A deletion vector that was just written."""
        with errors("describe a deletion vector"):
            described = self._use.files.vector(self._java, puffin, size, of.location, blob)
            return Vector(of.location, str(puffin), blob.offset, blob.length, described)

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
                    case Drop(name):
                        update.deleteColumn(name)
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
        (then refresh and look again), and StoreError, not retryable, where a file that the table needs was deleted."""
        try:
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
        except Vanished:
            self.files()  # raises what no waiting brings back
            raise
        self._committed()

    def _committed(self) -> None:
        """A commit of ours was taken, which a table that is opened again says, too: whatever fails from here on is tried again."""
        with errors("read what it has committed"):
            self._renew()
        with errors("sync what it has committed"):
            self._metadata.sync()
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
        update.validateDeletedFiles().validateDataFilesExist(
            self._use.values.java_list(vector.of for vector in changes.add_vectors)
        )
        if self.snapshot is not None:
            update.validateFromSnapshot(self.snapshot)
        return update.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()

    def _kind(self, kind: str) -> Any:
        return self._use.types.fromPrimitiveString(kind)

    def _refuse_the_past(self) -> None:
        """Iceberg takes no commit of a time before the table's last one, and calls it a bug of its own."""
        ahead_s = self._seen.updated_ms / 1e3 - time.time()
        if ahead_s > _CLOCKS_DIFFER_S:
            by = f"{ahead_s / 3600:.0f} h" if ahead_s >= 7200 else f"{ahead_s / 60:.0f} min"
            raise StoreError(
                f"this machine's clock is {by} before the last commit of the warehouse's table {self.name}, and Iceberg commits in order of time",
                retryable=True,
                hint="set the clock right; the store goes on by itself when that time has come again",
            )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Raises CommitConflict where anybody has committed since the table was looked at last. (Iceberg's own update of properties looks again by itself, and
        writes over what it finds.)"""
        self._refuse_the_past()
        with commit_errors():
            base = self._operations.current()
            given = self._use.values.hash_map(base.properties())
            for key, value in properties.items():
                given.put(key, value)
            self._operations.commit(base, base.replaceProperties(given))
        self._committed()

    def expire(self, older_than_ms: int) -> None:
        """Forgets snapshots older than that, and deletes the files that only they needed: not before the metadata without them is durable, for
        a power cut brings the former back."""
        with errors("look for what has expired"):
            unneeded, keep = self._use.values.kept()
        with commit_errors():
            expiry = self._java.expireSnapshots().expireOlderThan(older_than_ms).retainLast(2)
            expiry.cleanExpiredFiles(True).deleteWith(keep).commit()
        self._committed()
        with errors("delete what has expired"):
            paths = [Path(_local(location)) for location in self._use.values.texts(unneeded)]
        # A Puffin file holds the vectors of several data files, and Iceberg names it as soon as one of them is needed no longer.
        needed = self.needed(vectors_only=True) if any(path.suffix == ".puffin" for path in paths) else frozenset()
        with errors("delete what has expired"):
            for path in paths:
                if path.name in needed:
                    continue
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
            self._metadata.sync()
            for folder in (self.location, *self.location.parents):
                sync(folder)
                if folder.samefile(warehouse):
                    break
            sync(warehouse.parent)


def _data_file(java: Any) -> DataFile:
    location: str = java.location()
    return DataFile(
        _local(location), location, java.recordCount(), java.fileSizeInBytes(), java, java.firstRowId(), java.dataSequenceNumber()
    )


def _local(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")
