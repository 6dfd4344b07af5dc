"""The tables of one store that are there, by topic: found, made, kept up, and looked at for files that they lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from cdc.errors import StoreError
from cdc.model.lineage import Mark
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.rowversions import history_topic
from sinks.versionage import VersionAge
from sinks.warehouse.catalog import Catalog, IcebergTable
from sinks.warehouse.columns import first_schema
from sinks.warehouse.cuts import CutsTable
from sinks.warehouse.historyplace import HistoryPlace, history_name, history_schema
from sinks.warehouse.historyupkeep import HistoryUpkeep
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.leftovers import Leftovers
from sinks.warehouse.marks import SOURCE_KEY, STORE_KEY, TABLE_KEY, Signed
from sinks.warehouse.names import place_of
from sinks.warehouse.options import Options
from sinks.warehouse.place import TablePlace
from sinks.warehouse.scratch import Scratch
from sinks.warehouse.upkeep import Upkeep


class WarehouseTables:
    """Over one opened sink. ``writing``: what is found here is counted on."""

    def __init__(self, store: str, options: Options, catalog: Catalog, keys: KeyCache, scratch: Scratch, *, writing: bool) -> None:
        self.places: dict[str, TablePlace] = {}
        self.histories: dict[str, HistoryPlace] = {}
        """By the topic that each is of. A topic that has one is whole where both its tables are."""
        self.upkeep: dict[str, Upkeep] = {}
        """By the topic that each table is of."""
        self.history_upkeep: dict[str, HistoryUpkeep] = {}
        """The same of histories."""
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
        return chain(self.places.values(), self.histories.values())

    def load(self, schemas: Iterable[TopicSchema]) -> None:
        """Takes in those that are there. One that was known and is gone stays away."""
        for schema in schemas:
            if schema.topic not in self.places:
                found = self._catalog.load(*self.path(schema))
                if found is not None and _owner(found) == (schema.topic, self._store):
                    self.add(schema.topic, found)
            beside = self.history_path(schema)
            if beside is not None and schema.topic not in self.histories:
                found = self._catalog.load(*beside)
                if found is not None and _owner(found) == (history_topic(schema.topic), self._store):
                    self.add_history(schema.topic, found)

    def make(self, schema: TopicSchema, signed: Callable[[], Signed]) -> IcebergTable:
        """The table, which is made where there is none. Raises StoreError where another store's, or another table, is in the way."""
        columns = self._options.own_columns(schema.topic).added(first_schema(schema))
        return self._made(self.path(schema), schema.topic, schema, columns, signed)

    def make_history(self, schema: TopicSchema, signed: Callable[[], Signed]) -> IcebergTable | None:
        """The same of the topic's history; None where it has none."""
        path = self.history_path(schema)
        return None if path is None else self._made(path, history_topic(schema.topic), schema, history_schema(schema), signed)

    def _made(
        self, path: tuple[tuple[str, ...], str], of: str, schema: TopicSchema, columns: str, signed: Callable[[], Signed]
    ) -> IcebergTable:
        namespace, name = path
        found = self._catalog.load(namespace, name)
        if found is None:
            properties = {SOURCE_KEY: of, TABLE_KEY: schema.to_json(), **signed().properties()}
            found = self._catalog.create(namespace, name, columns, properties)
        source, store = _owner(found)
        if (source, store) != (of, self._store):
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
            paths = (
                (self.path(schema), self.places.get(schema.topic)),
                (self.history_path(schema), self.histories.get(schema.topic)),
            )
            for path, place in paths:
                if path is not None and place is not None and place.iceberg.snapshot is not None:
                    found[".".join((*path[0], path[1]))] = place.iceberg.snapshot
        return found

    def beyond(self, cut: Cut) -> bool:
        """Whether a table holds more than the cut: a writer that ended within a commit has left it so, and no snapshot of it is at the cut."""
        return any(place.position > cut.position for place in self)

    def _read_by_somebody(self) -> set[int]:
        return self._scratch.pins() | (set() if self.cuts is None else self.cuts.snapshots())

    def newest(self, schema: TopicSchema) -> TablePlace | None:
        """The table's place at its newest snapshot, to be read; None when the warehouse has no such table."""
        found = self._catalog.load(*self.path(schema))
        own = self._options.own_columns(schema.topic)
        return None if found is None else TablePlace(found, self._options, self._keys, own=own)

    def path(self, schema: TopicSchema) -> tuple[tuple[str, ...], str]:
        """The table's namespace and name."""
        return place_of(schema, self._options.namespace)

    def history_path(self, schema: TopicSchema) -> tuple[tuple[str, ...], str] | None:
        """The same of its history; None where it has none."""
        return history_place(schema, self._options)

    def held(self, topic: str) -> Position | None:
        """Up to here the topic's tables hold its changes; None where one of them is not there."""
        tables = self._of(topic)
        return None if None in tables else min(place.position for place in tables if place is not None)

    def mark(self, topic: str) -> Mark | None:
        """The least mark of the topic's tables, as they are now; None where one of them is not there."""
        marks = [None if place is None else place.iceberg.mark for place in self._of(topic)]
        found = [mark for mark in marks if mark is not None]
        return min(found, key=lambda mark: mark.cut.position) if len(found) == len(marks) else None

    def behind(self, topic: str) -> TablePlace | None:
        """The table of the topic that holds the least of its changes: the current one where they are equal. None where one of them is not there."""
        tables = [place for place in self._of(topic) if place is not None]
        return min(tables, key=lambda place: place.position) if len(tables) == len(self._of(topic)) else None

    def _of(self, topic: str) -> list[TablePlace | None]:
        beside = [self.histories.get(topic)] if self._options.history_of(topic) else []
        return [self.places.get(topic), *beside]

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
        own = self._options.own_columns(source)
        place = self.places[source] = TablePlace(table, self._options, self._keys, self._scratch.owner, own)
        self.upkeep[source] = Upkeep(place, self._options, Leftovers(place, self._scratch.lives), self._read_by_somebody)

    def add_history(self, source: str, table: IcebergTable) -> None:
        """The topic's history is this one."""
        if self._writing:
            table.sync_all()
        place = self.histories[source] = HistoryPlace(table, self._options, self._keys, self._scratch.owner)
        age = VersionAge(self._options.history_days_of(source))
        self.history_upkeep[source] = HistoryUpkeep(
            place, self._options, Leftovers(place, self._scratch.lives), self._read_by_somebody, age
        )


def history_place(schema: TopicSchema, options: Options) -> tuple[tuple[str, ...], str] | None:
    """Namespace and name of the topic's history; None where it has none."""
    said = options.history_of(schema.topic)
    return (place_of(schema, options.namespace)[0], history_name(schema.name, said)) if said else None


def refuse_missing(place: TablePlace) -> None:
    """Raises StoreError when the table lacks a file that it needs: no reader can do without."""
    if place.missing() is not None:
        place.look_again()  # others may have merged it with its neighbours
        if place.missing() is not None:
            place.iceberg.refuse_lacking(place.missing)


def _owner(table: IcebergTable) -> tuple[str | None, str | None]:
    """The source's table and the store."""
    return table.properties.get(SOURCE_KEY), table.properties.get(STORE_KEY)
