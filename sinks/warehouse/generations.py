"""A warehouse's generations: listed, held, put in each other's place, removed. See ``sinks.generations``."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import TypeGuard

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.lineage import Mark
from cdc.model.position import Cut
from sinks.generations import Generation, GenerationEntry, GenerationSize
from sinks.rowversions import is_history
from sinks.warehouse.catalog import Catalog, IcebergTable
from sinks.warehouse.catalogregister import register_of
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.marks import SOURCE_KEY, STORE_KEY
from sinks.warehouse.options import Options
from sinks.warehouse.parts import catalog_of
from sinks.warehouse.register import WarehouseGenerationReplaced
from sinks.warehouse.sink import Warehouse


class WarehouseGenerations:
    """See ``sinks.generations.Generations``."""

    def __init__(self, name: str, options: Options) -> None:
        """``options``: with a pointer, or with a catalog that knows which one is live."""
        self.name = name
        self._options = options
        self._register = register_of(name, options)
        self._held: str | None = None
        """The word by which this process holds the live generation."""

    def all(self) -> Sequence[Generation]:
        return [Generation(one.number, one.state, self._mark(one.number), one.until) for one in self.entries()]

    def entries(self) -> Sequence[GenerationEntry]:
        return self._register.entries()

    def size(self, number: int) -> GenerationSize:
        """Rows of histories are not counted, their bytes are."""
        with closing(self._catalog(number)) as catalog:
            there = [catalog.load(*name) for name in catalog.tables()]
            sizes = {one.name: one.size() for one in there if _is_of(one, self.name)}
        rows = sum(rows for name, (rows, _) in sizes.items() if not is_history(name))
        return GenerationSize(rows, sum(taken for _, taken in sizes.values()))

    def sink(self, number: int) -> Warehouse:
        return Warehouse(self.name, self._options, generation=number)

    def hold(self) -> Cut:
        word = uuid.uuid4().hex
        cut = self._register.hold(word, self._committed)
        self._held = word
        return cut

    def release(self) -> None:
        if self._held is not None:
            word, self._held = self._held, None
            self._register.let_go(word)  # or somebody has waited long enough

    def swap(self, number: int, until: float | None) -> None:
        if self._held is None:
            raise WarehouseGenerationReplaced(self.name)
        self._register.swap(self._held, number, until)
        self._held = None

    def drop(self, number: int) -> None:
        if self._register.live() == number:
            raise StoreError(f"store {self.name}: generation {number} is live", retryable=False, hint=f"cdc rollback {self.name}")
        with closing(self.sink(number)) as sink:
            sink.erase()
        crashpoint("generations.warehouse_erased")
        self._register.forget(number)

    def close(self) -> None: ...

    def _committed(self, number: int) -> Cut:
        mark = self._mark(number)
        if mark is None:
            raise StoreError(f"store {self.name}: its live generation has no ledger at present", retryable=True)
        return mark.cut

    def _mark(self, number: int) -> Mark | None:
        if not self._register.begun(number):
            return None
        with closing(self._catalog(number)) as catalog:
            table = WarehouseLedger(self.name, catalog).table
            return None if table is None else table.mark

    def _catalog(self, number: int) -> Catalog:
        return catalog_of(self.name, self._register, number, self._options)


def _is_of(table: IcebergTable | None, store: str) -> TypeGuard[IcebergTable]:
    return table is not None and table.properties.get(STORE_KEY) == store and SOURCE_KEY in table.properties
