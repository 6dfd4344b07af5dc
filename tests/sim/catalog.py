"""The model's catalog: facts of a table, and the message in which the event trigger tells of them."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Final

from cdc.model import pgtypes
from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from cdc.model.table import Column, Table
from tests.sim.tables import another_name

PASSWORD: Final = "sesame"


def facts_of(table: Table, publishing: Publishing | None) -> Facts:
    """``publishing`` None: as the event trigger tells of it, which knows of no publication."""
    return Facts(
        oid=table.oid,
        schema=table.schema,
        name=table.name,
        partitioned=False,
        identity=table.identity,
        columns=tuple(FactColumn(c.attnum, c.name, c.type_oid, c.typmod, c.type_name, "", False, "") for c in table.columns),
        index=tuple(column.attnum for column in table.columns if column.key),
        leaves={table.oid: LeafTable(table.oid, False)},
        publishing=publishing,
    )


def triggered(table: Table) -> bytes:
    """What the event trigger says at the end of a statement that has altered the table."""
    return json.dumps({"password": PASSWORD, "tables": [facts_of(table, None).to_json()], "dropped": []}).encode()


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
