"""The warehouse: one Iceberg table per source table, holding its current rows, written without a Spark job.

pyarrow writes the data files and the deletion vectors, Iceberg's library in Spark's JVM commits them: one commit per touched table and
cut, with position and commit LSN inside. The store's own ``applied`` lies in a ledger table's properties and may lag behind the tables;
each table skips what it holds already. Readers need nothing of ours: Spark, Trino, DuckDB read Iceberg v3.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import EXACT, POSITION, table_of
from cdc.model.position import ZERO_CUT, Cut
from cdc.model.table import Table
from sinks.contract import NOTHING, Outcome, Shape, audit_schema
from sinks.warehouse.catalog import (
    SOURCE_KEY,
    STORE_KEY,
    TABLE_KEY,
    Catalog,
    CommitConflict,
    CommitUnknown,
    IcebergTable,
    cut_of,
    cut_properties,
)
from sinks.warehouse.columns import first_schema, labels, to_text
from sinks.warehouse.keys import encode, key_plan
from sinks.warehouse.names import LEDGERS, STAGING, place_of, safe
from sinks.warehouse.options import Options
from sinks.warehouse.place import KeyCache, Place
from sinks.warehouse.staging import Scratch, Staging
from sinks.warehouse.typedtext import typed
from sinks.warehouse.upkeep import Upkeep

SessionFactory = Callable[[], Any]
_LEDGER_SCHEMA: Final = '{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"store","required":false,"type":"string"}]}'
_HELD: Final = "headwater.held."
_PLACE: Final = "headwater.place."

_factory: SessionFactory | None = None


def use_session(factory: SessionFactory) -> None:
    """Says where a SparkSession comes from when a warehouse is opened (the room that makes sessions is above this one)."""
    global _factory
    _factory = factory


class Warehouse:
    """See ``sinks.contract.Sink``. ``open`` starts Spark's JVM when none runs yet."""

    parallel = False

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self._path = options.path.absolute()
        self._scratch = Scratch(self._path / STAGING / safe(name))
        self._staging = Staging(self._scratch, options.staged_bytes)
        self._keys = KeyCache(options.key_cache_bytes)
        self._places: dict[str, Place] = {}
        self._upkeep: dict[str, Upkeep] = {}
        self._applied = ZERO_CUT
        self._spark: Any = None
        self._catalog: Catalog | None = None
        self._ledger: IcebergTable | None = None

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:  # noqa: ARG002
        if self.options.history:
            raise StoreError("the warehouse keeps no history yet", retryable=False, hint="leave history out of [stores]")
        self._spark = _session()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the warehouse's folder cannot be made: {error.strerror}", retryable=True) from error
        self._catalog = Catalog(self._spark._jvm, self._spark._jsc.hadoopConfiguration(), self._path)
        self._places.clear()
        self._upkeep.clear()
        self._staging.clear()
        with suppress(OSError):
            self._scratch.sweep()
        self._ledger = self._catalog.load((LEDGERS,), safe(self.name)) or self._catalog.create(
            (LEDGERS,), safe(self.name), _LEDGER_SCHEMA, {STORE_KEY: self.name}
        )
        self._applied = self._held(cut_of(self._ledger.properties))
        return self._applied

    def _held(self, applied: Cut) -> Cut:
        """What the tables really hold of what the ledger says: a table that was lost or restored older rewinds the store."""
        assert self._ledger is not None
        assert self._catalog is not None
        lowest = applied
        for key, value in self._ledger.properties.items():
            if not key.startswith(_HELD):
                continue
            source = key.removeprefix(_HELD)
            *namespace, name = self._ledger.properties[_PLACE + source].split(".")
            table = self._catalog.load(namespace, name)
            cut = ZERO_CUT if table is None else table.cut()
            if table is not None:
                self._add(source, table)
            if cut.position < int(value) and cut.position < lowest.position:
                lowest = cut
        return lowest

    def prepare(self, table: Table) -> None:
        if table.qualified in self._places:
            return
        namespace, name = place_of(table, self.options.namespace)
        found = self._opened().load(namespace, name)
        if found is None:
            properties = {SOURCE_KEY: table.qualified, STORE_KEY: self.name, TABLE_KEY: table.to_json()}
            found = self._opened().create(namespace, name, first_schema(table), properties)
        owner = (found.properties.get(SOURCE_KEY), found.properties.get(STORE_KEY))
        if owner != (table.qualified, self.name):
            raise StoreError(
                f"the warehouse's table {'.'.join((*namespace, name))} belongs to store {owner[1]} and source table {owner[0]}",
                retryable=False,
                hint="give this store another path or a namespace of its own",
            )
        self._add(table.qualified, found)

    def shape(self, topic: str) -> Shape | None:
        """Moves with the table's commits: what is staged does not count."""
        place = self._places.get(topic)
        if place is None:
            schema, _, name = topic.partition(".")
            place = self._place(Table(0, schema, name, ()))
        known = None if place is None else place.known()
        return None if place is None or known is None else Shape(known, place.cut().position)

    def _add(self, source: str, table: IcebergTable) -> None:
        self._places[source] = Place(self.name, table, self.options, self._keys)
        self._upkeep[source] = Upkeep(self._places[source], self.options)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if not changes.num_rows:
            return NOTHING
        table = table_of(changes.schema)
        if table.qualified not in self._places:
            self.prepare(table)
        held = max(self._places[table.qualified].cut().position, self._applied.position)
        fresh = changes
        positions = changes.column(POSITION).to_numpy()
        if positions[0] <= held:
            fresh = changes.slice(int(np.searchsorted(positions, held, side="right")))
        if fresh.num_rows:
            self._staging.add(table.qualified, fresh)
        return Outcome(fresh.num_rows, stale=changes.num_rows - fresh.num_rows)

    def commit(self, cut: Cut) -> None:
        if (cut.position, cut.commit_lsn) <= (self._applied.position, self._applied.commit_lsn):
            return
        self._applied = self.applied()
        if cut.position <= self._applied.position and self._staging.tables:
            # Somebody else has followed this far in the meantime.
            self._staging.clear()
            return
        held: dict[str, str] = {}
        for name in self._staging.tables:
            place = self._places[name]
            batches = self._staging.batches(name)
            crashpoint("warehouse.before_table")
            place.write(batches, cut)
            namespace, table = place_of(table_of(batches[-1].schema), self.options.namespace)
            held |= {_HELD + name: str(cut.position), _PLACE + name: ".".join((*namespace, table))}
            self._staging.drop(name)
        self._staging.clear()
        self._record(cut, held)
        for name in (key.removeprefix(_HELD) for key in held if key.startswith(_HELD)):
            self._upkeep[name].after_commit()

    def _record(self, cut: Cut, held: dict[str, str]) -> None:
        assert self._ledger is not None
        try:
            crashpoint("warehouse.before_ledger")
            self._ledger.set_properties({**cut_properties(cut), **held})
            crashpoint("warehouse.ledger_written")
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError("the warehouse's ledger was changed by somebody else", retryable=True) from error
        self._applied = cut

    def applied(self) -> Cut:
        if self._ledger is None:
            raise StoreError("the warehouse is not open", retryable=True)
        version = self._ledger.version
        self._ledger.refresh()
        # ``open`` may have found less in the tables than the ledger says, and that stands until the next commit.
        return self._applied if self._ledger.version == version else cut_of(self._ledger.properties)

    def make_visible(self) -> None:
        """Nothing to do: a commit is visible to every reader that looks afterwards."""

    def as_held(self, rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        """Read by Spark, not by our own code, so that an audit sees what every reader of the table sees."""
        place = self._place(table)
        if place is None:
            return
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # Spark remembers a catalog, and so the folder, by its name as long as the session lives.
        catalog = f"headwater_{safe(self.name)}_{hashlib.sha256(str(self._path).encode()).hexdigest()[:16]}"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": self._path,
            ".cache-enabled": "false",
        }.items():
            self._spark.conf.set(f"spark.sql.catalog.{catalog}{key}", str(value))
        wanted = [field.name for field in place.iceberg.fields if field.name in {*labels(table).values(), EXACT}]
        namespace, name = place_of(table, self.options.namespace)
        frame = self._spark.table(".".join(f"`{part}`" for part in (catalog, *namespace, name)))
        # Numbered, because Spark's own reading of names knows dots and backquotes.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        frame = numbered.select(*(f"c{frame.columns.index(name)}" for name in wanted))
        folder = self._scratch.folder() / f"scan-{uuid4().hex}"
        try:
            frame.write.parquet(str(folder))
            for path in sorted(folder.glob("*.parquet")):
                for batch in pq.ParquetFile(path).iter_batches():
                    rows = pa.Table.from_batches([batch]).rename_columns(wanted)
                    yield from to_text(rows, table).to_batches()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        place = self._place(table)
        plan = key_plan(table)
        found = [audit_schema(table).empty_table()]
        if place is not None and plan is not None and keys.num_rows:
            columns = typed(keys, table)
            wanted = encode(plan, columns.__getitem__, keys.num_rows)
            found += [place.rows(path, positions, table) for path, positions in place.find(plan, table, wanted).items()]
        return pa.concat_tables(found).combine_chunks().to_batches(max_chunksize=None)[0] if any(map(len, found)) else _empty(table)

    def _place(self, table: Table) -> Place | None:
        """The table's place at its newest snapshot; None when the warehouse has no such table."""
        namespace, name = place_of(table, self.options.namespace)
        found = self._opened().load(namespace, name)
        return None if found is None else Place(self.name, found, self.options, self._keys)

    def _opened(self) -> Catalog:
        if self._catalog is None:
            raise StoreError("the warehouse is not open", retryable=True)
        return self._catalog

    def close(self) -> None:
        with suppress(OSError):
            self._staging.clear()
        self._scratch.remove()
        self._places.clear()
        self._upkeep.clear()
        self._catalog = self._ledger = None


def make(name: str, options: Options) -> Warehouse:
    return Warehouse(name, options)


def _empty(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=audit_schema(table))


def _session() -> Any:
    if _factory is not None:
        return _factory()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        raise StoreError(
            "the warehouse needs a Spark session", retryable=False, hint="sinks.warehouse.use_session(cdc.spark.session.session)"
        )
    return active
