"""Which generations a warehouse has in a SQL catalog, and which of them is live: ``register``'s twin for a catalog beside the files.

The rows of the catalog say it (``generationrows``). Nothing has to be locked against whoever commits: a commit takes the place of the version that its writer has seen, and
says under which catalog's name. The live generation is *held* by a commit to its ledger, a word among its properties. So a writer that has seen an earlier version of it records
no cut, one that sees this one refuses, and the swap is carried out only while the ledger stands as it was held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import Cut
from sinks.generations import GenerationEntry, GenerationState
from sinks.warehouse.catalog import Catalog
from sinks.warehouse.connection import generation_rows
from sinks.warehouse.erasure import erase
from sinks.warehouse.generationnames import WarehouseFolders
from sinks.warehouse.generationrows import GenerationRows, RowName, TableRow
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.marks import STORE_KEY
from sinks.warehouse.options import Options
from sinks.warehouse.parts import catalog_of
from sinks.warehouse.register import FolderRegister, WarehouseGenerationReplaced, WarehouseRegister
from sinks.warehouse.servedcatalog import ServedGeneration


class CatalogRegister:
    """See ``sinks.warehouse.register.WarehouseRegister``."""

    def __init__(self, store: str, options: Options) -> None:
        self.store = store
        self._options = options
        self._disk = FolderRegister.of(store, options)
        """Of the folders on this machine alone."""
        self._owned: dict[tuple[RowName, str], bool] = {}
        """Whether a table, which lies there, is the store's."""
        self._held: tuple[int, str] | None = None
        """The generation that this object holds, and where its ledger's metadata lie since."""

    @property
    def folders(self) -> WarehouseFolders:
        return self._disk.folders

    @property
    def _rows(self) -> GenerationRows:
        return generation_rows(self.store, self._options)

    def live(self) -> int:
        return self._rows.live()

    def entries(self) -> list[GenerationEntry]:
        found = self._rows.found()

        def entry(number: int) -> GenerationEntry:
            if number == found.live:
                return GenerationEntry(number, GenerationState.LIVE)
            if number in found.kept:
                return GenerationEntry(number, GenerationState.KEPT, found.kept[number])
            return GenerationEntry(number, GenerationState.BUILDING)

        return [entry(number) for number in sorted(found.there | found.kept.keys())]

    def served(self, number: int) -> ServedGeneration:
        rows = self._rows
        return ServedGeneration(number, rows.live() == number, rows)

    def begun(self, number: int) -> bool:
        served = self.served(number)
        return any(row.path == served.rows.ledger for row in served.rows.tables(served.standing))

    def make(self, number: int) -> None:
        self._disk.make(number)

    def point(self, number: int) -> None:
        """The catalog's rows are what readers go by."""

    def refuse_replaced(self, number: int) -> None:
        """Each of its tables does so, when it is looked at."""

    def lost(self) -> bool:
        return False

    def committing(self, number: int) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def held(self) -> str | None:
        with self._ledger(self.live()) as ledger:
            return ledger.held

    def hold(self, word: str, cut: Callable[[int], Cut]) -> Cut:  # noqa: ARG002
        live = self.live()
        self._look_whose(live)
        with self._ledger(live) as ledger:
            if ledger.table is None:
                raise StoreError(f"store {self.store}: its live generation has no ledger at present", retryable=True)
            table = ledger.hold(word)
            self._held = live, table.version
            if table.mark is None:
                raise StoreError(f"store {self.store}: its live generation's ledger holds nothing", retryable=True)
            crashpoint("generations.catalog_held")
            return table.mark.cut

    def let_go(self, word: str) -> None:
        with self._ledger(self.live()) as ledger:
            ledger.let_go(word)

    def swap(self, word: str, number: int, until: float | None) -> None:  # noqa: ARG002
        if self._held is None:
            raise WarehouseGenerationReplaced(self.store)
        (former, location), self._held = self._held, None
        crashpoint("generations.catalog_before_swap")
        with closing(self._catalog(former)) as catalog:
            self._rows.swap((number, former), location, until, lambda rows: self._ours(rows, catalog))
        crashpoint("generations.catalog_swapped")

    def remove(self, number: int) -> bool:
        served = self.served(number)
        with closing(self._catalog(number)) as catalog:
            if served.live:
                erase(catalog, self.store)
            for namespace, name in () if served.live else list(catalog.tables()):
                catalog.remove(namespace, name)  # whether anybody can read it or not: nobody else has a table there
        return self._disk.remove(number)

    def forget(self, number: int) -> None:
        self._rows.forget(number)

    def erase(self) -> None:
        rows = self._rows
        found = rows.found()
        for number in sorted((found.there | found.kept.keys()) - {found.live}):
            self.remove(number)
            rows.forget(number)
        self.remove(found.live)
        rows.forget(found.live)
        rows.begin_again()
        self._disk.erase()

    def _look_whose(self, live: int) -> None:
        """Whose the tables are, before the live generation is held: that takes a while where there are many."""
        with closing(self._catalog(live)) as catalog:
            self._ours(self._rows.tables(self._rows.catalog), catalog)

    def _ours(self, shown: Sequence[TableRow], catalog: Catalog) -> set[RowName]:
        return {row.path for row in shown if self._is_ours(row, catalog)}

    def _is_ours(self, row: TableRow, catalog: Catalog) -> bool:
        known = row.path, row.location.rpartition("/")[0]
        if known not in self._owned:
            try:
                table = catalog.load(row.namespace.split("."), row.name)
            except StoreError as error:
                if error.retryable:
                    raise
                table = None  # nobody can read it
            self._owned[known] = table is not None and table.properties.get(STORE_KEY) == self.store
        return self._owned[known]

    def _catalog(self, number: int) -> Catalog:
        return catalog_of(self.store, self, number, self._options)

    @contextmanager
    def _ledger(self, number: int) -> Iterator[WarehouseLedger]:
        with closing(self._catalog(number)) as catalog:
            yield WarehouseLedger(self.store, catalog)


def register_of(store: str, options: Options) -> WarehouseRegister:
    """The register of a warehouse of these options."""
    return CatalogRegister(store, options) if options.catalog == "sql" else FolderRegister.of(store, options)
