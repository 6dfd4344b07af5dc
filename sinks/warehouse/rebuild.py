"""A warehouse built again: each table's rows are replaced in one commit, by those of a cut.

The new data files are written beside the ones that are there, and one Iceberg commit changes the columns, takes every former file out of the table and
the new ones in. So a reader sees the table as it was or as it is, and one that has begun to read goes on. Columns that the table no longer has, or
that have another type, go in the same commit. A table of the store that nobody can read any more, because a part of its metadata is missing, is made again.
What else lies where a table is to be, as another store's tables below a folder of that name, stays there.

First the ledger is replaced by one of this log and this writer that holds nothing: whoever wrote before commits nothing more, as each of his commits
looks at the ledger, and at the table's mark, before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.batch import topic_schema
from cdc.model.lineage import Lineage
from cdc.model.position import ZERO_CUT, Cut
from sinks.contract import CameRows, EpochPassed, Outcome, TopicAsOf
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import Catalog, Changes, IcebergTable
from sinks.warehouse.columns import Add, Change, Drop, IcebergField, arrow_schema, first_schema, parse_schema, to_rows
from sinks.warehouse.disk import Lacking
from sinks.warehouse.erasure import erase
from sinks.warehouse.failures import CommitConflict, CommitUnknown
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.marks import SOURCE_KEY, STORE_KEY, TABLE_KEY, Signed
from sinks.warehouse.names import LEDGERS, place_of, safe
from sinks.warehouse.options import Options

_ATTEMPTS: Final = 5
_FILES_PER_PIECE: Final = 2
"""So many files' worth of rows are in memory at once."""


@dataclass(frozen=True, slots=True)
class WarehouseRebuild:
    """Over one store. ``writer``: whose name new files carry."""

    store: str
    options: Options
    catalog: Catalog
    writer: str

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
        ledger.refuse_others(epoch)
        kept = {self._path(topic) for topic in topics} | {((LEDGERS,), safe(self.store))}
        erase(self.catalog, self.store, kept)
        ledger.record(signed, {})
        return Outcome(rows)

    def _path(self, topic: TopicAsOf) -> tuple[tuple[str, ...], str]:
        return place_of(topic.shape.schema, self.options.namespace)

    def _refuse_taken(self, topics: Sequence[TopicAsOf]) -> None:
        for topic in topics:
            self._own(topic)

    def _own(self, topic: TopicAsOf) -> IcebergTable | None:
        """The table; None where there is none, or none that anybody can read. Raises StoreError where what is there is not the store's."""
        namespace, name = self._path(topic)
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
        anew = False
        for _ in range(_ATTEMPTS):
            table = self._table(topic, signed, lineage)
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

    def _table(self, topic: TopicAsOf, signed: Signed, lineage: Lineage) -> IcebergTable:
        schema, where = topic.shape.schema, self._path(topic)
        table = self._own(topic)
        if table is not None:
            table.sync_all()
            if table.mark is not None and table.mark.log == lineage.log and table.epoch > signed.epoch:
                raise EpochPassed(self.store, table.epoch)
            return table
        if self.catalog.remains(*where) is not None:
            self.catalog.remove(*where)
        first = Signed(self.store, signed.epoch, lineage.mark(ZERO_CUT))
        properties = {SOURCE_KEY: schema.topic, TABLE_KEY: schema.to_json(), **first.properties()}
        table = self.catalog.create(*where, first_schema(schema), properties)
        table.sync_all()
        return table

    def _commit(self, table: IcebergTable, topic: TopicAsOf, signed: Signed, written: list[datafiles.WrittenData]) -> int:
        schema = topic.shape.schema
        pending = table.begin()
        pending = table.evolve(pending, replacement(pending.fields, parse_schema(first_schema(schema))))
        wanted = arrow_schema(pending.fields)
        folder = datafiles.Folder(f"{table.place}/data", self.writer, table.storage)
        for batches in _pieces(topic.rows(), 3 * _FILES_PER_PIECE * self.options.file_bytes):
            masks = [np.ones(batch.num_rows, np.bool_) for batch in batches]
            written += datafiles.write(folder, wanted, batches, masks, _converted(wanted), self.options.file_bytes)
        crashpoint("rebuild.files_written")
        added = [table.data_file(piece.path) for piece in written]
        properties = {TABLE_KEY: schema.to_json(), SOURCE_KEY: schema.topic}
        table.commit(pending, Changes(add=added, replace_all=True), signed, properties)
        return sum(piece.rows for piece in written)


def replacement(there: Iterable[IcebergField], wanted: Iterable[IcebergField]) -> list[Change]:
    """The changes after which a table without rows has the wanted columns. One that is there under its name and type stays."""
    stays = {(field.name, field.kind) for field in there} & {(field.name, field.kind) for field in wanted}
    gone: list[Change] = [Drop(field.name) for field in there if (field.name, field.kind) not in stays]
    return [*gone, *(Add(field.name, field.kind, "") for field in wanted if (field.name, field.kind) not in stays)]


def _converted(wanted: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: to_rows(batch, topic_schema(batch.schema), wanted)


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
