"""Where the tables of a store's generations stand in a SQL catalog, and which generation is live.

A table is a row of ``iceberg_tables``, under the name of its catalog. The live generation's rows stand under the name that readers give; those of each other one under a
catalog's name of its own, which no reader gives. So the tables of all generations have the same namespaces and names, and one transaction that gives rows another
catalog's name puts one generation in the other's place, for all tables at once. Files stay where they are.

Beside the tables, among the properties of the ledgers' namespace (``iceberg_namespace_properties``), stands which one is live, and up to when others are kept.
That changes in the same transaction.

Whoever commits to a table names the row by its catalog, and the version that it replaces: so a writer that took a generation for live commits nothing once its
rows stand elsewhere. What is new has no version to replace; so a new table is made where the generation's are that nobody sees, and shown only while it is live.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from sinks.warehouse.catalogdatabase import CatalogDatabase, CatalogSession
from sinks.warehouse.generationnames import FIRST
from sinks.warehouse.names import LEDGERS, safe
from sinks.warehouse.register import WarehouseGenerationReplaced

_LIVE: Final = "headwater.live."
_KEPT: Final = "headwater.kept."
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_ROW: Final = "catalog_name = ? and table_namespace = ? and table_name = ?"
_LOOK: Final = "look where generations stand"

RowName = tuple[str, str]
"""The namespace, with dots, and the name of a table."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One table's, in one catalog. ``location``: where its newest metadata lie."""

    namespace: str
    name: str
    location: str

    @property
    def path(self) -> RowName:
        return self.namespace, self.name

    @property
    def folder(self) -> str:
        """That of its metadata's folder, where its data lie too."""
        return self.location.rpartition("/")[0].rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class GenerationsFound:
    """``there``: those that have a table. ``kept``: up to when (Unix, seconds), None: without an end."""

    live: int
    there: frozenset[int]
    kept: Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class GenerationRows:
    """One store's. ``catalog``: the name that readers give."""

    store: str
    catalog: str
    database: CatalogDatabase

    def standing(self, number: int) -> str:
        """The catalog's name under which a generation's tables stand as long as it is not live. No configured one has an @ in it."""
        return f"{self._apart}{number}"

    @property
    def _apart(self) -> str:
        return f"{self.catalog}@{safe(self.store)}@g"

    @property
    def ledger(self) -> RowName:
        return LEDGERS, safe(self.store)

    def found(self) -> GenerationsFound:
        """Nothing where nobody has used the catalog yet."""
        with self.database.transaction(_LOOK) as session:
            if not _there(session):
                return GenerationsFound(FIRST, frozenset(), {})
            live, kept = self._record(session)
            names = session.rows(
                "select distinct catalog_name as name from iceberg_tables"
                " where starts_with(catalog_name, ?) or (catalog_name = ? and table_namespace = ? and table_name = ?)",
                self._apart, self.catalog, *self.ledger,
            )  # fmt: skip
        there = {live if one["name"] == self.catalog else self._numbered(one["name"]) for one in names}
        return GenerationsFound(live, frozenset(number for number in there if number is not None), kept)

    def live(self) -> int:
        with self.database.transaction(_LOOK) as session:
            return self._record(session)[0] if _there(session) else FIRST

    def row(self, catalog: str, path: RowName) -> TableRow | None:
        return next((one for one in self.tables(catalog) if one.path == path), None)

    def tables(self, catalog: str) -> list[TableRow]:
        with self.database.transaction("list the catalog's tables") as session:
            return _tables(session, catalog) if _there(session) else []

    def remove(self, catalog: str, row: TableRow) -> bool:
        """The table is not there any more; False where it is another one, or another version of it, by now."""
        with self.database.transaction("remove a table") as session:
            return _removed(session, catalog, row)

    def another_lies(self, folder: str) -> bool:
        """Whether a table of any catalog has its metadata there: a kept generation's table may have left its name, and with it the usual place of that name, to others."""
        with self.database.transaction("look for tables at a place") as session:
            asked = "select 1 from iceberg_tables where starts_with(metadata_location, ?)"
            return bool(session.rows(f"{asked} limit 1", f"{folder}/metadata/"))

    def show(self, number: int, row: TableRow) -> bool:
        """The generation's new table stands with the others that readers see; False where the generation is not live."""
        with self.database.transaction("show a new table") as session:
            self._lock(session)
            moved = f"update iceberg_tables set catalog_name = ? where {_ROW} and metadata_location = ?"
            given = self.catalog, self.standing(number), *row.path, row.location
            return self._record(session)[0] == number and session.run(moved, *given) == 1

    def swap(
        self,
        numbers: tuple[int, int],
        held: str,
        until: float | None,
        owned: Callable[[Sequence[TableRow]], Collection[RowName]],
    ) -> None:
        """The first of the numbers is live instead of the second, which is kept until then. ``held``: where the ledger's metadata lay when that was held. ``owned``: the
        live generation's among the tables that readers see. Raises WarehouseGenerationReplaced where it is not live, or not held so; nothing has changed then."""
        number, former = numbers
        with self.database.transaction("put a generation in place") as session:
            self._lock(session)
            shown = _tables(session, self.catalog, lock=True)
            if self._record(session)[0] != former or TableRow(*self.ledger, held) not in shown:
                raise WarehouseGenerationReplaced(self.store)
            ours, coming = owned(shown), [one.path for one in _tables(session, self.standing(number), lock=True)]
            self._refuse_in_the_way({one.path for one in shown} - set(ours), coming)
            # A table that its maker died over before anybody saw it.
            session.run("delete from iceberg_tables where catalog_name = ?", self.standing(former))
            session.run(
                "update iceberg_tables set catalog_name = ? where catalog_name = ? and (table_namespace, table_name) in"
                " (select one->>0, one->>1 from json_array_elements(?::json) one)",
                self.standing(former), self.catalog, json.dumps(sorted(ours)),
            )  # fmt: skip
            session.run("update iceberg_tables set catalog_name = ? where catalog_name = ?", self.catalog, self.standing(number))
            self._say(session, f"{_LIVE}{self.store}", str(number))
            self._say(session, self._kept(number), None)
            self._say(session, self._kept(former), "" if until is None else repr(until))
            crashpoint("generations.catalog_moved")

    def forget(self, number: int) -> None:
        """A generation that is not live has been removed."""
        with self.database.transaction("forget a generation") as session:
            if not _there(session):
                return
            self._say(session, self._kept(number), None)
            for table in ("iceberg_tables", "iceberg_namespace_properties"):
                session.run(f"delete from {table} where catalog_name = ?", self.standing(number))

    def begin_again(self) -> None:
        """No generation is there; the next to be written is the first."""
        with self.database.transaction("forget which generation is live") as session:
            if _there(session):
                self._say(session, f"{_LIVE}{self.store}", None)

    def _refuse_in_the_way(self, others: Collection[RowName], coming: Sequence[RowName]) -> None:
        if self.ledger not in coming:
            raise StoreError(f"store {self.store}: the generation has no ledger", retryable=True)
        for path in coming:
            if path in others:
                raise StoreError(
                    f"the warehouse's table {'.'.join(path)} is not one of store {self.store}, or cannot be read, and is where its next generation has one",
                    retryable=False,
                    hint=f"if it is this store's, drop it in the catalog; otherwise give the store a namespace of its own; then cdc bootstrap {self.store}",
                )

    def _lock(self, session: CatalogSession) -> None:
        """Until the transaction ends, no generation of the store takes another's place, and none gets a new table that readers see."""
        session.rows("select pg_advisory_xact_lock(hashtextextended(?, 0))::text as lock", f"headwater {self._apart}")

    def _record(self, session: CatalogSession) -> tuple[int, dict[int, float | None]]:
        """Which one is live, and which are kept, up to when."""
        said = session.rows(
            "select property_key as key, property_value as value from iceberg_namespace_properties"
            " where catalog_name = ? and namespace = ? and (property_key = ? or starts_with(property_key, ?))",
            self.catalog, LEDGERS, f"{_LIVE}{self.store}", self._kept(""),
        )  # fmt: skip
        known = {one["key"]: one["value"] for one in said}
        live, kept = known.pop(f"{_LIVE}{self.store}", str(FIRST)), {}
        if _NUMBER.fullmatch(live or "") is None:
            raise self._not_ours(f"{_LIVE}{self.store}", "the number of the generation that readers see")
        for key, value in known.items():
            number = key.removeprefix(self._kept(""))
            if _NUMBER.fullmatch(number):
                try:
                    kept[int(number)] = float(value) if value else None
                except ValueError:
                    raise self._not_ours(key, "a moment (Unix, seconds), or empty for no end") from None
        return int(live), kept

    def _not_ours(self, key: str, wanted: str) -> StoreError:
        return StoreError(
            f"store {self.store}: the property {key} of the namespace {LEDGERS} in the warehouse's catalog is not as it was written",
            retryable=False,
            hint=f"set it right in iceberg_namespace_properties: it is {wanted}",
        )

    def _kept(self, number: object) -> str:
        return f"{_KEPT}{self.store}@{number}"

    def _say(self, session: CatalogSession, key: str, value: str | None) -> None:
        """``value``: None: nothing."""
        where = self.catalog, LEDGERS, key
        session.run(
            "delete from iceberg_namespace_properties where catalog_name = ? and namespace = ? and property_key = ?", *where
        )
        if value is not None:
            session.run(
                "insert into iceberg_namespace_properties (catalog_name, namespace, property_key, property_value) values (?, ?, ?, ?)",
                *where, value,
            )  # fmt: skip

    def _numbered(self, name: str) -> int | None:
        number = name.removeprefix(self._apart)
        return int(number) if _NUMBER.fullmatch(number) else None


def _there(session: CatalogSession) -> bool:
    """Whether Iceberg has made its tables."""
    (found,) = session.rows(
        "select count(*)::text as number from (values ('iceberg_tables'), ('iceberg_namespace_properties')) wanted (name) where to_regclass(name) is not null"
    )
    return found["number"] == "2"


def _tables(session: CatalogSession, catalog: str, *, lock: bool = False) -> list[TableRow]:
    found = session.rows(
        "select table_namespace as namespace, table_name as name, metadata_location as location from iceberg_tables"
        f" where catalog_name = ? and metadata_location is not null order by 1, 2{' for update' if lock else ''}",
        catalog,
    )
    return [TableRow(**one) for one in found]


def _removed(session: CatalogSession, catalog: str, row: TableRow) -> bool:
    return session.run(f"delete from iceberg_tables where {_ROW} and metadata_location = ?", catalog, *row.path, row.location) == 1
