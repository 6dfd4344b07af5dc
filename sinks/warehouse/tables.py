"""The tables of one store that are there, by topic: found, made, kept up, and looked at for files that they lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cdc.errors import StoreError
from cdc.model.position import Cut
from cdc.model.topic import TopicSchema
from sinks.warehouse.catalog import Catalog, IcebergTable
from sinks.warehouse.columns import first_schema
from sinks.warehouse.cuts import CutsTable
from sinks.warehouse.leftovers import Leftovers
from sinks.warehouse.marks import SOURCE_KEY, STORE_KEY, TABLE_KEY, Signed
from sinks.warehouse.names import place_of
from sinks.warehouse.options import Options
from sinks.warehouse.place import KeyCache, TablePlace
from sinks.warehouse.scratch import Scratch
from sinks.warehouse.upkeep import Upkeep


class WarehouseTables:
    """Over one opened sink. ``writing``: what is found here is counted on."""

    def __init__(self, store: str, options: Options, catalog: Catalog, keys: KeyCache, scratch: Scratch, *, writing: bool) -> None:
        self.places: dict[str, TablePlace] = {}
        self.upkeep: dict[str, Upkeep] = {}
        self._store = store
        self._options = options
        self._catalog = catalog
        self._keys = keys
        self._scratch = scratch
        self._writing = writing
        self.cuts: CutsTable | None = None
        if options.cuts and writing:
            self.cuts = CutsTable(store, options.namespace, catalog, scratch.owner, options.keep_snapshots_s)

    def __iter__(self) -> Iterator[TablePlace]:
        return iter(self.places.values())

    def load(self, schemas: Iterable[TopicSchema]) -> None:
        """Takes in those that are there. One that was known and is gone stays away."""
        for schema in schemas:
            if schema.topic not in self.places:
                found = self._catalog.load(*self.path(schema))
                if found is not None and _owner(found) == (schema.topic, self._store):
                    self.add(schema.topic, found)

    def make(self, schema: TopicSchema, signed: Callable[[], Signed]) -> IcebergTable:
        """The table, which is made where there is none. Raises StoreError where another store's, or another table, is in the way."""
        namespace, name = self.path(schema)
        found = self._catalog.load(namespace, name)
        if found is None:
            properties = {SOURCE_KEY: schema.topic, TABLE_KEY: schema.to_json(), **signed().properties()}
            found = self._catalog.create(namespace, name, first_schema(schema), properties)
        source, store = _owner(found)
        if (source, store) != (schema.topic, self._store):
            raise StoreError(
                f"the warehouse's table {'.'.join((*namespace, name))} belongs to store {store} and source table {source}",
                retryable=False,
                hint="give this store another path or a namespace of its own",
            )
        return found

    def snapshots(self, schemas: Iterable[TopicSchema]) -> dict[str, int]:
        """Table, with its namespace → the snapshot that it stands at."""
        found = {}
        for schema in schemas:
            place = self.places.get(schema.topic)
            if place is not None and place.iceberg.snapshot is not None:
                namespace, name = self.path(schema)
                found[".".join((*namespace, name))] = place.iceberg.snapshot
        return found

    def beyond(self, cut: Cut) -> bool:
        """Whether a table holds more than the cut: a writer that ended within a commit has left it so, and no snapshot of it is at the cut."""
        return any(place.position > cut.position for place in self)

    def _read_by_somebody(self) -> set[int]:
        return self._scratch.pins() | (set() if self.cuts is None else self.cuts.snapshots())

    def newest(self, schema: TopicSchema) -> TablePlace | None:
        """The table's place at its newest snapshot, to be read; None when the warehouse has no such table."""
        found = self._catalog.load(*self.path(schema))
        return None if found is None else TablePlace(found, self._options, self._keys)

    def path(self, schema: TopicSchema) -> tuple[tuple[str, ...], str]:
        """The table's namespace and name."""
        return place_of(schema, self._options.namespace)

    def look_for_files(self) -> None:
        """Raises StoreError when a table lacks a file that it needs: no reader can do without. Asks Iceberg for one table's files at most."""
        unlisted = next((place for place in self if not place.listed), None)
        for place in self:
            if place.listed or place is unlisted:
                refuse_missing(place)

    def add(self, source: str, table: IcebergTable) -> None:
        """The topic's place is this one."""
        if self._writing:
            table.sync_all()  # the next ledger counts on what was found here
        place = self.places[source] = TablePlace(table, self._options, self._keys, self._scratch.owner)
        self.upkeep[source] = Upkeep(place, self._options, Leftovers(place, self._scratch.lives), self._read_by_somebody)


def refuse_missing(place: TablePlace) -> None:
    """Raises StoreError when the table lacks a file that it needs: no reader can do without."""
    if place.missing() is not None:
        place.look_again()  # others may have merged it with its neighbours
        if place.missing() is not None:
            place.iceberg.refuse_lacking(place.missing)


def _owner(table: IcebergTable) -> tuple[str | None, str | None]:
    """The source's table and the store."""
    return table.properties.get(SOURCE_KEY), table.properties.get(STORE_KEY)
