"""A DDL statement tried by a role that does not own its table: on an empty copy, in the session's temporary schema, within a transaction
that the caller rolls back.

The copy's facts (``cdc.model.facts``) before and after are reported as if they were the table's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from psycopg import sql

from cdc.model.facts import FactColumn, Facts, LeafTable
from cdc.source.facts import read_facts

_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_NAME: Final = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_TABLE: Final = rf"{_NAME}(?:{_SPACE}*\.{_SPACE}*{_NAME})?"
_ALTER: Final = re.compile(
    rf"(?P<verb>{_SPACE}*alter{_SPACE}+table{_SPACE}+(?:if{_SPACE}+exists{_SPACE}+)?(?:only{_SPACE}+)?)(?P<table>{_TABLE})(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_DROP: Final = re.compile(
    rf"{_SPACE}*drop{_SPACE}+table{_SPACE}+(?:if{_SPACE}+exists{_SPACE}+)?(?P<tables>{_TABLE}(?:{_SPACE}*,{_SPACE}*{_TABLE})*)"
    rf"{_SPACE}*(?:cascade|restrict)?{_SPACE}*;?{_SPACE}*",
    re.IGNORECASE | re.DOTALL,
)
_OF_COPIES_ALONE: Final = ("0A", "42P16")
"""SQLSTATEs with which the server refuses what temporary tables cannot have, such as a reference to another table."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The facts of the table that the statement changes, as they would be, or the tables (OIDs) that it would drop."""

    changed: Facts | None = None
    gone: frozenset[int] = frozenset()


def rehearse(connection: psycopg.Connection, ddl: str, before: Mapping[int, Facts], publication: str) -> Rehearsal | None:
    """Within the caller's transaction, under the search_path that the statement means. before: the facts of the tables that count, by OID.

    None when this cannot be tried on a copy: it is neither ALTER TABLE nor DROP TABLE, or of a partitioned table. Raises psycopg.Error when
    the server refuses the statement, or the copy.
    """
    if (dropped := _DROP.fullmatch(ddl)) is not None:
        oids = [_oid(connection, found[0]) for found in re.finditer(_TABLE, dropped["tables"])]
        return Rehearsal(gone=frozenset(oid for oid in oids if oid in before))
    altered = _ALTER.fullmatch(ddl)
    original = before.get(_oid(connection, altered["table"])) if altered is not None else None
    if altered is None or original is None or original.partitioned or original.attached:
        return None
    name = sql.Identifier("pg_temp", original.name)
    copy = _copied(connection, original, name, publication)
    numbers = {mine.attnum: theirs.attnum for mine, theirs in zip(copy.columns, original.columns, strict=True)}
    _identify(connection, original, name, copy.oid, numbers)
    [begin] = read_facts(connection, publication, [copy.oid])
    # Within a subtransaction of its own: what it touches in the catalog carries another xmin.
    connection.execute("savepoint rehearsed")
    try:
        connection.execute((altered["verb"] + name.as_string(connection) + altered["rest"]).encode(), prepare=True)
    except psycopg.Error as error:
        if (error.sqlstate or "").startswith(_OF_COPIES_ALONE):
            return None
        raise
    [end] = read_facts(connection, publication, [copy.oid])
    last = connection.execute("select max(attnum)::int from pg_attribute where attrelid = %s::oid", (original.oid,)).fetchone()
    return Rehearsal(_as_original(original, begin, end, numbers, last[0] if last else 0))


def _oid(connection: psycopg.Connection, name: str) -> int:
    """The table's OID; 0 when it does not exist."""
    row = connection.execute("select coalesce(to_regclass(%s)::oid::int8, 0)", (name,)).fetchone()
    return int(row[0]) if row else 0


def _copied(connection: psycopg.Connection, original: Facts, name: sql.Identifier, publication: str) -> Facts:
    table = sql.Identifier(original.schema, original.name)
    connection.execute(sql.SQL("create temporary table {} (like {} including all)").format(sql.Identifier(original.name), table))
    [copy] = read_facts(connection, publication, [_oid(connection, name.as_string(connection))])
    return copy


def _identify(connection: psycopg.Connection, original: Facts, name: sql.Identifier, oid: int, numbers: Mapping[int, int]) -> None:
    """The original's replica identity, which a copy does not take over."""
    identity: sql.Composable | None = {"f": sql.SQL("full"), "n": sql.SQL("nothing")}.get(original.identity)
    if original.identity == "i":
        rows = connection.execute(
            "select c.relname, (i.indkey::int2[])[:i.indnkeyatts - 1] from pg_index i join pg_class c on c.oid = i.indexrelid "
            "where i.indrelid = %s::oid and i.indisunique and i.indimmediate and i.indpred is null and i.indexprs is null",
            (oid,),
        ).fetchall()
        names = [index for index, columns in rows if tuple(numbers.get(number) for number in columns) == original.index]
        identity = sql.SQL("using index {}").format(sql.Identifier(names[0])) if names else None
    if identity is not None:
        connection.execute(sql.SQL("alter table {} replica identity {}").format(name, identity))


def _as_original(original: Facts, begin: Facts, end: Facts, numbers: Mapping[int, int], last: int) -> Facts:
    """The original after what happened to the copy between these two looks. last: the number of its newest column."""
    known = {column.attnum: column for column in begin.columns}
    theirs = {column.attnum: column for column in original.columns}
    new = [column.attnum for column in end.columns if column.attnum not in known]
    number = {**numbers, **{attnum: last + 1 + place for place, attnum in enumerate(new)}}

    def told(column: FactColumn) -> FactColumn:
        mine = number[column.attnum]
        touched = column.attnum not in known or known[column.attnum].version != column.version
        return replace(column, attnum=mine, version=column.version if touched else theirs[mine].version)

    rewritten = begin.leaves[begin.oid].filenode != end.leaves[end.oid].filenode
    leaf = original.leaves[original.oid]
    return replace(
        original,
        name=original.name if end.name == begin.name else end.name,
        identity=end.identity,
        columns=tuple(sorted(map(told, end.columns), key=lambda column: column.attnum)),
        index=tuple(number[attnum] for attnum in end.index),
        leaves={original.oid: LeafTable(end.leaves[end.oid].filenode if rewritten else leaf.filenode, leaf.born, leaf.joined)},
        types=end.types,
    )
