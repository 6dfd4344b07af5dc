"""A source table as the log knows it under one definition."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Final, Literal, Self

from cdc.model.jsonvalue import JsonValue

Identity = Literal["d", "n", "f", "i"]
"""pg_class.relreplident: default, nothing, full, index."""

DERIVED_OID: Final = 2**32
"""From here on no OID is one of Postgres's: definitions of topics that the source does not bring have such a number."""


def derived_number(topic: str) -> int:
    """The number of such a topic: the same for the same name, and never one of Postgres's."""
    return DERIVED_OID + int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=4).digest(), "big")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its label, its Postgres type, whether it is part of the row's identity (the key), and its number.

    ``attnum`` (pg_attribute.attnum, 0: not known) is what the column *is*: a rename keeps it, and no other column ever gets it.
    """

    name: str
    type_oid: int
    typmod: int = -1
    type_name: str = ""
    key: bool = False
    attnum: int = 0
    protected: str = ""
    """The policy that stands between the source's values and these (``mask``, ``hmac:KEYID``, ``encrypt:KEYID``; ``cdc.privacy.policies``)."""
    structure: str = ""
    """The structure of a type that is not the server's own (``cdc.model.structure``); empty where its values are plain text to us."""
    outline: str = ""
    """Of JSON, what its documents look like (``cdc.model.outline``); empty where nobody knows."""


@dataclass(frozen=True, eq=False)
class Table(JsonValue):
    """One source table under one definition. Equal tables have equal Arrow schemas.

    ``oid`` and ``epoch`` identify it (a dropped and re-created table has a new OID); names are labels.
    Columns stand in the order of the stream's RELATION message, which is the table's own.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    identity: Identity = "d"
    epoch: int = 0

    @property
    def derived(self) -> bool:
        """Whether it is not a table of the source: another producer brings the topic's changes."""
        return self.oid >= DERIVED_OID

    @property
    def qualified(self) -> str:
        """The topic's name: ``schema.name``."""
        return f"{self.schema}.{self.name}"

    @property
    def parts(self) -> tuple[str, str]:
        """As ``cdc.model.selection`` asks for them."""
        return self.schema, self.name

    @cached_property
    def key(self) -> tuple[Column, ...]:
        """The identity's columns in table order; empty when rows cannot be told apart."""
        return tuple(column for column in self.columns if column.key)

    @cached_property
    def whole_rows(self) -> bool:
        """Rows are identified by all of their columns: rows that are equal in each of them cannot be told apart."""
        return self.identity == "f" and all(column.key for column in self.columns)

    @cached_property
    def keeps_old_rows(self) -> bool:
        """The log keeps the rows that updates and deletes replaced: Postgres sends them, and they are more than the key."""
        return self.identity == "f" and not self.whole_rows and not self.derived

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def _json(self) -> str:
        # Asked for with every small batch, and asdict copies every value on its way.
        facts = {field: getattr(self, field) for field in _TABLE_FIELDS}
        facts["columns"] = [_column_facts(column) for column in self.columns]
        return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        raw = json.loads(text)
        raw["columns"] = tuple(Column(**column) for column in raw["columns"])
        return cls(**raw)


@lru_cache(maxsize=4096)
def one(table: Table) -> Table:
    """The first of all tables that are equal to this one: what is kept by table is then found without a comparison."""
    return table


_TABLE_FIELDS = tuple(field.name for field in fields(Table))
_COLUMN_FIELDS = tuple(field.name for field in fields(Column) if field.name != "outline")


def _column_facts(column: Column) -> dict[str, object]:
    facts: dict[str, object] = {field: getattr(column, field) for field in _COLUMN_FIELDS}
    return facts | {"outline": column.outline} if column.outline else facts
