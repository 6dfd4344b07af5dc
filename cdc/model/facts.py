"""The catalog's facts about one table at one moment, and what a difference between two moments means for rows already stored. Pure.

Postgres sends no event for stored rows that a DDL statement changes, brings or takes away: a type change, a default of a new column, a
partition that is detached, a label of an enum. The catalog shows traces of each (``hidden`` names them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self, cast

from cdc.model.table import Column, Identity, Table
from cdc.model.typefacts import described

STORED, VIRTUAL = "s", "v"

_OIDS: Final = 2**32
_INT16: Final = range(-(2**15), 2**15)
_INT32: Final = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class FactColumn:
    """One row of pg_attribute."""

    attnum: int
    name: str
    type_oid: int
    typmod: int
    type_name: str
    generated: str
    """pg_attribute.attgenerated"""
    filled: bool
    """Rows that were stored before the column was added may show something else than NULL in it."""
    version: str
    """Changes whenever the row of pg_attribute does."""


@dataclass(frozen=True, slots=True)
class LeafTable:
    """One relation that holds rows: the table itself, or one of its partitions."""

    filenode: int
    """0: only the stream has shown it so far, no look at the catalog yet."""
    born: bool
    """It was created as a partition, and so was empty when it became one."""
    joined: str = ""
    """For a partition: the versions of the catalog's rows by which it belongs to the table; others after it was detached and attached again."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """The table as our publication has it."""

    published: bool
    listed: tuple[int, ...] | None = None
    """Column numbers of the column list; None: there is no list."""
    stored: bool = False
    """Stored generated columns are published without being listed (from 18 on, where the publication says so)."""
    row_filter: str | None = None
    """Changes whenever the row filter does; None: there is none."""
    ways: tuple[int, ...] = ()
    """The catalog rows by which the table is in the publication: others after it was taken out and put back."""
    version: str = ""
    """Three words: the version of the publication's row, its owner, its options (such as which kinds of changes it publishes)."""
    refused: bool = False
    """The table cannot be captured as it is defined: it was taken out of the publication for that, or is passed over in the stream."""


@dataclass(frozen=True)
class Facts:
    """``publishing`` None: not known (an event trigger does not know of our publication)."""

    oid: int
    schema: str
    name: str
    partitioned: bool
    identity: Identity
    columns: tuple[FactColumn, ...]
    index: tuple[int, ...]
    """Column numbers of the index that identifies rows (under FULL: of the primary key); empty when no index does."""
    leaves: Mapping[int, LeafTable]
    types: Mapping[str, str] = field(default_factory=dict)
    """Enum labels (``e<oid>``) and attributes of composite types (``a<relation>.<number>``) that the table's columns are made of; and what
    their structure is made of: types (``t<oid>``: "a ELEMENT DELIMITER", "c RELATION", "d BASE", "r SUBTYPE", "m SUBTYPE", or its kind and
    name) and attributes' types and names (``n<relation>.<number>``)."""
    publishing: Publishing | None = None
    attached: bool = False
    """It is a partition of another table."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """``raw``: as the queries in ``cdc.source.facts`` and ``to_json`` give it.

        Raises KeyError, TypeError, ValueError or AttributeError on anything else, whatever it is: facts come through the stream, too.
        """
        publishing = raw.get("publishing")
        if raw["identity"] not in ("d", "n", "f", "i"):
            raise ValueError("an unknown replica identity")
        facts = cls(
            oid=_number(raw["oid"], 1, _OIDS),
            schema=_text(raw["schema"]),
            name=_text(raw["name"]),
            partitioned=_truth(raw["partitioned"]),
            identity=cast(Identity, raw["identity"]),
            columns=tuple(_column(*column) for column in raw["columns"]),
            index=tuple(_number(attnum, _INT16.start, _INT16.stop) for attnum in raw["index"]),
            leaves={_number(int(oid), 1, _OIDS): _leaf(*leaf) for oid, leaf in raw["leaves"].items()},
            types={_text(what): _text(text) for what, text in raw["types"].items()},
            publishing=None if publishing is None else _publishing(publishing),
            attached=_truth(raw["attached"]),
        )
        numbers = [column.attnum for column in facts.columns]
        if len({column.name for column in facts.columns}) < len(numbers) or numbers != sorted(set(numbers)):
            raise ValueError("columns stand in the order of their numbers and have names of their own")
        return facts

    def to_json(self) -> dict[str, Any]:
        publishing = self.publishing
        return {
            "oid": self.oid,
            "schema": self.schema,
            "name": self.name,
            "partitioned": self.partitioned,
            "attached": self.attached,
            "identity": self.identity,
            "columns": [
                [c.attnum, c.name, c.type_oid, c.typmod, c.type_name, c.generated, c.filled, c.version] for c in self.columns
            ],
            "index": list(self.index),
            "leaves": {str(oid): [leaf.filenode, leaf.born, leaf.joined] for oid, leaf in self.leaves.items()},
            "types": dict(self.types),
            "publishing": None
            if publishing is None
            else {
                "published": publishing.published,
                "listed": None if publishing.listed is None else list(publishing.listed),
                "stored": publishing.stored,
                "row_filter": publishing.row_filter,
                "ways": list(publishing.ways),
                "version": publishing.version,
                "refused": publishing.refused,
            },
        }

    @property
    def published(self) -> tuple[FactColumn, ...]:
        """The columns that the stream sends."""
        publishing = self.publishing or Publishing(True)
        if publishing.listed is not None:
            return tuple(column for column in self.columns if column.attnum in publishing.listed)
        return tuple(c for c in self.columns if not c.generated or (publishing.stored and c.generated == STORED))

    @property
    def qualified(self) -> str:
        """As ``Table.qualified``."""
        return f"{self.schema}.{self.name}"

    def table(self) -> Table:
        """The definition, under which the snapshot reads: equal to what capture makes of the RELATION message."""
        return self._table

    @cached_property
    def _table(self) -> Table:
        # Made once: it is compared with every description of the table that comes.
        columns = self.published
        key = set() if self.identity == "n" else set(self.index) & {column.attnum for column in columns}
        if self.identity == "f" and not key:
            key = {column.attnum for column in columns}
        return Table(
            self.oid,
            self.schema,
            self.name,
            tuple(
                Column(
                    c.name,
                    c.type_oid,
                    c.typmod,
                    c.type_name,
                    key=c.attnum in key,
                    attnum=c.attnum,
                    structure=structure,
                )
                for c, structure in zip(columns, described([c.type_oid for c in columns], self.types), strict=True)
            ),
            self.identity,
        )

    @property
    def keyless(self) -> bool:
        """No index identifies its rows: all of their columns do."""
        return self.identity == "f" and not self.index

    @property
    def refused(self) -> bool:
        return self.publishing is not None and self.publishing.refused

    def with_leaf(self, leaf: int) -> Self:
        """Rows have come out of this partition, of which nothing else is known."""
        return replace(self, leaves={leaf: LeafTable(0, born=True), **self.leaves})

    def without(self, leaf: int) -> Self:
        return replace(self, leaves={oid: facts for oid, facts in self.leaves.items() if oid != leaf})


def _number(value: object, first: int, stop: int) -> int:
    if type(value) is not int or not first <= value < stop:
        raise ValueError("a number is out of bounds")
    return value


def _text(value: object) -> str:
    """Raises UnicodeEncodeError (a ValueError) for half of a surrogate pair, which JSON can name and no file can hold."""
    if not isinstance(value, str) or b"\0" in value.encode():
        raise TypeError("not a text")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("neither true nor false")
    return value


def _column(*raw: object) -> FactColumn:
    attnum, name, type_oid, typmod, type_name, generated, filled, version = raw
    return FactColumn(
        _number(attnum, 1, _INT16.stop),
        _text(name),
        _number(type_oid, 0, _OIDS),
        _number(typmod, _INT32.start, _INT32.stop),
        _text(type_name),
        _text(generated),
        _truth(filled),
        _text(version),
    )


def _leaf(filenode: object, born: object, joined: object = "") -> LeafTable:
    return LeafTable(_number(filenode, 0, _OIDS), _truth(born), _text(joined))


def _publishing(raw: Mapping[str, Any]) -> Publishing:
    listed, row_filter = raw["listed"], raw["row_filter"]
    return Publishing(
        _truth(raw["published"]),
        None if listed is None else tuple(_number(attnum, 1, _INT16.stop) for attnum in listed),
        _truth(raw["stored"]),
        None if row_filter is None else _text(row_filter),
        tuple(_number(way, 1, _OIDS) for way in raw["ways"]),
        _text(raw["version"]),
        _truth(raw.get("refused", False)),
    )


@dataclass(frozen=True, slots=True)
class StoredChange:
    """Stored rows were changed without events; ``vanished``: some may be gone, or have another key."""

    vanished: bool


def hidden(before: Facts, after: Facts) -> StoredChange | None:
    """Judges what happened to stored rows, unseen by the stream, between two looks at one table (same OID); None: nothing.

    What cannot be told apart from a change counts as one. VACUUM FULL and CLUSTER of a table differ from a rewrite by ALTER TABLE, because
    they touch no row of pg_attribute; of a partition they look the same as its TRUNCATE, which the stream does not bring either.
    """
    columns = {column.attnum: column for column in before.columns}
    touched = {
        column.attnum
        for column in after.columns
        if column.attnum not in columns or columns[column.attnum].version != column.version
    }
    new = {oid for oid in after.leaves if oid not in before.leaves or not before.leaves[oid].filenode}
    stayed = after.leaves.keys() - new
    moved = {oid for oid in stayed if before.leaves[oid].filenode != after.leaves[oid].filenode}
    rejoined = any(before.leaves[oid].joined != after.leaves[oid].joined for oid in stayed)
    # A table's first file has its OID for a number: what is in another one has been truncated, if not before it joined.
    emptied = after.partitioned and (bool(moved) or any(after.leaves[oid].filenode != oid for oid in new))
    vanished = (
        bool(before.leaves.keys() - after.leaves.keys())
        or emptied
        or rejoined
        or (not moved and _was_partition(before, after))
        or _filter(before) != _filter(after)
        or was_out(before, after)
    )
    rewritten = (
        touched if moved else touched & {c.attnum for c in after.columns if c.attnum in columns and _retyped(columns[c.attnum], c)}
    )
    retold = _retold(before.types, after.types)
    key = {column.attnum for column in after.table().key}
    vanished |= bool(rewritten & key & columns.keys())
    vanished |= retold and any(column.type_name for column in after.table().key)
    changed = bool(rewritten) or any(not after.leaves[oid].born for oid in new) or _shows(before, after) or retold
    return StoredChange(vanished) if vanished or changed else None


def _was_partition(before: Facts, after: Facts) -> bool:
    """The table was a partition of another one in between, under whose name its changes came: attaching and detaching touch all of its columns."""
    if after.partitioned or after.attached or len(before.columns) != len(after.columns):
        return False
    pairs = list(zip(before.columns, after.columns, strict=True))
    return before.attached or all(old.version != new.version and replace(old, version=new.version) == new for old, new in pairs)


def _filter(facts: Facts) -> str | None:
    return facts.publishing.row_filter if facts.publishing else None


def was_out(before: Facts, after: Facts) -> bool:
    """The table left the publication and came back: changes may have been made in between that were not published."""
    if before.publishing is None or after.publishing is None:
        return False
    kept = set(before.publishing.ways) & set(after.publishing.ways)
    changed = _optioned(before.publishing.version.split(), after.publishing.version.split())
    return changed or not (kept or before.publishing.ways == after.publishing.ways)


def _optioned(before: Sequence[str], after: Sequence[str]) -> bool:
    """Another row with the same options may be one whose options were others in between; but not when it has got another owner."""
    if before == after or len(before) != 3 or len(after) != 3:
        return before != after
    return before[2] != after[2] or before[1] == after[1]


def _retyped(before: FactColumn, after: FactColumn) -> bool:
    return before.type_oid != after.type_oid


def _shows(before: Facts, after: Facts) -> bool:
    """A column that is sent from now on has values in rows that are stored already."""
    sent = {column.attnum for column in before.published}
    existing = {column.attnum for column in before.columns}
    names = {column.name for column in before.columns}
    return any(
        column.attnum not in sent and (column.filled or column.attnum in existing or column.name in names)
        for column in after.published
    )


def _retold(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """A label was renamed, or a composite type that was there has another attribute. An attribute's name is in no value."""
    if any(key in after and after[key] != told for key, told in before.items() if key.startswith(("a", "e"))):
        return True
    composites = {key.partition(".")[0] for key in before if key.startswith("a")}
    return any(key.startswith("a") and key not in before and key.partition(".")[0] in composites for key in after)
