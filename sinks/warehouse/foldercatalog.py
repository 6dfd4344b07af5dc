"""A folder of tables is its own catalog: of type ``hadoop``, where the newest version of a table is the highest that was renamed into its folder. That takes
a file system whose rename is atomic, which object storage has not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from sinks.warehouse.catalog import TABLE_PROPERTIES, Gone, IcebergTable, Seen, local
from sinks.warehouse.disk import looked_at, refuse_lacking, stamp, sync
from sinks.warehouse.erasure import holds_table, owners, put_aside, tables_in
from sinks.warehouse.failures import Vanished, errors, java_name
from sinks.warehouse.java import Java
from sinks.warehouse.storage import LOCAL
from sinks.warehouse.versions import MetadataFiles

_KEEPS_METADATA: Mapping[str, str] = {
    # Old metadata is deleted by ``versions``: Iceberg's own way of doing it takes a third of a commit.
    "write.metadata.delete-after-commit.enabled": "false"
}


class FolderCatalog:
    """See ``sinks.warehouse.catalog.Catalog``."""

    def __init__(self, jvm: Any, hadoop_configuration: Any, path: Path, aside: Path) -> None:
        """``aside``: a folder in the same file system, whose content does not count."""
        with errors("open the warehouse"):
            self._use = Java(jvm)
            self._path = path
            self._aside = aside
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
            return FolderTable(self._use, partial(self._java.loadTable, identifier), self._path) if there else None

    def create(self, namespace: Sequence[str], name: str, schema: str, properties: Mapping[str, str]) -> IcebergTable:
        with errors("create a table"):
            given = self._use.values.java_map({**TABLE_PROPERTIES, **_KEEPS_METADATA, **properties})
            parsed = self._use.schema_parser.fromJson(schema)
            identifier = self._identifier(namespace, name)
            self._java.createTable(identifier, parsed, self._use.unpartitioned, given)
            return FolderTable(self._use, partial(self._java.loadTable, identifier), self._path)

    def remains(self, namespace: Sequence[str], name: str) -> set[str | None] | None:
        folder = self._path.joinpath(*namespace, name)
        return owners(folder) if holds_table(folder) else None

    def way_out(self, namespace: Sequence[str], name: str) -> str:
        return f"move {self._path.joinpath(*namespace, name)} away"

    def remove(self, namespace: Sequence[str], name: str) -> None:
        put_aside(self._path.joinpath(*namespace, name), self._aside)

    def tables(self) -> Iterator[tuple[tuple[str, ...], str]]:
        for location in tables_in(self._path):
            yield location.relative_to(self._path).parts[:-1], location.name

    def close(self) -> None: ...

    def _identifier(self, namespace: Sequence[str], name: str) -> Any:
        return self._use.table_identifier.parse(".".join((*namespace, name)))


class FolderTable(IcebergTable):
    """One table of a folder, of which only the file system is asked whether it has changed."""

    def __init__(self, use: Java, load: Callable[[], Any], warehouse: Path) -> None:
        super().__init__(use, load, lambda _: LOCAL)
        self.location = Path(self.place)
        self._warehouse = warehouse
        self._metadata = MetadataFiles(self.location)
        self._stamp = self._stamped()

    def changed(self) -> bool:
        return self._stamp != self._stamped()

    def _another(self) -> bool:
        before = self._seen.file, self._stamp[1]
        self.refresh()
        return (self._seen.file, self._stamped()[1]) != before

    def refresh(self) -> None:
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
            return stamp(self._metadata.folder), stamp(Path(local(self._seen.file)))

    def _load_again(self) -> Any:
        try:
            return self._load()
        except Py4JJavaError as error:
            if java_name(error) != "NoSuchTableException":
                raise
            raise Gone(self.name) from error

    def _look(self, look: Callable[[], Seen]) -> Seen:
        return looked_at(self.name, self.location, look)

    def _settle(self) -> None:
        self._metadata.sync()
        self._stamp = self._stamped()

    def refuse_lacking(self, missing: Callable[[], str | None]) -> None:
        refuse_lacking(self.name, self.location, missing)

    def sync_all(self) -> None:
        """Everything of the table's metadata, and every folder from there up to the one that the warehouse's is in.

        What a file system shows may still be in memory alone: the process that committed it (or made the table) died before it was synced,
        or the disk failed. No mark says so, not even one that the ledger has reached, for a merge of files leaves the mark as it is. So a
        writer counts on nothing that it finds, and syncs it all once; what is durable already costs next to nothing. Data files and
        deletion vectors need none of it: they are synced before the commit that names them.
        """
        with errors("sync a table's metadata"):
            self._metadata.sync()
            for folder in (self.location, *self.location.parents):
                sync(folder)
                if folder.samefile(self._warehouse):
                    break
            sync(self._warehouse.parent)
