"""The warehouse: one Iceberg table per source table, holding its current rows, written without a Spark job.

pyarrow writes the data files and the deletion vectors, Iceberg's library in Spark's JVM commits them: one commit per touched table and
cut, with position and commit LSN inside. The store's own ``applied`` lies in a ledger table's properties and may lag behind the tables;
each table skips what it holds already. Readers need nothing of ours: Spark, Trino, DuckDB read Iceberg v3.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.log.contract import LogReader, selected
from cdc.model.batch import EXACT, POSITION, table_of
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.table import Table
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape, audit_schema
from sinks.warehouse.catalog import Catalog, IcebergTable
from sinks.warehouse.columns import first_schema, labels, to_text
from sinks.warehouse.disk import lacking
from sinks.warehouse.erasing import erase
from sinks.warehouse.failures import CommitConflict, CommitUnknown, java_name
from sinks.warehouse.keys import encode, key_plan
from sinks.warehouse.leftovers import Leftovers
from sinks.warehouse.marks import EPOCH_KEY, SOURCE_KEY, STORE_KEY, TABLE_KEY, Signed, mark_properties
from sinks.warehouse.names import LEDGERS, STAGING, place_of, safe
from sinks.warehouse.options import Options
from sinks.warehouse.place import KeyCache, Place, unmarked
from sinks.warehouse.staging import Scratch, Staging
from sinks.warehouse.typedtext import typed
from sinks.warehouse.upkeep import Upkeep

SessionFactory = Callable[[], Any]
_LEDGER_SCHEMA: Final = '{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"store","required":false,"type":"string"}]}'
_NOTHING: Final = "headwater.nothing."

_factory: SessionFactory | None = None


def use_session(factory: SessionFactory) -> None:
    """Says where a SparkSession comes from when a warehouse is opened (the room that makes sessions is above this one)."""
    global _factory
    _factory = factory


class Warehouse:
    """See ``sinks.contract.Sink``. ``open`` starts Spark's JVM when none runs yet."""

    parallel = False
    sequenced = True

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
        """As it was opened, or committed here since."""
        self._holds = ZERO_CUT
        """What the tables held when they were looked at last."""
        self._topics_seen: dict[str, Table] = {}
        self._written: Mark | None = None
        """The ledger's mark, as this sink found or left it."""
        self._log: LogReader | None = None
        self._epoch: int | None = None
        self._spark: Any = None
        self._catalog: Catalog | None = None
        self._ledger: IcebergTable | None = None

    # --- which log, and how far ------------------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self._log, self._epoch = log, epoch
        self._catalog = self._connected()
        self._places.clear()
        self._upkeep.clear()
        self._staging.clear()
        if epoch is not None:
            self._scratch.remove()  # another opening, another name
            with suppress(OSError):
                self._scratch.sweep()
        self._ledger = self._catalog.load((LEDGERS,), safe(self.name))
        self._load_places()
        applied = self._whole()
        if epoch is not None:
            self._take_ledger(epoch)
        self._written = None if self._ledger is None else self._ledger.mark
        self._applied = applied
        return applied

    def applied(self) -> Cut:
        """Asks the file system whether anything has changed, and Iceberg only where something has."""
        self._opened()
        if self._ledger is None:
            self._ledger = self._opened().load((LEDGERS,), safe(self.name))
        tables = [*([self._ledger] if self._ledger is not None else []), *(place.iceberg for place in self._places.values())]
        changed = [table for table in tables if table.changed()]
        if changed or self._written is None or self._topics_seen != self._selected():
            for table in changed:
                table.refresh()
            self._load_places()
            self._holds = self._whole()
        with _disk_errors("read"):
            self._look_for_files()
        return self._holds

    def held(self, topic: str) -> Position:
        place = self._places.get(topic)
        return self._applied.position if place is None else max(self._applied.position, place.position)

    def erase(self) -> None:
        self.close()
        with _disk_errors("emptied"):
            erase(self._connected(), self._path, self.name, self._path / STAGING / safe(self.name))
            self._scratch.sweep()

    def _connected(self) -> Catalog:
        self._spark = _session()
        return Catalog(self._spark._jvm, self._spark._jsc.hadoopConfiguration(), self._path)

    def _take_ledger(self, epoch: int) -> None:
        """From now on writers of an earlier epoch are refused."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._scratch.folder()  # from now on everybody can see that the writer of our files lives
            if self._ledger is None:
                given = {STORE_KEY: self.name, **mark_properties(self._lineage().mark(ZERO_CUT))}
                self._ledger = self._opened().create((LEDGERS,), safe(self.name), _LEDGER_SCHEMA, given)
            self._ledger.sync_all(self._path)
            if self._ledger.epoch > epoch:
                raise EpochPassed(self.name, self._ledger.epoch)
            if self._ledger.epoch < epoch:
                self._ledger.set_properties({EPOCH_KEY: str(epoch)})
        except OSError as error:
            raise StoreError(f"the warehouse's folder cannot be made: {error.strerror}", retryable=True) from error
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError("the warehouse's ledger was changed by somebody else", retryable=True) from error

    def _whole(self) -> Cut:
        """The highest cut that the ledger and every table hold. Raises Stopped for marks that are not believed."""
        applied = ZERO_CUT
        if self._ledger is not None:
            if self._ledger.mark is None:
                raise unmarked(f"the ledger of store {self.name}")
            applied = believed(self._ledger.mark, self._lineage(), f"store {self.name}")
        least = applied
        self._topics_seen = self._selected()
        for topic in self._topics_seen:
            place = self._places.get(topic)
            mark = None if place is None else place.iceberg.mark
            cut = ZERO_CUT if mark is None else believed(mark, self._lineage(), f"the table of {topic} in store {self.name}")
            holds = max(cut.position, self._nothing(topic))
            if holds < min(least.position, self._last_change(topic, applied)):
                least = cut
        self._holds = least
        return least

    def _nothing(self, topic: str) -> int:
        """Up to here the topic's changes have left nothing to hold, so there may be no table."""
        return 0 if self._ledger is None else int(self._ledger.properties.get(_NOTHING + topic, 0))

    def _selected(self) -> dict[str, Table]:
        return {} if self._log is None else {topic.name: topic.table for topic in selected(self._log, self.options.tables)}

    def _last_change(self, topic: str, upto: Cut) -> Position:
        assert self._log is not None
        return self._log.last_change(topic, upto.position)

    def _lineage(self) -> Lineage:
        lineage = None if self._log is None else self._log.lineage()
        if lineage is None:
            raise StoreError("there is no log yet that the warehouse could be compared with", retryable=True)
        return lineage

    def _load_places(self) -> None:
        """The tables of this store that are there, by topic. One that this sink knew of and that is gone stays away."""
        for topic, table in self._selected().items():
            place = self._places.get(topic)
            if place is None and (found := self._found(table)) is not None:
                self._add(topic, found)

    def _found(self, table: Table) -> IcebergTable | None:
        """The table's place, where it is this store's."""
        namespace, name = place_of(table, self.options.namespace)
        found = self._opened().load(namespace, name)
        owner = None if found is None else (found.properties.get(SOURCE_KEY), found.properties.get(STORE_KEY))
        return found if owner == (table.qualified, self.name) else None

    def _look_for_files(self) -> None:
        """Raises StoreError when a table lacks a file that it needs: no reader can do without. Asks Iceberg for one table's files at most."""
        unlisted = next((place for place in self._places.values() if not place.listed), None)
        for place in self._places.values():
            if (place.listed or place is unlisted) and place.missing() is not None:
                place.look_again()  # others may have merged it with its neighbours
                if (name := place.missing()) is not None:
                    raise lacking(place.name, name)

    # --- writing ---------------------------------------------------------------------------------------------------------------------

    def prepare(self, table: Table) -> None:
        if table.qualified in self._places:
            return
        namespace, name = place_of(table, self.options.namespace)
        found = self._opened().load(namespace, name)
        if found is None:
            signed = self._signed(ZERO_CUT).properties()
            properties = {SOURCE_KEY: table.qualified, TABLE_KEY: table.to_json(), **signed}
            found = self._opened().create(namespace, name, first_schema(table), properties)
        owner = (found.properties.get(SOURCE_KEY), found.properties.get(STORE_KEY))
        if owner != (table.qualified, self.name):
            raise StoreError(
                f"the warehouse's table {'.'.join((*namespace, name))} belongs to store {owner[1]} and source table {owner[0]}",
                retryable=False,
                hint="give this store another path or a namespace of its own",
            )
        if found.mark is not None:  # ``open`` has looked only at the tables of topics that the log had
            believed(found.mark, self._lineage(), f"the table of {table.qualified} in store {self.name}")
        self._add(table.qualified, found)

    def shape(self, topic: str) -> Shape | None:
        """Moves with the table's commits: what is staged does not count."""
        place = self._places.get(topic)
        if place is None:
            schema, _, name = topic.partition(".")
            place = self._place(Table(0, schema, name, ()))
        known = None if place is None else place.known()
        return None if place is None or known is None else Shape(known, place.position)

    def _add(self, source: str, table: IcebergTable) -> None:
        if self._epoch is not None:
            table.sync_all(self._path)  # the next ledger counts on what was found here
        place = self._places[source] = Place(table, self.options, self._keys, self._scratch.owner)
        self._upkeep[source] = Upkeep(place, self.options, Leftovers(place, self._scratch.lives))

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if not changes.num_rows:
            return NOTHING
        table = table_of(changes.schema)
        if table.qualified not in self._places:
            self.prepare(table)
        held = self.held(table.qualified)
        fresh = changes
        positions = changes.column(POSITION).to_numpy()
        if positions[0] <= held:
            fresh = changes.slice(int(np.searchsorted(positions, held, side="right")))
        if fresh.num_rows:
            with _disk_errors("written"):
                self._staging.add(table.qualified, fresh)
        return Outcome(fresh.num_rows, stale=changes.num_rows - fresh.num_rows)

    def commit(self, cut: Cut) -> None:
        if (cut.position, cut.commit_lsn) <= (self._applied.position, self._applied.commit_lsn):
            return
        with _disk_errors("written", self._look_for_files):
            self._commit(cut)

    def _commit(self, cut: Cut) -> None:
        self._refuse_others()
        signed = self._signed(cut)
        staged = self._staging.tables
        for name in staged:
            crashpoint("warehouse.before_table")
            self._places[name].write(self._staging.batches(name), signed)
            self._staging.drop(name)
        self._staging.clear()
        self._record(signed, self._mark_the_others(signed))
        for name in staged:
            self._upkeep[name].after_commit(signed)

    def _mark_the_others(self, signed: Signed) -> dict[str, str]:
        """Topics may have changes that left nothing to write. Their tables say so too; where there is none, the ledger does."""
        nothing = {}
        for topic in self._selected():
            last = self._last_change(topic, signed.mark.cut)
            place = self._places.get(topic)
            if place is not None and place.position < last:
                place.write((), signed)
            elif place is None and self._nothing(topic) < last:
                nothing[_NOTHING + topic] = str(signed.mark.cut.position)
        return nothing

    def _refuse_others(self) -> None:
        """Raises StoreError when the ledger or a table is gone, or not as this sink left it, and EpochPassed for a later writer."""
        ledger = self._opened_ledger()
        ledger.refresh()
        if ledger.epoch > self._opened_epoch():
            raise EpochPassed(self.name, ledger.epoch)
        if ledger.mark != self._written:
            raise StoreError(f"the ledger of store {self.name} was restored, or written by another", retryable=True)
        for place in self._places.values():
            place.check()

    def _record(self, signed: Signed, nothing: dict[str, str]) -> None:
        try:
            crashpoint("warehouse.before_ledger")
            self._opened_ledger().set_properties({**mark_properties(signed.mark), **nothing})
            crashpoint("warehouse.ledger_written")
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError("the warehouse's ledger was changed by somebody else", retryable=True) from error
        self._written = signed.mark
        self._applied = self._holds = signed.mark.cut

    def _signed(self, cut: Cut) -> Signed:
        return Signed(self.name, self._opened_epoch(), self._lineage().mark(cut))

    def _opened_epoch(self) -> int:
        if self._epoch is None:
            raise StoreError(f"store {self.name} was opened for reading only", retryable=False)
        return self._epoch

    def _opened_ledger(self) -> IcebergTable:
        if self._ledger is None:
            raise StoreError("the warehouse is not open", retryable=True)
        return self._ledger

    # --- reading ---------------------------------------------------------------------------------------------------------------------

    def make_visible(self) -> None:
        """Nothing to do: a commit is visible to every reader that looks afterwards."""

    def as_held(self, rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        """Read by Spark, not by our own code, so that an audit sees what every reader of the table sees."""
        place = self._place(table)
        if place is None:
            return
        wanted = [field.name for field in place.iceberg.fields if field.name in {*labels(table).values(), EXACT}]
        folder = self._scratch.folder() / f"scan-{uuid4().hex}"
        try:
            try:
                self._frame(table, wanted).write.parquet(str(folder))
            except (Py4JError, PySparkException, OSError) as error:
                raise self._unreadable(place, error) from error
            for path in sorted(folder.glob("*.parquet")):
                for batch in pq.ParquetFile(path).iter_batches():
                    rows = pa.Table.from_batches([batch]).rename_columns(wanted)
                    yield from to_text(rows, table).to_batches()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _frame(self, table: Table, wanted: Sequence[str]) -> Any:
        """These columns of the table, as a DataFrame."""
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
        namespace, name = place_of(table, self.options.namespace)
        frame = self._spark.table(".".join(f"`{part}`" for part in (catalog, *namespace, name)))
        # Numbered, because Spark's own reading of names knows dots and backquotes.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        return numbered.select(*(f"c{frame.columns.index(name)}" for name in wanted))

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        place = self._place(table)
        plan = key_plan(table)
        found = [audit_schema(table).empty_table()]
        if place is not None and plan is not None and keys.num_rows:
            columns = typed(keys, table)
            wanted = encode(plan, columns.__getitem__, keys.num_rows)
            with _disk_errors("read", self._look_for_files):
                found += [place.rows(path, positions, table) for path, positions in place.find(plan, table, wanted).items()]
        return pa.concat_tables(found).combine_chunks().to_batches(max_chunksize=None)[0] if any(map(len, found)) else _empty(table)

    def _place(self, table: Table) -> Place | None:
        """The table's place at its newest snapshot; None when the warehouse has no such table."""
        namespace, name = place_of(table, self.options.namespace)
        found = self._opened().load(namespace, name)
        return None if found is None else Place(found, self.options, self._keys)

    def _unreadable(self, place: Place, error: Exception) -> StoreError:
        """Spark's own words may show rows."""
        if not self._jvm_lives():
            return StoreError(
                f"Spark's JVM ended while it read the warehouse's table {place.name}",
                retryable=True,
                hint="it has 1 GB of memory, too little for values of hundreds of megabytes: leave such a table out with --table",
            )
        place.look_again()
        if (name := place.missing()) is not None:
            return lacking(place.name, name)
        kind = type(error).__name__ if getattr(error, "java_exception", None) is None else java_name(error)
        return StoreError(f"Spark cannot read the warehouse's table {place.name}: {kind}", retryable=True)

    def _jvm_lives(self) -> bool:
        try:
            self._spark._jvm.java.lang.System.nanoTime()
        except (Py4JError, OSError):
            return False
        return True

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
        self._catalog = self._ledger = self._log = None


def make(name: str, options: Options) -> Warehouse:
    return Warehouse(name, options)


def _empty(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=audit_schema(table))


@contextmanager
def _disk_errors(done: str, look: Callable[[], None] = lambda: None) -> Iterator[None]:
    """What a disk refuses may be possible later. ``look``: raises what a missing file is called."""
    try:
        try:
            yield
        except FileNotFoundError as error:
            look()
            raise StoreError(f"the warehouse could not be {done}: a file was missing", retryable=True) from error
    except OSError as error:
        raise StoreError(f"the warehouse could not be {done}: {error.strerror or type(error).__name__}", retryable=True) from error


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
