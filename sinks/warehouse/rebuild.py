"""A warehouse built again: each table's rows are replaced in one commit, by those of a cut.

The new data files are written beside the ones that are there, and one Iceberg commit changes the columns, takes every former file out of the table and
the new ones in. So a reader sees the table as it was or as it is, and one that has begun to read goes on. Columns that the table no longer has, or
that have another type, go in the same commit. A table of the store that nobody can read any more, because a part of its metadata is missing, is made again.
What else lies where a table is to be, as another store's tables below a folder of that name, stays there.

First the ledger is replaced by one of this log and this writer that holds nothing: whoever wrote before commits nothing more, as each of his commits
looks at the ledger, and at the table's mark, before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.clock import SteadyTime
from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import last_position, topic_schema
from cdc.model.lineage import Lineage
from cdc.model.position import START, ZERO_CUT, Cut
from cdc.model.topic import TopicSchema
from sinks.contract import CameRows, EpochPassed, Outcome, TopicAsOf
from sinks.rowversions import history_topic
from sinks.versionage import VersionAge, later, whole_since_us
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import Catalog, Changes, IcebergTable
from sinks.warehouse.columns import Add, Change, Drop, IcebergField, arrow_schema, first_schema, parse_schema, to_rows
from sinks.warehouse.cuts import CutsTable
from sinks.warehouse.deletedrows import DeletedRows
from sinks.warehouse.disk import Lacking
from sinks.warehouse.erasure import TableName, erase
from sinks.warehouse.failures import CommitConflict, CommitUnknown
from sinks.warehouse.historyplace import HistoryPlace, history_schema
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.marks import COMPLETE_KEY, SOURCE_KEY, STORE_KEY, TABLE_KEY, Signed
from sinks.warehouse.names import LEDGERS, place_of, safe
from sinks.warehouse.options import Options
from sinks.warehouse.owncolumns import is_own
from sinks.warehouse.place import reaching
from sinks.warehouse.tables import history_place

_ATTEMPTS: Final = 5
_FILES_PER_PIECE: Final = 2
"""So many files' worth of rows are in memory at once."""
_CHANGES_BYTES: Final = 128 * 2**20
"""So much of the log goes into a history with one commit."""


@dataclass(frozen=True, slots=True)
class WarehouseRebuild:
    """Over one store. ``writer``: whose name new files carry. ``log``: what histories are made from."""

    store: str
    options: Options
    catalog: Catalog
    writer: str
    log: LogReader

    def carry_out(self, lineage: Lineage, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        """Raises EpochPassed when a later writer of the same log has been there, StoreError."""
        self._refuse_taken(topics)
        ledger = self._begin(lineage, epoch)
        signed = Signed(self.store, epoch, lineage.mark(cut))
        rows = 0
        for topic in topics:
            ledger.refuse_others(epoch)
            rows += self._replaced(topic, signed, lineage)
            crashpoint("rebuild.table_replaced")
            if (path := history_place(topic.shape.schema, self.options)) is not None:
                ledger.refuse_others(epoch)
                self._versions(topic, path, signed, lineage)
                crashpoint("rebuild.history_replaced")
        ledger.refuse_others(epoch)
        kept = {path for topic in topics for path in self._paths(topic)} | {((LEDGERS,), safe(self.store))}
        erase(self.catalog, self.store, kept)
        if self.options.cuts:
            self._first_cut(topics, signed)
        ledger.record(signed, {})
        return Outcome(rows)

    def _first_cut(self, topics: Sequence[TopicAsOf], signed: Signed) -> None:
        """Whoever goes by the cuts finds one as soon as they find the tables."""
        snapshots = {}
        for namespace, name in (path for topic in topics for path in self._paths(topic)):
            table = self.catalog.load(namespace, name)
            if table is not None and table.snapshot is not None:
                snapshots[".".join((*namespace, name))] = table.snapshot
        cuts = CutsTable(self.store, self.options.namespace, self.catalog, self.writer, self.options.keep_snapshots_s)
        cuts.record(signed, snapshots)

    def _path(self, topic: TopicAsOf) -> TableName:
        return place_of(topic.shape.schema, self.options.namespace)

    def _paths(self, topic: TopicAsOf) -> Iterator[TableName]:
        yield self._path(topic)
        if (beside := history_place(topic.shape.schema, self.options)) is not None:
            yield beside

    def _refuse_taken(self, topics: Sequence[TopicAsOf]) -> None:
        for topic in topics:
            for path in self._paths(topic):
                self._own(path)

    def _own(self, path: TableName) -> IcebergTable | None:
        """The table; None where there is none, or none that anybody can read. Raises StoreError where what is there is not the store's."""
        namespace, name = path
        table, dotted = self._readable(namespace, name), ".".join((*namespace, name))
        if table is not None and (owner := table.properties.get(STORE_KEY)) != self.store:
            raise StoreError(
                f"the warehouse's table {dotted} belongs to store {owner} and source table {table.properties.get(SOURCE_KEY)}",
                retryable=False,
                hint="give this store another path or a namespace of its own",
            )
        if table is None and self.catalog.remains(namespace, name) not in (None, {self.store}):
            raise StoreError(
                f"the warehouse's table {dotted} cannot be read, and nothing shows that it is one of store {self.store}",
                retryable=False,
                hint=f"give this store another path or a namespace of its own; if the table is this store's, {self.catalog.way_out(namespace, name)}",
            )
        return table

    def _begin(self, lineage: Lineage, epoch: int) -> WarehouseLedger:
        where = (LEDGERS,), safe(self.store)
        table = self._readable(*where)
        if table is not None and table.mark is not None and table.mark.log == lineage.log and table.epoch > epoch:
            raise EpochPassed(self.store, table.epoch)
        if self.catalog.remains(*where) is not None:
            self.catalog.remove(*where)
        crashpoint("rebuild.ledger_removed")
        ledger = WarehouseLedger(self.store, self.catalog)
        ledger.take(epoch, lineage.mark(ZERO_CUT))
        ledger.found()
        return ledger

    def _readable(self, namespace: Sequence[str], name: str) -> IcebergTable | None:
        """None where there is no table, or none that anybody can read."""
        try:
            return self.catalog.load(namespace, name)
        except StoreError as error:
            if error.retryable:
                raise
            return None

    def _replaced(self, topic: TopicAsOf, signed: Signed, lineage: Lineage) -> int:
        """Returns the number of the table's rows."""
        anew, schema = False, topic.shape.schema
        for _ in range(_ATTEMPTS):
            table = self._table(self._path(topic), schema.topic, schema, self._columns(schema), signed, lineage)
            written: list[datafiles.WrittenData] = []
            try:
                return self._commit(table, topic, signed, written)
            except CommitConflict:
                for piece in written:
                    table.storage.remove(piece.path)
            except Lacking:
                if anew:
                    raise
                self.catalog.remove(*self._path(topic))  # every reader needs what is missing, too
                anew = True
            except CommitUnknown as error:
                raise StoreError(
                    f"the warehouse did not say whether {topic.shape.schema.topic} was committed", retryable=True
                ) from error
        raise StoreError(f"another writer keeps changing the warehouse's table {topic.shape.schema.topic}", retryable=True)

    def _versions(self, topic: TopicAsOf, path: TableName, signed: Signed, lineage: Lineage) -> None:
        """All of them again, out of the log: first there are none."""
        schema = topic.shape.schema
        changes = self.log.read(schema.topic, START, signed.mark.cut.position)
        first = next(changes, None)
        begun = schema if first is None else topic_schema(first.schema)
        columns = history_schema(begun)
        table = self._table(path, history_topic(schema.topic), begun, columns, signed, lineage)
        properties = {TABLE_KEY: begun.to_json(), SOURCE_KEY: history_topic(schema.topic), COMPLETE_KEY: ""}
        try:
            pending = table.evolve(table.begin(), replacement(table.fields, parse_schema(columns)))
            table.commit(pending, Changes(replace_all=True), replace(signed, mark=lineage.mark(ZERO_CUT)), properties)
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError(f"the history of {schema.topic} was changed by somebody else", retryable=True) from error
        except Lacking:
            self.catalog.remove(*path)  # every reader needs what is missing, too
            table = self._table(path, history_topic(schema.topic), begun, columns, signed, lineage)
        crashpoint("rebuild.history_begun")
        place = HistoryPlace(table, self.options, KeyCache(self.options.key_cache_bytes), self.writer)
        place.horizon_us = VersionAge(self.options.history_days_of(schema.topic)).horizon_us(signed.mark.cut, SteadyTime().now_s())
        for batches in _together(chain(() if first is None else (first,), changes)):
            last = last_position(batches[-1])
            place.write(batches, replace(signed, mark=reaching(signed.mark, place.mark.cut, last)))
        lacks = whole_since_us(self.log, self.log.topics(), schema.topic, START)  # what was compacted meanwhile counts, too
        place.complete_from_us = later(lacks, place.horizon_us)
        place.write((), signed)

    def _table(
        self, where: TableName, of: str, schema: TopicSchema, columns: str, signed: Signed, lineage: Lineage
    ) -> IcebergTable:
        table = self._own(where)
        if table is not None:
            table.sync_all()
            if table.mark is not None and table.mark.log == lineage.log and table.epoch > signed.epoch:
                raise EpochPassed(self.store, table.epoch)
            return table
        if self.catalog.remains(*where) is not None:
            self.catalog.remove(*where)
        first = Signed(self.store, signed.epoch, lineage.mark(ZERO_CUT))
        properties = {SOURCE_KEY: of, TABLE_KEY: schema.to_json(), **first.properties()}
        table = self.catalog.create(*where, columns, properties)
        table.sync_all()
        return table

    def _commit(self, table: IcebergTable, topic: TopicAsOf, signed: Signed, written: list[datafiles.WrittenData]) -> int:
        schema = topic.shape.schema
        pending = table.begin()
        pending = table.evolve(pending, replacement(pending.fields, parse_schema(self._columns(schema))))
        wanted = arrow_schema(pending.fields)
        folder = datafiles.Folder(f"{table.place}/data", self.writer, table.storage)
        beside = self.options.own_columns(schema.topic).values(deleted=False)
        deleted = None if topic.dropped else DeletedRows.of(table, self.options, schema)
        for batches in _pieces(topic.rows(), 3 * _FILES_PER_PIECE * self.options.file_bytes):
            masks = [np.ones(batch.num_rows, np.bool_) for batch in batches]
            written += datafiles.write(folder, wanted, batches, masks, _converted(wanted, beside), self.options.file_bytes)
            if deleted is not None:
                deleted.saw(batches)
        rows = sum(piece.rows for piece in written)
        for left in () if deleted is None else deleted.left(pending.fields, signed.mark.cut.position):
            written.append(datafiles.write_table(folder, left))
        crashpoint("rebuild.files_written")
        added = [table.data_file(piece.path) for piece in written]
        properties = {TABLE_KEY: schema.to_json(), SOURCE_KEY: schema.topic}
        table.commit(pending, Changes(add=added, replace_all=True), signed, properties)
        return rows

    def _columns(self, schema: TopicSchema) -> str:
        """The Iceberg schema (JSON) of the topic's table."""
        return self.options.own_columns(schema.topic).added(first_schema(schema))


def _together(changes: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    piece: list[pa.RecordBatch] = []
    for batch in changes:
        if len(batch):
            piece.append(batch)
        if sum(one.nbytes for one in piece) >= _CHANGES_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def replacement(there: Iterable[IcebergField], wanted: Iterable[IcebergField]) -> list[Change]:
    """The changes after which a table without rows has the wanted columns. One that is there under its name and type stays."""
    stays = {_sameness(field) for field in there} & {_sameness(field) for field in wanted}
    gone: list[Change] = [Drop(field.name) for field in there if _sameness(field) not in stays]
    return [*gone, *(Add(field.name, field.kind, field.doc) for field in wanted if _sameness(field) not in stays)]


def _sameness(field: IcebergField) -> tuple[str, str, bool]:
    return field.name, field.kind, is_own(field)


def _converted(wanted: pa.Schema, beside: Mapping[str, pa.Scalar]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: to_rows(batch, topic_schema(batch.schema), wanted, beside)


def _pieces(rows: Iterable[CameRows], most_bytes: int) -> Iterator[list[pa.RecordBatch]]:
    """The rows, each at the position that brought it, as many together as make whole files."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for came in rows:
        piece.append(came.rows.set_column(0, came.rows.schema.field(0), came.came))
        size += piece[-1].nbytes
        if size >= most_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
