"""A source table's columns as an Iceberg schema, how that schema evolves, and rows in its Arrow shape. Pure.

What a warehouse row holds: the table's columns, then ``_cdc_position`` (long, the position that wrote the row) and ``_cdc_exact``
(map of column → exact text for the values that their column cannot hold: NaN numeric, infinity, 24:00:00, …).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT, POSITION
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicField, TopicSchema
from sinks.reshape import origins

FIELD_ID: Final = b"PARQUET:field_id"
_MAP_KIND: Final = "map<string, string>"
NOTHING_BESIDE: Final[Mapping[str, pa.Array | pa.Scalar]] = {}

ROW_ID: Final = pa.field("_row_id", pa.int64(), metadata={FIELD_ID: b"2147483540"})
LAST_UPDATED: Final = pa.field("_last_updated_sequence_number", pa.int64(), metadata={FIELD_ID: b"2147483539"})
"""Row lineage of format v3: a row that moves to another file takes these along."""

_ICEBERGS_OWN: Final = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", ROW_ID.name, LAST_UPDATED.name, "_change_type", "_change_ordinal",
     "_commit_snapshot_id")
)  # fmt: skip
"""The names in org.apache.iceberg.MetadataColumns: a table that has a column of such a name can be written and then not be read."""


@dataclass(frozen=True, slots=True)
class IcebergField:
    """One Iceberg column. ``kind`` is Iceberg's name of the type, e.g. ``decimal(12, 2)``; nested ids only for ``_cdc_exact``."""

    id: int
    name: str
    kind: str
    key_id: int = 0
    value_id: int = 0
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Add:
    """A new column. ``kind``: Iceberg's type; ``doc``: Postgres's."""

    name: str
    kind: str
    doc: str


@dataclass(frozen=True, slots=True)
class Widen:
    """A column takes a wider type, in a way that Iceberg allows."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A column under another name, with all it holds: the source renamed it, or another column now needs the name of one that is gone."""

    name: str
    into: str


@dataclass(frozen=True, slots=True)
class Drop:
    """A column goes, with all that it holds."""

    name: str


Change = Add | Widen | Rename | Drop


@dataclass(frozen=True, slots=True)
class Evolution:
    """``replaced``: the source's columns whose type changed to one that the old values' column cannot become; a new column begins."""

    changes: tuple[Change, ...]
    replaced: frozenset[str] = frozenset()


def iceberg_kind(column: TopicField) -> str:
    """Iceberg's type for a source column. Time of day is text: Iceberg knows it, Spark cannot read it."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _KINDS.get(kind, "string")


_KINDS: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
    pa.binary(): "binary",
}

_ARROW: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "string": pa.utf8(),
}


@lru_cache(maxsize=1024)
def labels(schema: TopicSchema) -> Mapping[str, str]:
    """Source column → warehouse column. They differ only where two names are equal but for their case, which SQL engines mix up, and
    where Iceberg's readers know a column of that name already."""
    taken: set[str] = {POSITION, EXACT, *_ICEBERGS_OWN}
    found: dict[str, str] = {}
    for name in schema.names:
        label, number = name, 1
        while label.lower() in taken:
            number += 1
            label = f"{name}__{number}"
        taken.add(label.lower())
        found[name] = label
    return found


def first_schema(schema: TopicSchema) -> str:
    """The Iceberg schema (JSON) of a new table."""
    names = labels(schema)
    fields: list[dict[str, Any]] = [
        {"id": i, "name": names[column.name], "required": False, "type": iceberg_kind(column), "doc": column.type_name}
        for i, column in enumerate(schema.fields, 1)
    ]
    next_id = len(fields) + 1
    fields.append({"id": next_id, "name": POSITION, "required": False, "type": "long"})
    exact = {
        "type": "map",
        "key-id": next_id + 2,
        "key": "string",
        "value-id": next_id + 3,
        "value": "string",
        "value-required": False,
    }
    fields.append({"id": next_id + 1, "name": EXACT, "required": False, "type": exact})
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def parse_schema(text: str) -> tuple[IcebergField, ...]:
    """The columns of an Iceberg schema (JSON)."""
    found = []
    for raw in json.loads(text)["fields"]:
        kind = raw["type"]
        if isinstance(kind, str):
            found.append(IcebergField(raw["id"], raw["name"], kind, doc=raw.get("doc", "")))
        else:
            found.append(IcebergField(raw["id"], raw["name"], _MAP_KIND, kind.get("key-id", 0), kind.get("value-id", 0)))
    return tuple(found)


def evolution(fields: Sequence[IcebergField], schema: TopicSchema, previous: TopicSchema | None) -> Evolution:
    """The changes that make the rows of ``table`` fit. ``previous`` is the version that was written last.

    A renamed column stays the same column of the warehouse (the same id). A dropped column stays; when its name comes back, or a column's
    type changes to one that the old values do not fit, the old column is renamed and a new one begins.
    """
    by_name = {field.name: field for field in fields}
    kept: list[tuple[IcebergField, str, str]] = []
    fresh: list[Add] = []
    replaced = set()
    for column in schema.fields:
        label, kind = labels(schema)[column.name], iceberg_kind(column)
        field = by_name.get(label) if previous is None else _field_of(column, schema, previous, by_name)
        if field is not None and _fits(field.kind, kind):
            kept.append((field, label, kind))
            continue
        fresh.append(Add(label, kind, column.type_name))
        if field is not None:
            replaced.add(column.name)
    changes: list[Change] = [*_renames(fields, kept, fresh)]
    changes += [Widen(label, wider) for field, label, kind in kept if (wider := _wider(field.kind, kind)) != field.kind]
    return Evolution((*changes, *fresh), frozenset(replaced))


def _field_of(
    column: TopicField, schema: TopicSchema, previous: TopicSchema, by_name: Mapping[str, IcebergField]
) -> IcebergField | None:
    came = origins(previous, schema)[column.name]
    return None if came is None else by_name.get(labels(previous)[came.name])


def _renames(
    fields: Sequence[IcebergField], kept: Sequence[tuple[IcebergField, str, str]], fresh: Sequence[Add]
) -> Iterator[Rename]:
    """In an order in which no name is ever taken: columns that are gone make room, then names that others wait for are let go of."""
    moved = {field.name: label for field, label, _ in kept if field.name != label}
    staying = {field.id for field, _, _ in kept}
    needed = {label.lower() for label in (*moved.values(), *(add.name for add in fresh))}
    for field in fields:
        if field.id not in staying and field.name.lower() in needed:
            yield Rename(field.name, f"{field.name}__{field.id}")
    waited_for = {label.lower() for label in moved.values()} | {add.name.lower() for add in fresh}
    ids = {field.name: field.id for field in fields}
    stepped = {name: f"{name}__{ids[name]}" for name in moved if name.lower() in waited_for and name.lower() != moved[name].lower()}
    for name, aside in stepped.items():
        yield Rename(name, aside)
    for name, label in moved.items():
        yield Rename(stepped.get(name, name), label)


_PROMOTIONS: Final = {
    ("int", "long"): "long",
    ("long", "int"): "long",
    ("float", "double"): "double",
    ("double", "float"): "double",
}


def _wider(one: str, other: str) -> str:
    """The type that holds both without loss; ValueError when Iceberg has none."""
    if one == other:
        return one
    if (one, other) in _PROMOTIONS:
        return _PROMOTIONS[one, other]
    a, b = _decimal(one), _decimal(other)
    if a and b and a[1] == b[1]:
        return one if a[0] >= b[0] else other
    raise ValueError(f"{one} and {other} have no common type")


def _fits(one: str, other: str) -> bool:
    try:
        _wider(one, other)
    except ValueError:
        return False
    return True


def _decimal(kind: str) -> tuple[int, int] | None:
    if not kind.startswith("decimal("):
        return None
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def arrow_schema(fields: Sequence[IcebergField]) -> pa.Schema:
    """The Arrow (Parquet) schema that rows are written in; every field carries its Iceberg id."""
    return pa.schema([_arrow_field(field) for field in fields])


def _arrow_field(field: IcebergField) -> pa.Field:
    if field.kind == _MAP_KIND:
        key = pa.field("key", pa.utf8(), nullable=False, metadata=_id(field.key_id))
        kind: pa.DataType = pa.map_(key, pa.field("value", pa.utf8(), metadata=_id(field.value_id)))
    else:
        decimal = _decimal(field.kind)
        kind = pa.decimal128(*decimal) if decimal else _ARROW[field.kind]
    return pa.field(field.name, kind, metadata=_id(field.id))


def _id(number: int) -> dict[bytes, bytes]:
    return {FIELD_ID: str(number).encode()}


def to_rows(
    changes: pa.RecordBatch, schema: TopicSchema, wanted: pa.Schema, beside: Mapping[str, pa.Array | pa.Scalar] = NOTHING_BESIDE
) -> pa.RecordBatch:
    """Changes (see ``cdc.model.batch``) as rows of ``wanted``; columns that the changes do not have are NULL. ``beside``: what further columns hold."""
    sources = {label: name for name, label in labels(schema).items()} | {POSITION: POSITION, EXACT: EXACT}
    arrays = []
    for field in wanted:
        name = sources.get(field.name)
        if field.name in beside:
            held = beside[field.name]
            arrays.append(held if isinstance(held, pa.Array) else pa.repeat(held, changes.num_rows))
        elif name is None:
            arrays.append(pa.nulls(changes.num_rows, field.type))
        else:
            arrays.append(_converted(changes.column(name), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return _exact_map(values, kind)
    if values.type == kind:
        return values
    if pa.types.is_string(kind):
        return canonical_text(values)
    return values.cast(kind)


def _exact_map(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values.to_pylist(), kind)


def to_text(rows: pa.Table, schema: TopicSchema) -> pa.Table:
    """Warehouse rows (columns by their warehouse names, any missing ones NULL) as ``sinks.contract.audit_schema(schema)``."""
    exact = exact_texts(rows.column(EXACT).combine_chunks()) if EXACT in rows.column_names else {}
    arrays = []
    for column in schema.fields:
        label = labels(schema)[column.name]
        if label not in rows.column_names:
            arrays.append(pa.nulls(rows.num_rows, pa.utf8()))
            continue
        values = _joined(rows.column(label))
        if not pa.types.is_string(values.type):
            values = canonical_text(values.cast(column.type))
        arrays.append(with_exact(values, exact.get(column.name)))
    return pa.table(arrays, schema=pa.schema([pa.field(name, pa.utf8()) for name in schema.names]))


def _joined(values: pa.ChunkedArray) -> pa.Array:
    joined = values.combine_chunks()
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def exact_texts(exact: pa.Array | pa.ChunkedArray) -> dict[str, dict[int, str]]:
    """Column → row number → exact text, out of a ``_cdc_exact`` column. Empty for nearly every batch."""
    if isinstance(exact, pa.ChunkedArray):
        exact = _joined(exact)
    found: dict[str, dict[int, str]] = {}
    if exact.null_count == len(exact):
        return found
    for row in pc.indices_nonzero(exact.is_valid()).to_pylist():
        for name, text in exact[row].as_py():
            found.setdefault(name, {})[row] = text
    return found


def exact_names(
    fields: Sequence[IcebergField], held: TopicSchema, after: Sequence[IcebergField], schema: TopicSchema
) -> dict[str, str]:
    """Maps each column's name in ``_cdc_exact`` under ``held`` to its name there under ``table``.

    One of the table's columns goes by its name in the source; a column that is not (or no longer) one of them, by its own in the warehouse.
    """
    before, now = ({label: name for name, label in labels(one).items()} for one in (held, schema))
    names = {field.id: field.name for field in after}
    return {
        before.get(field.name, field.name): now.get(names[field.id], names[field.id])
        for field in fields
        if field.name not in (POSITION, EXACT)
    }


def carried_exact(
    exact: pa.ChunkedArray, before: pa.ChunkedArray, names: Mapping[str, str], schema: TopicSchema
) -> pa.Array | pa.ChunkedArray:
    """The ``_cdc_exact`` of rewritten rows together with what theirs said ``before`` of columns that are none of ``table``'s."""
    kept = {now: texts for name, texts in exact_texts(before).items() if (now := names.get(name, name)) not in schema.names}
    if not kept:
        return exact
    rows = [dict(entry or ()) for entry in exact.to_pylist()]
    for name, texts in kept.items():
        for row, text in texts.items():
            rows[row][name] = text
    return pa.array([list(entry.items()) or None for entry in rows], exact.type)


def with_exact(values: pa.Array, exact: Mapping[int, str] | None) -> pa.Array:
    """Text with the exact texts put in their rows."""
    if not exact:
        return values
    texts = values.to_pylist()
    for row, text in exact.items():
        texts[row] = text
    return pa.array(texts, pa.utf8())
