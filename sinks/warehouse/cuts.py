"""A table of the cuts that the store has committed, each with the snapshot of every table that holds it: whoever reads several tables at the snapshots of one
row sees one moment.

A row is there before the ledger says that the cut is held, and after every table holds it. The table is one small file, which each commit replaces: only rows
of the time for which snapshots are kept stay in it, and upkeep leaves the snapshots that they name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import Cut, format_lsn
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import Catalog, Changes, IcebergTable
from sinks.warehouse.columns import FIELD_ID
from sinks.warehouse.disk import reading
from sinks.warehouse.failures import CommitConflict, CommitUnknown
from sinks.warehouse.marks import STORE_KEY, Signed

NAMESPACE: Final = "headwater"
NAME: Final = "cuts"
_EXPIRE_EVERY_S: Final = 60.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA: Final = (
    '{"type":"struct","schema-id":0,"fields":['
    '{"id":1,"name":"position","required":true,"type":"long"},'
    '{"id":2,"name":"commit_lsn","required":true,"type":"string"},'
    '{"id":3,"name":"committed_at","required":true,"type":"timestamptz"},'
    '{"id":4,"name":"written_at","required":true,"type":"timestamptz"},'
    '{"id":5,"name":"snapshots","required":true,"type":{"type":"map","key-id":6,"key":"string","value-id":7,"value":"long","value-required":true}}]}'
)


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={FIELD_ID: str(number).encode()})


_TIME: Final = pa.timestamp("us", tz="UTC")
_ARROW: Final = pa.schema(
    [
        _field("position", pa.int64(), 1),
        _field("commit_lsn", pa.utf8(), 2),
        _field("committed_at", _TIME, 3),
        _field("written_at", _TIME, 4),
        _field("snapshots", pa.map_(_field("key", pa.utf8(), 6), _field("value", pa.int64(), 7)), 5),
    ]
)


def row_of(cut: Cut, snapshots: Mapping[str, int], written_at: datetime) -> dict[str, Any]:
    """The row of a cut. snapshots: table, with its namespace → the snapshot that holds the cut."""
    return {
        "position": int(cut.position),
        "commit_lsn": format_lsn(cut.commit_lsn),
        "committed_at": _EPOCH + timedelta(microseconds=cut.commit_ts_us),
        "written_at": written_at,
        "snapshots": sorted(snapshots.items()),
    }


class CutsTable:
    """One store's."""

    def __init__(self, store: str, namespace: str | None, catalog: Catalog, writer: str, keep_s: float) -> None:
        """``keep_s``: so long a row stays."""
        self._store = store
        self._where = ((NAMESPACE,) if namespace is None else (namespace, NAMESPACE)), NAME
        self._catalog = catalog
        self._writer = writer
        self._keep = timedelta(seconds=keep_s)
        self._table: IcebergTable | None = None
        self._rows: list[dict[str, Any]] | None = None
        """As they stand there; None where that is not known."""
        self._expired_at = time.monotonic()

    def snapshots(self) -> set[int]:
        """Those that a row names. Raises StoreError."""
        return {snapshot for row in self._known() for _, snapshot in row["snapshots"]}

    def record(self, signed: Signed, snapshots: Mapping[str, int]) -> None:
        """Adds the row of this cut. Raises StoreError."""
        table, now = self._opened(), datetime.now(UTC)
        row = row_of(signed.mark.cut, snapshots, now)
        rows = [one for one in self._known() if now - one["written_at"] <= self._keep and one["position"] < row["position"]]
        self._replace(table, signed, [*rows, row])
        if time.monotonic() - self._expired_at > _EXPIRE_EVERY_S:
            self._expired_at = time.monotonic()
            try:
                table.expire(int((now - self._keep).timestamp() * 1000))
            except (CommitConflict, CommitUnknown):
                self._rows = None  # looked at again by the next one

    def _known(self) -> list[dict[str, Any]]:
        if self._rows is None:
            table = self._opened()
            table.refresh()
            self._rows = [row for file, _ in table.files() for row in self._read(file.path)]
        return self._rows

    def _replace(self, table: IcebergTable, signed: Signed, rows: list[dict[str, Any]]) -> None:
        self._rows = None
        folder = datafiles.Folder(f"{table.place}/data", self._writer, table.storage)
        folder.storage.make(folder.location)
        written = datafiles.write_table(folder, pa.Table.from_pylist(rows, schema=_ARROW))
        crashpoint("warehouse.cuts_written")
        try:
            table.commit(table.begin(), Changes(add=[table.data_file(written.path)], replace_all=True), signed, {})
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError("the warehouse's table of cuts was changed by somebody else", retryable=True) from error
        self._rows = rows

    def _read(self, path: str) -> list[dict[str, Any]]:
        with reading(path), self._opened().storage.opened(path) as file:
            found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
            return found

    def _opened(self) -> IcebergTable:
        if self._table is None:
            found = self._catalog.load(*self._where)
            if found is None:
                found = self._catalog.create(*self._where, _SCHEMA, {STORE_KEY: self._store})
            elif found.properties.get(STORE_KEY) != self._store:
                raise StoreError(
                    f"the warehouse's table {'.'.join((*self._where[0], NAME))} is not one of store {self._store}",
                    retryable=False,
                    hint="give this store a namespace of its own, or leave `cuts` out",
                )
            found.sync_all()
            self._table = found
        return self._table
