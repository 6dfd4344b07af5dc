"""A topic's schema: what a store knows of what it holds. Pure.

A table of the source is one thing that a topic can be of. ``TopicSchema.of`` makes its definition a topic's schema, and there Postgres's type
numbers and modifiers end: what follows from them (how a value is held, what it means, when a type is another type) is said of each field here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, Final, Literal, Self
from weakref import WeakKeyDictionary, ref

import pyarrow as pa

from cdc.model.jsonvalue import JsonValue
from cdc.model.pgtypes import arrow_type
from cdc.model.structure import FIRST_OWN_TYPE, Structure, decoded, encoded, structure_of
from cdc.model.table import Column, Table

RowIdentity = Literal["key", "none", "row", "index"]
"""What identifies a row in an update or a delete: the primary key, nothing, the whole row as it was, an index that was chosen for it."""

COMPUTED_TYPE: Final = "computed "
"""Begins the source type of a field that a store computes."""
_IDENTITIES: Final[Mapping[str, RowIdentity]] = {"d": "key", "n": "none", "f": "row", "i": "index"}


@dataclass(frozen=True, slots=True)
class TopicField:
    """One field of every row: a column, where the topic is a table's."""

    name: str
    type: pa.DataType = field(hash=False)
    """The Arrow type that holds its values; what that cannot hold stands as exact text beside it (``cdc.model.batch``)."""
    structure: Structure = field(hash=False)
    """What its values are made of, and so what they mean."""
    key: bool = False
    origin: int = 0
    """What the field *is* (0: not known): a rename keeps the number, and no other field of the topic ever gets it."""
    type_name: str = ""
    """The type's name, for people."""
    source_type: str = ""
    """The type at its source, to be compared: another text is another type, even where its values are held alike."""
    defined: bool = False
    """Its type is one that the source's database defines: a domain, an enum, an extension's."""
    protected: str = ""
    """The policy that stands between the source's values and these."""
    shown: bool = True
    """A store shows its values. A column of the key may be there only so that rows are told apart."""
    column: str = ""
    """Its name at the source, where the store has another."""
    path: tuple[str, ...] = ()
    """Where it stands in a store's documents, from the outermost object inwards; empty: under its own name."""
    outline: str = ""
    """Of JSON, what its documents look like (``cdc.model.outline``); empty where nobody knows."""

    @property
    def computed(self) -> bool:
        """A store computes its values of the row (``sinks.formula``); the source does not have it."""
        return self.source_type.startswith(COMPUTED_TYPE)

    @property
    def column_name(self) -> str:
        """Its name at the source."""
        return self.column or self.name

    @property
    def value_type(self) -> tuple[str, str, Structure]:
        """Equal for two versions of a field whose values need no other look."""
        return self.source_type, self.type_name, self.structure

    @classmethod
    def of(cls, column: Column) -> Self:
        return cls(
            column.name,
            arrow_type(column),
            structure_of(column),
            column.key,
            column.attnum,
            column.type_name,
            f"{column.type_oid}.{column.typmod}",
            column.type_oid >= FIRST_OWN_TYPE,
            column.protected,
            outline=column.outline,
        )

    def to_raw(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        held = {name: value for name, usual in _HELD.items() if (value := getattr(self, name)) != usual}
        return {**plain, **held, "type": _type_name(self.type), "structure": encoded(self.structure)}

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        given = {**raw, "type": _type_named(raw["type"]), "structure": decoded(raw["structure"])}
        return cls(**{**given, "path": tuple(raw.get("path", ()))})


_PLAIN: Final = ("name", "key", "origin", "type_name", "source_type", "defined", "protected")
_HELD: Final[Mapping[str, Any]] = {"shown": True, "column": "", "path": (), "outline": ""}
"""What most fields are: a store's choice of its columns adds the others, and what is known of a document."""


@dataclass(frozen=True, eq=False)
class TopicSchema(JsonValue):
    """One version of a topic's schema. Fields stand in their source's order."""

    namespace: str
    name: str
    fields: tuple[TopicField, ...] = ()
    identity: RowIdentity = "key"
    origin: str = ""
    """What the rows are of: another text is another table of the same name, whose rows are not these rows changed."""
    holding: str = ""
    """What a store holds of the topic, in the words of ``sinks.holding``; empty: all of it, as it is."""

    @classmethod
    def of(cls, table: Table) -> TopicSchema:
        """The schema of the table's topic; of equal tables the same object."""
        return _of_table(table)

    @cached_property
    def topic(self) -> str:
        """The topic's name: ``namespace.name``."""
        return f"{self.namespace}.{self.name}"

    @property
    def parts(self) -> tuple[str, str]:
        """As ``cdc.model.selection`` asks for them."""
        return self.namespace, self.name

    @cached_property
    def key(self) -> tuple[TopicField, ...]:
        """The fields that tell rows apart, in order; empty when nothing does."""
        return tuple(one for one in self.fields if one.key)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.fields)

    @cached_property
    def _json(self) -> str:
        raw = {"namespace": self.namespace, "name": self.name, "identity": self.identity, "origin": self.origin}
        if self.holding:
            raw["holding"] = self.holding
        return json.dumps(raw | {"fields": [one.to_raw() for one in self.fields]}, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> TopicSchema:
        """Reads what ``to_json`` gave, or that of the topic's table. Raises KeyError, TypeError or ValueError for anything else."""
        raw = json.loads(text)
        if "columns" in raw:  # an earlier version's store, which goes on with it and, if it is erased, has to find its rows by it
            return cls.of(Table.from_json(text))
        return _one(cls(**{**raw, "fields": tuple(TopicField.from_raw(one) for one in raw["fields"])}))


_MADE: Final[WeakKeyDictionary[TopicSchema, ref[TopicSchema]]] = WeakKeyDictionary()
_MAKING: Final = Lock()


def _one(schema: TopicSchema) -> TopicSchema:
    """The first of all that are equal to this one and still in use: what is kept by schema is then found without a comparison."""
    with _MAKING:
        made = _MADE.get(schema)
        first = made() if made is not None else None
        if first is None:
            first, _MADE[schema] = schema, ref(schema)
    return first


@lru_cache(maxsize=4096)
def _of_table(table: Table) -> TopicSchema:
    return _one(
        TopicSchema(
            table.schema,
            table.name,
            tuple(TopicField.of(column) for column in table.columns),
            _IDENTITIES[table.identity],
            f"{table.oid}.{table.epoch}",
        )
    )


_TYPES: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "text": pa.utf8(),
}
"""All that ``arrow_type`` gives but for decimals, which are ``[precision, scale]``."""
_TYPE_NAMES: Final = {kind: name for name, kind in _TYPES.items()}


def _type_name(kind: pa.DataType) -> str | list[int]:
    return [kind.precision, kind.scale] if pa.types.is_decimal(kind) else _TYPE_NAMES[kind]


def _type_named(name: str | list[int]) -> pa.DataType:
    return _TYPES[name] if isinstance(name, str) else pa.decimal128(*name)
