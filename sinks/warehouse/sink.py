"""The warehouse: one Iceberg table per source table, holding its current rows, written without a Spark job.

pyarrow writes the data files and the deletion vectors, Iceberg's library in Spark's JVM commits them: one commit per touched table and
cut, with position and commit LSN inside. The store's own ``applied`` lies in a ledger table's properties and may lag behind the tables;
each table skips what it holds already. Readers need nothing of ours: Spark, Trino, DuckDB read Iceberg v3.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.folders import own_data
from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, topic_schema
from cdc.model.lineage import believed
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import NOTHING, Outcome, Shape, TopicAsOf, Traits, audit_schema
from sinks.generations import HeldWatch
from sinks.render.rowtext import row_text
from sinks.rowversions import history_topic, refuse
from sinks.sparksession import jvm_thread_s
from sinks.warehouse.catalog import Catalog
from sinks.warehouse.catalogregister import register_of
from sinks.warehouse.columns import labels
from sinks.warehouse.connection import connect
from sinks.warehouse.erasure import erase
from sinks.warehouse.extent import Extent
from sinks.warehouse.generationnames import FIRST
from sinks.warehouse.keys import encode, key_plan
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.marks import Signed
from sinks.warehouse.names import place_of
from sinks.warehouse.options import Options
from sinks.warehouse.parts import WarehouseParts, parts_of
from sinks.warehouse.rebuild import WarehouseRebuild
from sinks.warehouse.register import WarehouseRegister
from sinks.warehouse.scratch import Scratch, Staging
from sinks.warehouse.tables import WarehouseTables, history_place, refuse_missing
from sinks.warehouse.tablescan import live_rows
from sinks.warehouse.typedtext import typed


class Warehouse:
    """See ``sinks.contract.Sink``. ``open`` starts Spark's JVM when none runs yet."""

    traits = Traits(sequenced=True, staged=True, needs_spark=True, exclusive=True, evolves=True)

    def __init__(
        self, name: str, options: Options, clock: Callable[[], float] = time.monotonic, *, generation: int | None = None
    ) -> None:
        """``generation``: the only one that it works on, and never where readers see it; by default the one that is live, whichever that is each time
        that it is opened."""
        self.name = name
        self.options = options
        self._generation = generation
        self._parts = self._parts_of(generation or FIRST)
        self._held = HeldWatch(clock)
        self._applied = ZERO_CUT
        """As it was opened, or committed here since."""
        self._epoch: int | None = None
        # While it is open:
        self._catalog: Catalog | None = None
        self._extent: Extent | None = None
        self._ledger: WarehouseLedger | None = None
        self._tables: WarehouseTables | None = None

    # --- which generation ------------------------------------------------------------------------------------------------------------

    def _parts_of(self, number: int) -> WarehouseParts:
        return parts_of(self._register.folders, number, self.options)

    @property
    def _register(self) -> WarehouseRegister:
        return register_of(self.name, self.options)

    @property
    def _path(self) -> Path:
        """The generation's folder."""
        return self._parts.path

    @property
    def _scratch(self) -> Scratch:
        return self._parts.scratch

    @property
    def _staging(self) -> Staging:
        return self._parts.staging

    def _choose(self, *, writing: bool) -> None:
        """Finds the generation to work on. Raises StoreError (retryable) while another process is about to put another one in its place, and seems to live;
        ConfigError where nobody can say which one readers see."""
        if self._generation is not None:
            return
        register = self._register
        if writing and (word := register.held()) is not None:
            if not self._held.forgotten(word):
                raise StoreError(f"store {self.name}: another generation is about to take the live one's place", retryable=True)
            register.let_go(word)
        if (live := register.live()) != self._parts.number:
            self._parts.close()
            self._parts = self._parts_of(live)

    def _refuse_replaced(self) -> None:
        """Raises StoreError (retryable) where another generation is live by now. A writer puts the pointer right that leads there."""
        if self._generation is None:
            register, number = self._register, self._parts.number
            register.refuse_replaced(number)
            if self._epoch is not None and register.lost():
                register.point(number)

    # --- which log, and how far ------------------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self._epoch = None
        self._choose(writing=epoch is not None)
        self._epoch = epoch
        with _disk_errors("opened"):
            if epoch is not None and self._path.exists():
                self._own_folder()  # before anything in it is believed
        self._disconnect()
        catalog = self._catalog = self._connected()
        self._extent = Extent(self.name, self.options.tables, log, writing=epoch is not None)
        self._staging.clear()
        if epoch is not None:
            self._scratch.remove()  # another opening, another name
            with suppress(OSError):
                self._scratch.sweep()
        tables = self._tables = WarehouseTables(
            self.name, self._parts.options, catalog, self._parts.keys, self._scratch, writing=epoch is not None
        )
        ledger = self._ledger = WarehouseLedger(self.name, catalog)
        tables.load(self._extent.selected().values())
        applied = self._extent.whole(ledger, tables)
        if epoch is not None:
            self._take(ledger, epoch)
        ledger.found()
        self._applied = applied
        return applied

    def finish(self) -> None: ...

    def applied(self) -> Cut:
        """Asks the file system whether anything has changed, and Iceberg only where something has."""
        extent, ledger, tables = self._opened()
        self._refuse_replaced()
        ledger.load()
        known = [*([ledger.table] if ledger.table is not None else []), *(place.iceberg for place in tables)]
        changed = [one for one in known if one.changed()]
        if changed or ledger.mark is None or extent.another:
            for one in changed:
                one.refresh()
            tables.load(extent.selected().values())
            extent.whole(ledger, tables)
        with _disk_errors("read"):
            tables.look_for_files()
        return extent.holds

    def held(self, topic: str) -> Position:
        found = None if self._tables is None else self._tables.held(topic)
        return self._applied.position if found is None else max(self._applied.position, found)

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        self.close()
        self._choose(writing=True)
        lineage = log.lineage()
        if lineage is None:
            raise StoreError("there is no log yet that the warehouse could be built from", retryable=True)
        with _disk_errors("built again"):
            self._own_folder()
            with closing(self._connected()) as catalog:
                self._scratch.sweep()
                self._scratch.folder()  # from now on everybody can see that the writer of our files lives
                rebuild = WarehouseRebuild(self.name, self._parts.options, catalog, self._scratch.owner, log)
                try:
                    outcome = rebuild.carry_out(lineage, epoch, cut, topics)
                finally:
                    self._scratch.remove()
        self._parts.keys.clear()
        return outcome

    def erase(self) -> None:
        self.close()
        if self._generation is None:
            self._register.erase()
            self._parts = self._parts_of(FIRST)
        elif self._register.remove(self._generation):
            return
        with _disk_errors("emptied"):
            if self._path.exists():
                self._own_folder()
            with closing(self._connected()) as catalog:
                erase(catalog, self.name)
            self._scratch.sweep()

    def _connected(self) -> Catalog:
        parts = self._parts
        return connect(self.name, parts.options, parts.aside, self._register.served(parts.number))

    def _disconnect(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _take(self, ledger: WarehouseLedger, epoch: int) -> None:
        extent = self._opened()[0]
        try:
            self._own_folder()
            self._scratch.folder()  # from now on everybody can see that the writer of our files lives
            ledger.take(epoch, extent.lineage().mark(ZERO_CUT), ends_hold=self._generation is not None)
            if self._generation is None:
                self._register.point(self._parts.number)  # somebody may have held it since it was chosen
        except OSError as error:
            raise StoreError(f"the warehouse's folder cannot be made: {error.strerror}", retryable=True) from error

    def _own_folder(self) -> None:
        try:
            own_data(self.options.path, f"stores.{self.name}.path")
            self._register.make(self._parts.number)
            own_data(self._path, f"stores.{self.name}.path")
        except ConfigError as error:
            raise StoreError(str(error), retryable=False, hint=error.hint) from None

    # --- writing ---------------------------------------------------------------------------------------------------------------------

    def prepare(self, schema: TopicSchema) -> None:
        extent, _, tables = self._opened()
        self._refuse_columns(schema)
        if tables.behind(schema.topic) is not None:
            return
        for make, add, there in (
            (tables.make, tables.add, tables.places),
            (tables.make_history, tables.add_history, tables.histories),
        ):
            found = None if schema.topic in there else make(schema, lambda: self._signed(ZERO_CUT))
            if found is None:
                continue
            if found.mark is not None:  # ``open`` has looked only at the tables of topics that the log had
                believed(found.mark, extent.lineage(), f"the table of {schema.topic} in store {self.name}")
            add(schema.topic, found)

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        taken: dict[object, str] = {}
        for schema in schemas:
            self._refuse_columns(schema)
            beside = history_place(schema, self.options)
            for topic, path in ((schema.topic, place_of(schema, self.options.namespace)), (history_topic(schema.topic), beside)):
                if path is not None and (other := taken.setdefault(path, topic)) != topic:
                    raise ConfigError(
                        f"stores.{self.name}: {other} and {topic} would both be the table {'.'.join((*path[0], path[1]))}",
                        hint='give the history another name: history = "…"',
                    )

    def _refuse_columns(self, schema: TopicSchema) -> None:
        self.options.refuse_own_names(self.name, schema)
        if self.options.history_of(schema.topic):
            refuse(self.name, schema)

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        schema = topic_schema(rows.schema)
        above, name = place_of(schema, self.options.namespace)
        columns = labels(schema)
        for row in row_text(rows, schema).to_pylist():
            shown = {columns[column]: text for column, text in row.items()}
            yield {"table": ".".join((*above, name)), "row": json.dumps(shown, ensure_ascii=False)}

    def projected(self) -> str | None:
        return None

    def shape(self, topic: str) -> Shape | None:
        """Moves with the table's commits: what is staged does not count."""
        tables = self._opened()[2]
        place = tables.behind(topic)
        if place is None and topic not in tables.places:
            namespace, _, name = topic.partition(".")
            place = tables.newest(TopicSchema(namespace, name))
        known = None if place is None else place.known()
        return None if place is None or known is None else Shape(known, place.position)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if not changes.num_rows:
            return NOTHING
        schema = topic_schema(changes.schema)
        self.prepare(schema)
        held = self.held(schema.topic)
        fresh = changes
        positions = changes.column(POSITION).to_numpy()
        if positions[0] <= held:
            fresh = changes.slice(int(np.searchsorted(positions, held, side="right")))
        if fresh.num_rows:
            with _disk_errors("written"):
                self._staging.add(schema.topic, fresh)
        return Outcome(fresh.num_rows, stale=changes.num_rows - fresh.num_rows)

    def commit(self, cut: Cut) -> None:
        if (cut.position, cut.commit_lsn) <= (self._applied.position, self._applied.commit_lsn):
            return
        with _disk_errors("written", self._opened()[2].look_for_files):
            self._commit(cut)

    def _commit(self, cut: Cut) -> None:
        extent, ledger, tables = self._opened()
        self._refuse_replaced()
        ledger.refuse_others(self._opened_epoch())
        for place in tables:
            place.check()
        signed = self._signed(cut)
        whole_since = extent.whole_since({name: self.held(name) for name in tables.histories})
        for name, upkeep in tables.history_upkeep.items():
            upkeep.before_commit(cut, whole_since[name])
        staged = self._staging.tables
        for name in staged:
            batches = self._staging.batches(name)
            if name in tables.histories:
                # Before the current one, from which it is read what the topic's shape is: so that is never ahead of a table that has to be brought further.
                crashpoint("warehouse.before_history")
                tables.histories[name].write(batches, signed)
            crashpoint("warehouse.before_table")
            tables.places[name].write(batches, signed)
            self._staging.drop(name)
        self._staging.clear()
        nothing = self._mark_the_others(signed)
        if tables.cuts is not None and not tables.beyond(signed.mark.cut):
            tables.cuts.record(signed, tables.snapshots(extent.selected().values()))
        with self._register.committing(self._parts.number) if self._generation is None else nullcontext():
            ledger.record(signed, nothing)
        self._applied = extent.holds = cut
        for name in staged:
            tables.upkeep[name].after_commit(signed)
        for name, upkeep in tables.history_upkeep.items():
            if name in staged:
                upkeep.after_commit(signed)
            else:
                upkeep.forget(signed)

    def _mark_the_others(self, signed: Signed) -> dict[str, int]:
        """Topics may have changes that left nothing to write. Their tables say so too; where there is none, the ledger does."""
        extent, ledger, tables = self._opened()
        nothing: dict[str, int] = {}
        for topic in extent.selected():
            last = extent.last_change(topic, signed.mark.cut)
            place, beside = tables.places.get(topic), tables.histories.get(topic)
            for one in (beside, place):
                if one is not None and one.position < last:
                    one.write((), signed)
            if place is None and ledger.nothing(topic) < last:
                nothing[topic] = signed.mark.cut.position
        return nothing

    def _signed(self, cut: Cut) -> Signed:
        return Signed(self.name, self._opened_epoch(), self._opened()[0].lineage().mark(cut))

    def _opened_epoch(self) -> int:
        if self._epoch is None:
            raise StoreError(f"store {self.name} was opened for reading only", retryable=False)
        return self._epoch

    def _opened(self) -> tuple[Extent, WarehouseLedger, WarehouseTables]:
        if self._extent is None or self._ledger is None or self._tables is None:
            raise StoreError("the warehouse is not open", retryable=True)
        return self._extent, self._ledger, self._tables

    # --- reading ---------------------------------------------------------------------------------------------------------------------

    def make_visible(self) -> None:
        """Nothing to do: a commit is visible to every reader that looks afterwards."""

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        place = self._opened()[2].newest(schema)
        if place is not None:
            with _disk_errors("read", partial(refuse_missing, place)), self._scratch.pinned(place.iceberg.snapshot):
                yield from live_rows(place, schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        tables = self._opened()[2]
        place = tables.newest(schema)
        plan = key_plan(schema)
        found = [audit_schema(schema).empty_table()]
        if place is not None and plan is not None and keys.num_rows:
            columns = typed(keys, schema)
            wanted = encode(plan, columns.__getitem__, keys.num_rows)
            with _disk_errors("read", tables.look_for_files):
                found += [place.rows(path, positions, schema) for path, positions in place.find(plan, schema, wanted).items()]
        return (
            pa.concat_tables(found).combine_chunks().to_batches(max_chunksize=None)[0] if any(map(len, found)) else _empty(schema)
        )

    def helped_s(self) -> float:
        return jvm_thread_s()

    def close(self) -> None:
        self._parts.close()
        self._extent = self._ledger = self._tables = None
        self._disconnect()


def traits(options: Options) -> Traits:  # noqa: ARG001
    return Warehouse.traits


def make(name: str, options: Options) -> Warehouse:
    return Warehouse(name, options)


def _empty(schema: TopicSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=audit_schema(schema))


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
