"""The model's catalog: what it says of a table, and the message in which the event trigger tells of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from cdc.model import pgtypes
from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from cdc.model.table import Column, Table
from tests.sim.tables import another_name, keyless

PASSWORD: Final = "sesame"
FIRST_OTHER_OID: Final = 20_000
"""OIDs of what the clients create are higher."""
_FILES_APART: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """One table in the catalog."""

    table: Table
    way: int
    """The catalog row (OID) by which it is published; 0: it is not."""
    versions: Mapping[int, str]
    """Column number → who last wrote the column's row of the catalog."""

    def altered(self, table: Table, xid: int) -> Listing:
        """The transaction has made this of it."""
        before = {column.attnum: column for column in self.table.columns}
        touched = {column.attnum: str(xid) for column in table.columns if before.get(column.attnum) != column}
        return replace(self, table=table, versions={**self.versions, **touched})


def listed(table: Table, way: int) -> Listing:
    """As it has just been created."""
    return Listing(table, way, {})


def facts_of(listing: Listing, files: int, *, triggered: bool = False) -> Facts:
    """``files``: how often the table got new ones. ``triggered``: as the event trigger tells of it, which knows of no publication."""
    table, way, versions = listing.table, listing.way, listing.versions
    return Facts(
        oid=table.oid,
        schema=table.schema,
        name=table.name,
        partitioned=False,
        identity=table.identity,
        columns=tuple(
            FactColumn(c.attnum, c.name, c.type_oid, c.typmod, c.type_name, "", False, versions.get(c.attnum, ""))
            for c in table.columns
        ),
        index=() if keyless(table) else tuple(column.attnum for column in table.columns if column.key),
        leaves={table.oid: LeafTable(table.oid + files * _FILES_APART, False)},
        publishing=None if triggered else Publishing(bool(way), ways=(way,) if way else ()),
    )


def triggered(*tables: Facts | None, dropped: Sequence[int] = (), look: bool = False) -> bytes:
    """What the event trigger says at the end of a statement. ``look``: the publication was changed."""
    told = [facts.to_json() for facts in tables if facts is not None]
    return json.dumps({"password": PASSWORD, "look": look, "tables": told, "dropped": list(dropped)}).encode()


def altered(chance: Random, table: Table, number: int, *, keys: bool) -> tuple[str, Table]:
    """One ALTER TABLE: what it does, and the table after it. number: a new column's. keys: whether columns of the key may be renamed."""
    others = [column for column in table.columns if not column.key and column.name != "tag"]
    what = chance.choice(("added", "renamed", "dropped", "moved"))
    if what == "moved":
        return "tables renamed", replace(table, name=another_name(table.name))
    if what == "dropped" and others:
        gone = chance.choice(others)
        return "columns dropped", replace(table, columns=tuple(column for column in table.columns if column is not gone))
    if what == "renamed" and (keys or others):
        one = chance.choice([column for column in table.columns if column.name != "tag" and (keys or not column.key)])
        columns = (replace(column, name=another_name(column.name)) if column is one else column for column in table.columns)
        return "columns renamed", replace(table, columns=tuple(columns))
    kind = chance.choice((pgtypes.TEXT, pgtypes.INT4))
    return "columns added", replace(table, columns=(*table.columns, Column(f"more{number}", kind, attnum=number)))
