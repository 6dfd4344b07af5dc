"""A catalog beside the files says which version of a table is the newest: rows of a SQL database (Iceberg's ``JdbcCatalog``), or a server that speaks
Iceberg's REST protocol. Each of them takes a version only in the place of the one that the writer has seen.

A SQL database compares where the former version's metadata lie. The REST protocol sends what changes, and compares only what the writer asks for: of a change
of properties nothing but the table's id. So a table without rows (the ledger) takes an empty snapshot with each change of its properties, and the server is
asked to compare the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from sinks.warehouse.catalog import TABLE_PROPERTIES, Gone, IcebergTable, Pending, Seen, local
from sinks.warehouse.disk import Lacking, sync
from sinks.warehouse.failures import Vanished, commit_errors, errors, java_name
from sinks.warehouse.generationnames import FIRST, numbered_in
from sinks.warehouse.generationrows import GenerationRows, TableRow
from sinks.warehouse.java import Java
from sinks.warehouse.marks import GENERATION_KEY, STORE_KEY
from sinks.warehouse.names import LEDGERS
from sinks.warehouse.register import WarehouseGenerationReplaced
from sinks.warehouse.storage import LOCAL, Storage
from sinks.warehouse.versions import MetadataFiles

_STANDS_STILL_S: Final = 2.0
_FOLDERS_ABOVE: Final = 4
"""So many above a table's own may be new with it: those of its namespace, and the warehouse's."""
_NOT_THERE: Final = frozenset({"NoSuchTableException", "NoSuchNamespaceException"})
_OF_ANOTHER: Final = frozenset({"IllegalStateException", "ValidationException"})
"""So Iceberg calls it where the name belongs to another table by now."""
_TIDIES_METADATA: Final[Mapping[str, str]] = {"write.metadata.delete-after-commit.enabled": "true"}


@dataclass(frozen=True, slots=True)
class Serving:
    """How one catalog is reached. ``name``: as the catalog knows itself. ``properties``: Iceberg's, which hold secrets. ``by_snapshot``: it compares
    snapshots, not versions. ``storage_of``: gives what a location is read and written with. ``under``: the namespace of all that is ours."""

    implementation: str
    name: str
    properties: Mapping[str, str]
    by_snapshot: bool
    storage_of: Callable[[str], Storage]
    under: str | None

    def __repr__(self) -> str:
        return f"Serving({self.implementation}, {self.name})"


@dataclass(frozen=True, slots=True)
class ServedGeneration:
    """One generation in a catalog that has several. ``live``: whether its tables stand where readers look."""

    number: int
    live: bool
    rows: GenerationRows

    @property
    def properties(self) -> Mapping[str, str]:
        """Those that each of its tables has."""
        return {} if self.number == FIRST else {GENERATION_KEY: str(self.number)}

    @property
    def standing(self) -> str:
        """The catalog's name under which its tables stand."""
        return self.rows.catalog if self.live else self.rows.standing(self.number)

    def refuse_others(self, properties: Mapping[str, str]) -> None:
        """Raises WarehouseGenerationReplaced for a table of the same store, and of another generation."""
        if properties.get(STORE_KEY) == self.rows.store and int(properties.get(GENERATION_KEY, FIRST)) != self.number:
            raise WarehouseGenerationReplaced(self.rows.store)

    def removed(self, row: TableRow, where: str | None) -> str | None:
        """The table does not stand here any more. ``where``: it lies there, None: nobody can read it. Returns where nothing lies now that is another table's, None where
        something does. Raises StoreError where it is another generation's, or was changed meanwhile."""
        if where is None and numbered_in(self.rows.store, row.location) != self.number:
            raise WarehouseGenerationReplaced(self.rows.store)
        if not self.rows.remove(self.standing, row):
            raise StoreError(f"the warehouse's table {'.'.join(row.path)} was changed by somebody else", retryable=True)
        return None if self.rows.another_lies(row.folder) else where or local(row.folder)

    def row(self, namespace: Sequence[str], name: str) -> TableRow | None:
        return self.rows.row(self.standing, (".".join(namespace), name))


class ServedCatalog:
    """See ``sinks.warehouse.catalog.Catalog``. Of a store's tables it shows one generation's."""

    def __init__(self, jvm: Any, hadoop_configuration: Any, serving: Serving, generation: ServedGeneration | None = None) -> None:
        """``generation``: None where the catalog has one only."""
        self._generation = generation
        self._serving = serving

        def opened(name: str) -> Any:
            # By Iceberg's own way in, which takes the classes that Spark's loader does not have at hand.
            given = self._use.values.java_map(serving.properties)
            return jvm.org.apache.iceberg.CatalogUtil.loadCatalog(serving.implementation, name, given, hadoop_configuration)

        with errors("open the warehouse's catalog"):
            self._use = Java(jvm)
            self._open = opened
            self._apart: Any = None
            """Where the live generation's new tables are made; None until then."""
            self._java = opened(serving.name if generation is None else generation.standing)

    def load(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        for last in (False, True):
            try:
                with errors("look for a table"):
                    return self._found(namespace, name)
            except Vanished as missing:
                if last:
                    raise Lacking(".".join((*namespace, name)), "a part of its metadata") from missing
            time.sleep(_STANDS_STILL_S)
        raise AssertionError

    def _found(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        identifier = self._identifier(namespace, name)
        try:
            return self._table(identifier)
        except Py4JJavaError as error:
            if java_name(error) in _NOT_THERE:
                return None
            raise

    def create(self, namespace: Sequence[str], name: str, schema: str, properties: Mapping[str, str]) -> IcebergTable:
        with errors("create a table"):
            own = {} if self._generation is None else self._generation.properties
            given = {**TABLE_PROPERTIES, **_TIDIES_METADATA, **own, **properties}
            self._make_namespaces(self._java, namespace)
            if self._generation is not None and self._generation.live:
                self._make_apart(self._generation, namespace, name, schema, given)
            else:
                self._make_in_sight(namespace, name, schema, given)
            return self._table(self._identifier(namespace, name))

    def _make_in_sight(self, namespace: Sequence[str], name: str, schema: str, given: Mapping[str, str]) -> None:
        try:
            self._make(self._java, namespace, name, schema, given)
        except Py4JJavaError as error:
            if java_name(error) == "AlreadyExistsException" and self._found(namespace, name) is None:
                raise _taken(namespace, name) from None
            raise

    def _make(self, catalog: Any, namespace: Sequence[str], name: str, schema: str, given: Mapping[str, str]) -> None:
        parsed = self._use.schema_parser.fromJson(schema)
        catalog.createTable(self._identifier(namespace, name), parsed, self._use.unpartitioned, self._use.values.java_map(given))

    def _make_apart(
        self, generation: ServedGeneration, namespace: Sequence[str], name: str, schema: str, given: Mapping[str, str]
    ) -> None:
        """Where nobody sees it; it is shown only while the generation is live."""
        if generation.row(namespace, name) is not None and self._found(namespace, name) is None:
            raise _taken(namespace, name)
        apart = replace(generation, live=False)
        if (left := apart.row(namespace, name)) is not None:  # whoever made it died
            generation.rows.remove(apart.standing, left)
        if self._apart is None:
            self._apart = self._open(apart.standing)
        self._make_namespaces(self._apart, namespace)
        self._make(self._apart, namespace, name, schema, given)
        crashpoint("generations.catalog_table_made")
        made = apart.row(namespace, name)
        if made is None or not generation.rows.show(generation.number, made):
            raise WarehouseGenerationReplaced(generation.rows.store)

    def _table(self, identifier: Any) -> IcebergTable:
        return ServedTable(self._use, partial(self._loaded, identifier), self._serving)

    def _loaded(self, identifier: Any) -> Any:
        found = self._java.loadTable(identifier)
        if self._generation is not None:
            self._generation.refuse_others(self._use.values.strings(found.properties()))
        return found

    def _make_namespaces(self, catalog: Any, namespace: Sequence[str]) -> None:
        for deep in range(1, len(namespace) + 1):
            made = self._use.table_identifier.parse(".".join((*namespace[:deep], "t"))).namespace()
            if not catalog.namespaceExists(made):
                try:
                    catalog.createNamespace(made)
                except Py4JJavaError as error:
                    if java_name(error) != "AlreadyExistsException":
                        raise

    def remains(self, namespace: Sequence[str], name: str) -> set[str | None] | None:
        with errors("look for a table"):
            return {None} if self._java.tableExists(self._identifier(namespace, name)) else None

    def way_out(self, namespace: Sequence[str], name: str) -> str:
        return f"drop {'.'.join((*namespace, name))} in the catalog"

    def remove(self, namespace: Sequence[str], name: str) -> None:
        identifier = self._identifier(namespace, name)
        row = None if self._generation is None else self._generation.row(namespace, name)
        with errors("remove a table"):
            try:
                where: str | None = local(self._loaded(identifier).location())
            except Py4JJavaError:  # nobody can read it: where its files lie is not known
                where = None
            if self._generation is None:
                self._java.dropTable(identifier, False)
            elif row is not None:
                where = self._generation.removed(row, where)
            if where is not None:
                storage = self._serving.storage_of(where)
                for part in ("data", "metadata"):
                    storage.clear(f"{where}/{part}")

    def tables(self) -> Iterator[tuple[tuple[str, ...], str]]:
        with errors("list the catalog's tables"):
            under = self._serving.under
            whole = under is None or (self._generation is not None and not self._generation.live)  # nobody else has a table there
            first = [] if whole else [self._use.table_identifier.parse(f"{under}.t").namespace()]
            ledgers = self._use.table_identifier.parse(f"{LEDGERS}.t").namespace()
            todo = [*first, ledgers] if first else self._children(None)
            found = []
            while todo:
                namespace = todo.pop()
                todo += self._children(namespace)
                found += [str(one) for one in _listed(partial(self._java.listTables, namespace))]
        for name in found:
            *above, last = name.split(".")
            yield tuple(above), last

    def _children(self, namespace: Any | None) -> list[Any]:
        return _listed(self._java.listNamespaces if namespace is None else partial(self._java.listNamespaces, namespace))

    def close(self) -> None:
        for one in (self._java, self._apart):
            with suppress(Py4JError, OSError):
                if one is not None:
                    one.close()

    def _identifier(self, namespace: Sequence[str], name: str) -> Any:
        return self._use.table_identifier.parse(".".join((*namespace, name)))


def _taken(namespace: Sequence[str], name: str) -> StoreError:
    where = ".".join((*namespace, name))
    return StoreError(
        f"{where} is to be a table of the store, and what the catalog has there is not a table: a view has the name",
        retryable=False,
        hint=f"drop or rename {where} in the catalog, or give the table another `name`",
    )


class ServedTable(IcebergTable):
    """One table, whose catalog is asked each time whether it has changed."""

    def __init__(self, use: Java, load: Callable[[], Any], serving: Serving) -> None:
        self._serving = serving
        super().__init__(use, load, serving.storage_of)
        self._metadata = MetadataFiles(Path(self.place)) if self.storage is LOCAL else None

    def changed(self) -> bool:
        return self._newest() != self._seen.file

    def _another(self) -> bool:
        return self.changed()

    def _newest(self) -> str | None:
        """Where its newest metadata lie; None where it is gone, or another's by now."""
        with errors("ask the catalog for a table"):
            try:
                current = self._operations.refresh()
            except Py4JJavaError as error:
                if java_name(error) in _NOT_THERE | _OF_ANOTHER:
                    return None
                raise
            return None if current is None else str(current.metadataFileLocation())

    def refresh(self) -> None:
        newest = self._newest()
        if newest == self._seen.file:
            return
        with errors("read a table's metadata"):
            if newest is None:
                self._java = self._load_again()
                self._operations = self._java.operations()
            self._renew()

    def _load_again(self) -> Any:
        try:
            return self._load()
        except Py4JJavaError as error:
            if java_name(error) not in _NOT_THERE:
                raise
            raise Gone(self.name) from error

    def begin(self) -> Pending:
        try:
            return super().begin()
        except StoreError:
            if self._newest() is None:  # Iceberg looks again by itself, and calls that a contradiction
                raise Gone(self.name) from None
            raise

    def _look(self, look: Callable[[], Seen]) -> Seen:
        for _ in range(2):
            try:
                return look()
            except Vanished as error:
                missing = error
            if self.changed():
                raise missing
            time.sleep(_STANDS_STILL_S)
        raise Lacking(self.name, "a part of its metadata") from missing

    def _settle(self) -> None:
        """On object storage the files were durable before the catalog was asked."""
        self.sync_all()

    def sync_all(self) -> None:
        if self._metadata is not None:
            with errors("sync a table's metadata"):
                self._metadata.sync()
                for folder in (Path(self.place), *Path(self.place).parents[:_FOLDERS_ABOVE]):
                    sync(folder)

    def refuse_lacking(self, missing: Callable[[], str | None]) -> None:
        time.sleep(_STANDS_STILL_S)
        if (name := missing()) is not None:
            raise Vanished("look at a table's files", self.name) if self.changed() else Lacking(self.name, name)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        if not self._serving.by_snapshot:
            super().set_properties(properties)
            return
        self._refuse_the_past()
        with commit_errors():
            base = self._operations.current()
            transaction = self._java.newTransaction()
            if transaction.startMetadata().metadataFileLocation() != base.metadataFileLocation():
                raise StoreError(f"the warehouse's table {self.name} was changed by somebody else", retryable=True)
            former = list(transaction.startMetadata().snapshots())
            transaction.newAppend().commit()
            update = transaction.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
            for snapshot in former:
                transaction.expireSnapshots().expireSnapshotId(snapshot.snapshotId()).cleanExpiredFiles(False).commit()
            self._operations.commit(base, transaction.currentMetadata())
        self._committed()
        with errors("delete what has expired"):
            for snapshot in former:
                self.storage.remove(local(snapshot.manifestListLocation()))


def _listed(ask: Callable[[], Any]) -> list[Any]:
    """None where somebody has just removed what was asked about."""
    try:
        return list(ask())
    except Py4JJavaError as error:
        if java_name(error) in _NOT_THERE:
            return []
        raise
