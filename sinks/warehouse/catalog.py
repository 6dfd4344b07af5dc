"""Tables, their files, and commits, by Iceberg's Java library (its classes are in ``java``) in Spark's JVM; no Spark job runs. Who says which version of a
table is the newest differs: its folder (``foldercatalog``) or a catalog beside the files (``servedcatalog``).

Everything that a commit does is one Iceberg transaction: the snapshot (with position and commit LSN in its summary), the table's
properties and nothing between them. Raises StoreError only.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError

from cdc.errors import StoreError
from cdc.model.lineage import Mark
from sinks.warehouse.columns import Add, Change, Drop, IcebergField, Rename, Widen, parse_schema
from sinks.warehouse.disk import Lacking
from sinks.warehouse.failures import CommitConflict, Vanished, commit_errors, errors, java_name
from sinks.warehouse.java import Java
from sinks.warehouse.marks import EPOCH_KEY, SOURCE_KEY, Signed
from sinks.warehouse.storage import Storage
from sinks.warehouse.vectors import Blob
from sinks.warehouse.versions import KEPT_VERSIONS, read_version

_CLOCKS_DIFFER_S: Final = 60
"""By so much Iceberg lets the clocks of a table's writers differ."""

TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
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


Seen = TypeVar("Seen")


class Catalog(Protocol):
    """Which tables there are, and where. Raises StoreError only."""

    def load(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        """None where there is none."""
        ...

    def create(self, namespace: Sequence[str], name: str, schema: str, properties: Mapping[str, str]) -> IcebergTable:
        """Nothing of the new table is durable before its ``sync_all``."""
        ...

    def remains(self, namespace: Sequence[str], name: str) -> set[str | None] | None:
        """The stores that a table there names as its own, also where nobody can read it as a table; None among them: nobody says. None: nothing is there."""
        ...

    def way_out(self, namespace: Sequence[str], name: str) -> str:
        """Says what an operator does by hand so that nothing is there."""
        ...

    def remove(self, namespace: Sequence[str], name: str) -> None:
        """Removes the table, whole or not: its metadata and its data, and nothing that lies beside them."""
        ...

    def tables(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """(namespace, name) of every table that may be the store's."""
        ...

    def close(self) -> None: ...


class IcebergTable(ABC):
    """One table at the version that was loaded or refreshed last."""

    def __init__(self, use: Java, load: Callable[[], Any], storage_of: Callable[[str], Storage]) -> None:
        """load: gives Iceberg's object for the table at its newest version. storage_of: what a location is read and written with."""
        self._use = use
        self._load = load
        self._java = load()
        self._operations = self._java.operations()
        self.place: str = local(self._java.location())
        """The folder of its files, as a location in ``storage``."""
        self.storage = storage_of(self.place)
        self._seen = read_version(use, self._operations.current(), None)

    @abstractmethod
    def changed(self) -> bool:
        """Whether anything happened to the table's metadata, by whomever, since this object last looked."""

    @abstractmethod
    def _another(self) -> bool:
        """Looks again: whether another version of the table stands there than was read last. What a commit that was broken off has left beside it is none."""

    @abstractmethod
    def refresh(self) -> None:
        """Raises Gone."""

    @abstractmethod
    def sync_all(self) -> None:
        """For whoever will write: all that was found is durable from here on."""

    @abstractmethod
    def _look(self, look: Callable[[], Seen]) -> Seen:
        """Returns what ``look`` finds in the table's metadata. Raises Vanished while files come or go there, and Lacking when one is missing and nothing
        changes."""

    @abstractmethod
    def _settle(self) -> None:
        """Makes durable what was just committed; from now on ``changed`` speaks of what comes after it."""

    @abstractmethod
    def refuse_lacking(self, missing: Callable[[], str | None]) -> None:
        """Raises what ``files`` does where the table still lacks a data file after a while. ``missing``: names it, or None."""

    @property
    def fields(self) -> tuple[IcebergField, ...]:
        return self._seen.fields

    @property
    def properties(self) -> Mapping[str, str]:
        return self._seen.properties

    @property
    def version(self) -> str:
        """Where the metadata lie that were looked at last."""
        return self._seen.file

    @property
    def snapshot(self) -> int | None:
        """The id of the current one."""
        return self._seen.snapshot

    @property
    def mark(self) -> Mark | None:
        """The mark of the rows that are there now."""
        return self._seen.mark

    def _renew(self) -> None:
        self._seen = read_version(self._use, self._operations.current(), self._seen)

    @property
    def name(self) -> str:
        """The table of the source, or of ours where it is none of those."""
        return self.properties.get(SOURCE_KEY, self.place.rpartition("/")[2])

    @property
    def epoch(self) -> int:
        """The highest writer's that committed here."""
        return int(self.properties.get(EPOCH_KEY, 0))

    def files(self) -> list[tuple[DataFile, Vector | None]]:
        """Every live data file and its deletion vector. Raises what ``looked_at`` does; Vanished where another version stands there by now than was read."""
        try:
            return self._look(self._files)
        except Lacking:
            if self._another():  # such as a copy that was put back, which may well have all its files
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
                    found.update(map(name_of, use.values.texts(use.values.lists.newArrayList(paths))))
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
        return Vector(file.location, local(delete.location()), delete.contentOffset(), delete.contentSizeInBytes(), delete)

    def data_file(self, path: str) -> DataFile:
        """A Parquet file that was just written, with its column bounds, ready to be committed."""
        with errors("describe a data file"):
            return _data_file(self._use.files.data(self._java, path, self.storage.size(path)))

    def vector(self, puffin: str, size: int, of: DataFile, blob: Blob) -> Vector:
        """A deletion vector that was just written."""
        with errors("describe a deletion vector"):
            described = self._use.files.vector(self._java, puffin, size, of.location, blob)
            return Vector(of.location, puffin, blob.offset, blob.length, described)

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
        """Makes everything durable at once, as a snapshot of its own also when no row changes. Raises CommitConflict (also where anybody has committed
        anything since the table was looked at last) or CommitUnknown (then refresh and look again), and StoreError, not retryable, where a file that the
        table needs was deleted."""
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
                self._replace_what_was_seen(pending.java)
        except Vanished:
            self.files()  # raises what no waiting brings back
            raise
        self._committed()

    def _replace_what_was_seen(self, transaction: Any) -> None:
        """Iceberg's own end of a transaction looks again, and commits over what it finds there as long as no file contradicts: so a writer that slept would
        set back a mark, and a merge would win over rows."""
        base, made = transaction.startMetadata(), transaction.currentMetadata()
        try:
            if base.metadataFileLocation() != self._seen.file:
                raise CommitConflict
            self._operations.commit(base, made)
        except CommitConflict:
            self._remove_manifests(base, made)
            raise
        except Py4JJavaError as error:
            if java_name(error) == "CommitFailedException":
                self._remove_manifests(base, made)
            raise

    def _remove_manifests(self, base: Any, made: Any) -> None:
        """Removes the lists of files that a refused commit has written. Nobody needs them, and nobody knows them but us."""
        snapshot, io, before = made.currentSnapshot(), self._java.io(), base.currentSnapshot()
        if snapshot is None or (before is not None and before.snapshotId() == snapshot.snapshotId()):
            return
        with suppress(Py4JError, OSError, StoreError):
            known = set() if before is None else {one.path() for one in before.allManifests(io)}
            for path in ({one.path() for one in snapshot.allManifests(io)} - known) | {snapshot.manifestListLocation()}:
                self.storage.remove(local(path))

    def _committed(self) -> None:
        """A commit of ours was taken, which a table that is opened again says, too: whatever fails from here on is tried again."""
        with errors("read what it has committed"):
            self._renew()
        with errors("sync what it has committed"):
            self._settle()

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
            if base.metadataFileLocation() != self._seen.file:
                raise CommitConflict
            given = self._use.values.hash_map(base.properties())
            for key, value in properties.items():
                given.put(key, value)
            self._operations.commit(base, base.replaceProperties(given))
        self._committed()

    def expire(self, older_than_ms: int, kept: Set[int] = frozenset()) -> None:
        """Forgets snapshots older than that, and deletes the files that only they needed: not before the metadata without them is durable, for
        a power cut brings the former back. ``kept``: the ids of snapshots that stay, with all that came after them."""
        with errors("look for what has expired"):
            unneeded, keep = self._use.values.kept()
            found = [snapshot for one in kept if (snapshot := self._operations.current().snapshot(one)) is not None]
            older_than_ms = min([older_than_ms, *(snapshot.timestampMillis() for snapshot in found)])
        with commit_errors():
            expiry = self._java.expireSnapshots().expireOlderThan(older_than_ms).retainLast(2)
            expiry.cleanExpiredFiles(True).deleteWith(keep).commit()
        self._committed()
        with errors("delete what has expired"):
            paths = [local(location) for location in self._use.values.texts(unneeded)]
        # A Puffin file holds the vectors of several data files, and Iceberg names it as soon as one of them is needed no longer.
        needed = self.needed(vectors_only=True) if any(path.endswith(".puffin") for path in paths) else frozenset()
        with errors("delete what has expired"):
            for path in paths:
                if name_of(path) not in needed:
                    self.storage.remove(path)


def _data_file(java: Any) -> DataFile:
    location: str = java.location()
    return DataFile(
        local(location), location, java.recordCount(), java.fileSizeInBytes(), java, java.firstRowId(), java.dataSequenceNumber()
    )


def name_of(location: str) -> str:
    return location.rpartition("/")[2]


def local(location: str) -> str:
    """A location as ``Storage`` takes it."""
    return location.removeprefix("file://").removeprefix("file:")
