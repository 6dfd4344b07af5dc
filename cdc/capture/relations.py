"""RELATION, TYPE, TRUNCATE and MESSAGE messages as values, and what is known of each table on this connection. Pure.

Formats: manual, "Logical Replication Message Formats". The relation cache lives as long as the connection: the server sends a
table's RELATION before its first row and again whenever it has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from cdc.capture.definitions import Definitions
from cdc.errors import ColumnReserved, ProtocolError
from cdc.model.batch import reserved_column
from cdc.model.structure import FIRST_OWN_TYPE
from cdc.model.table import Column, Identity, Table, one


@dataclass(frozen=True, slots=True)
class Truncate:
    """One TRUNCATE of one or more tables."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class _Fields:
    """Reads one message from front to back; running over its end is a ProtocolError."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.raw(width), "big", signed=signed)

    def raw(self, length: int) -> bytes:
        if length < 0 or self._at + length > len(self._message):
            raise ProtocolError("a message ends in the middle of a field")
        field = self._message[self._at : self._at + length]
        self._at += length
        return field

    def zero_ended(self) -> bytes:
        end = self._message.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("a message ends in the middle of a name")
        field = self._message[self._at : end]
        self._at = end + 1
        return field

    def string(self) -> str:
        try:
            return self.zero_ended().decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a name is not valid UTF-8") from error

    def finish(self) -> None:
        if self._at != len(self._message):
            raise ProtocolError("a message is longer than its fields")


class Relations:
    """The tables and types that this connection's stream has described so far. ``definitions``: what the log says of them."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._tables: dict[int, Table] = {}
        self._types: dict[int, str] = {}

    def table(self, oid: int) -> Table:
        """Raises ProtocolError for a table that no RELATION message has described."""
        try:
            return self._tables[oid]
        except KeyError:
            raise ProtocolError(f"a row of table OID {oid} came before its RELATION message") from None

    @property
    def passed_over(self) -> set[int]:
        """Tables (OIDs) whose rows are not to be logged."""
        return self._definitions.passed_over

    def sends_whole_rows(self, table: Table) -> bool:
        """Whether what the server sends as an old row is the whole row."""
        return self._definitions.sends_whole_rows(table)

    def has(self, oid: int) -> bool:
        return oid in self._tables

    def on_type(self, body: bytes) -> None:
        fields = _Fields(body)
        oid = fields.number(4)
        schema, name = fields.string(), fields.string()
        fields.finish()
        self._types[oid] = f"{schema or 'pg_catalog'}.{name}"

    def known(self, table: Table) -> bool:
        """Whether exactly this definition of the table is in force."""
        return self._tables.get(table.oid) == table

    def put(self, table: Table) -> None:
        """From here on the table's rows have this definition."""
        self._tables[table.oid] = one(table)

    def relabel(self, table: Table) -> None:
        """The rows of a table that has been described have this definition from here on, unless their layout differs: then the server
        describes the table again before its next row."""
        known = self._tables.get(table.oid)
        if known is not None and _layout(known) == _layout(table):
            self._tables[table.oid] = one(table)

    def parse_relation(self, body: bytes) -> Table:
        """The table that a RELATION message describes; it is not in force until ``put``. Raises Stopped (COLUMN_RESERVED)."""
        table = _described(body)
        if any(column.type_oid >= FIRST_OWN_TYPE for column in table.columns):
            named = tuple(replace(column, type_name=self._type_name(column.type_oid)) for column in table.columns)
            table = replace(table, columns=named)
        if (column := reserved_column(table)) is not None:
            raise ColumnReserved(table.qualified, column)
        return self._definitions.number(table)

    def _type_name(self, oid: int) -> str:
        if oid < FIRST_OWN_TYPE:
            return ""
        return self._types.get(oid, "")


@lru_cache(maxsize=4096)
def _described(body: bytes) -> Table:
    """The same bytes come again with every connection, and behind whatever makes the server forget what it has sent."""
    fields = _Fields(body)
    oid = fields.number(4)
    schema, name = fields.string(), fields.string()
    identity = fields.raw(1).decode("latin-1")
    if identity not in "dnfi":
        raise ProtocolError(f"unknown replica identity {identity!r} of table {schema}.{name}")
    columns = []
    for _ in range(fields.number(2)):
        key = bool(fields.number(1) & 1)
        label = fields.string()
        type_oid, typmod = fields.number(4), fields.number(4, signed=True)
        columns.append(Column(label, type_oid, typmod, key=key))
    fields.finish()
    return Table(oid, schema or "pg_catalog", name, tuple(columns), cast(Identity, identity))


def _layout(table: Table) -> list[tuple[str, int, int]]:
    return [(column.name, column.type_oid, column.typmod) for column in table.columns]


def parse_truncate(body: bytes) -> Truncate:
    fields = _Fields(body)
    count, flags = fields.number(4), fields.number(1)
    relations = tuple(fields.number(4) for _ in range(count)) if count * 4 <= len(body) else ()
    fields.finish()
    return Truncate(relations, bool(flags & 1), bool(flags & 2))


def parse_message(body: bytes) -> LogicalMessage:
    fields = _Fields(body)
    flags, lsn = fields.number(1), fields.number(8)
    prefix = fields.zero_ended().decode(errors="replace")  # in a database of encoding SQL_ASCII it need not be UTF-8: not ours then
    content = fields.raw(fields.number(4))
    fields.finish()
    return LogicalMessage(bool(flags & 1), lsn, prefix, content)
