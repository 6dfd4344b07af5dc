"""The store's own ``applied``, in the properties of a table without rows: it may lag behind the tables, and never claims more than they hold."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.lineage import Mark
from sinks.contract import EpochPassed
from sinks.warehouse.catalog import Catalog, IcebergTable
from sinks.warehouse.failures import CommitConflict, CommitUnknown
from sinks.warehouse.marks import EPOCH_KEY, HELD_KEY, STORE_KEY, Signed, mark_properties
from sinks.warehouse.names import LEDGERS, safe
from sinks.warehouse.register import WarehouseGenerationReplaced

_SCHEMA: Final = '{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"store","required":false,"type":"string"}]}'
_NOTHING: Final = "headwater.nothing."
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.05
"""The live generation's writer commits now and then; whoever holds it has to come in between."""


class WarehouseLedger:
    """``table``: None while there is none. ``mark``: as this sink found or left it."""

    def __init__(self, store: str, catalog: Catalog) -> None:
        self.table: IcebergTable | None = None
        self.mark: Mark | None = None
        self._store = store
        self._catalog = catalog
        self.load()

    def load(self) -> None:
        """Looks for it where there was none."""
        if self.table is None:
            self.table = self._catalog.load((LEDGERS,), safe(self._store))

    def found(self) -> None:
        """Begins from what stands there now."""
        self.mark = None if self.table is None else self.table.mark

    def nothing(self, topic: str) -> int:
        """Up to here the topic's changes have left nothing to hold, so there may be no table."""
        return 0 if self.table is None else int(self.table.properties.get(_NOTHING + topic, 0))

    @property
    def held(self) -> str | None:
        """The word by which it is held, as it was looked at last."""
        return (None if self.table is None else self.table.properties.get(HELD_KEY)) or None

    def hold(self, word: str) -> IcebergTable:
        """It takes no cut from now on: whoever commits says which version of it he has seen. Returns it as it is held, whoever has held it before."""
        for _ in range(_ATTEMPTS):
            if self._says(word):
                return self._there()
            time.sleep(_PAUSE_S)
        raise _changed()

    def let_go(self, word: str) -> None:
        """It takes cuts again, where it is held by this word."""
        for _ in range(_ATTEMPTS):
            if self.held != word or self._says(""):
                return
            time.sleep(_PAUSE_S)
        raise _changed()

    def _says(self, word: str) -> bool:
        """Whether it says so by now; False where somebody else has committed meanwhile."""
        table = self._there()
        try:
            table.set_properties({HELD_KEY: word})
        except CommitConflict:
            table.refresh()
            return False
        except CommitUnknown as error:
            raise _changed() from error
        return True

    def take(self, epoch: int, first: Mark, *, ends_hold: bool = False) -> None:
        """From now on writers of an earlier epoch are refused. ``first``: a new ledger's mark. ``ends_hold``: of a generation that is not live, which was once held as it
        was replaced. Raises WarehouseGenerationReplaced where it is held."""
        try:
            if self.table is None:
                given = {STORE_KEY: self._store, **mark_properties(first)}
                self.table = self._catalog.create((LEDGERS,), safe(self._store), _SCHEMA, given)
            self.table.sync_all()
            if self.table.epoch > epoch:
                raise EpochPassed(self._store, self.table.epoch)
            if self.held is not None and not ends_hold:
                raise WarehouseGenerationReplaced(self._store)
            said = {EPOCH_KEY: str(epoch)} if self.table.epoch < epoch else {}
            said |= {HELD_KEY: ""} if self.held is not None else {}
            if said:
                self.table.set_properties(said)
        except (CommitConflict, CommitUnknown) as error:
            raise _changed() from error

    def refuse_others(self, epoch: int) -> None:
        """Raises StoreError when it is gone, held, or not as this sink left it, and EpochPassed for a later writer. What is recorded next is refused where it has
        changed since."""
        table = self._there()
        table.refresh()
        if table.epoch > epoch:
            raise EpochPassed(self._store, table.epoch)
        if self.held is not None:
            raise WarehouseGenerationReplaced(self._store)
        if table.mark != self.mark:
            raise StoreError(f"the ledger of store {self._store} was restored, or written by another", retryable=True)

    def record(self, signed: Signed, nothing: Mapping[str, int]) -> None:
        """``nothing``: topics that have no table, and up to where they need none."""
        try:
            crashpoint("warehouse.before_ledger")
            without = {_NOTHING + topic: str(upto) for topic, upto in nothing.items()}
            self._there().set_properties({**mark_properties(signed.mark), **without})
            crashpoint("warehouse.ledger_written")
        except (CommitConflict, CommitUnknown) as error:
            raise _changed() from error
        self.mark = signed.mark

    def _there(self) -> IcebergTable:
        if self.table is None:
            raise StoreError("the warehouse is not open", retryable=True)
        return self.table


def _changed() -> StoreError:
    return StoreError("the warehouse's ledger was changed by somebody else", retryable=True)
