"""The definition of a topic that the source does not bring: a table made from an Arrow schema and a
key. Pure.

=============================  ==================  ==================================
Arrow type                     Postgres's type     may be in the key
=============================  ==================  ==================================
bool                           boolean             yes
int16, int32, int64            smallint … bigint   yes
float32, float64               real, double        no: NaN is not equal to itself
decimal128 (scale >= 0)        numeric             yes
date32, time64[us]             date, time          yes
timestamp[us], … with UTC      timestamp, …tz      yes
binary                         bytea               yes
utf8                           text                yes
utf8, ``cdc.type`` = jsonb     jsonb               no: one value has many texts
utf8, ``cdc.type`` = bigint[]  bigint[]            no; of each type of ``ARRAYS``
=============================  ==================  ==================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from cdc.inbox.arraychecks import ELEMENTS
from cdc.model import pgtypes
from cdc.model.batch import reserved_column
from cdc.model.outline import outline_of
from cdc.model.pgtypes import arrow_type
from cdc.model.structure import ArrayOf, Scalar, ScalarType, Structure, array_oid
from cdc.model.table import Column, Table, derived_number

_NAMES: Final = {
    pgtypes.BOOL: "boolean", pgtypes.INT2: "smallint", pgtypes.INT4: "integer", pgtypes.INT8: "bigint", pgtypes.FLOAT4: "real",
    pgtypes.FLOAT8: "double precision", pgtypes.DATE: "date", pgtypes.TIME: "time", pgtypes.TIMESTAMP: "timestamp",
    pgtypes.TIMESTAMPTZ: "timestamptz", pgtypes.BYTEA: "bytea", pgtypes.TEXT: "text", pgtypes.JSONB: "jsonb", pgtypes.NUMERIC: "numeric",
    pgtypes.UUID: "uuid",
}  # fmt: skip
MAX_COLUMNS: Final = 1600
MAX_COLUMN_BYTES: Final = 63
TYPE_METADATA: Final = b"cdc.type"
OUTLINE_METADATA: Final = b"cdc.outline"
JSONB: Final[Mapping[bytes, bytes]] = {TYPE_METADATA: b"jsonb"}
"""The metadata of a field whose texts are JSON."""
ARRAYS: Final[Mapping[str, int]] = {f"{_NAMES[getattr(pgtypes, one.name)]}[]": array_oid(one) for one in ELEMENTS}
"""The arrays' names in such a metadata, and their types' numbers."""
_ARRAY_NAMES: Final = {oid: name for name, oid in ARRAYS.items()}

_TEXTS: Final[Mapping[str, int]] = {"jsonb": pgtypes.JSONB, **ARRAYS}
"""What a text can be beside itself."""
_NUMBERS_AT_A_POSITION: Final = 2**11  # more than MAX_COLUMNS
_PART: Final = r"[a-z_][a-z0-9_]{0,47}"
_TOPIC: Final = re.compile(rf"({_PART})\.({_PART})")
_OIDS: Final[Sequence[tuple[pa.DataType, int]]] = (
    (pa.bool_(), pgtypes.BOOL),
    (pa.int16(), pgtypes.INT2),
    (pa.int32(), pgtypes.INT4),
    (pa.int64(), pgtypes.INT8),
    (pa.float32(), pgtypes.FLOAT4),
    (pa.float64(), pgtypes.FLOAT8),
    (pa.date32(), pgtypes.DATE),
    (pa.time64("us"), pgtypes.TIME),
    (pa.timestamp("us"), pgtypes.TIMESTAMP),
    (pa.timestamp("us", tz="UTC"), pgtypes.TIMESTAMPTZ),
    (pa.binary(), pgtypes.BYTEA),
    (pa.utf8(), pgtypes.TEXT),
)
_NOT_IN_KEYS: Final = frozenset((pgtypes.FLOAT4, pgtypes.FLOAT8, pgtypes.JSONB, *_ARRAY_NAMES))


def split_topic(topic: str) -> tuple[str, str]:
    """Schema and name. Raises ValueError for a name that a topic of another producer than the
    source cannot have.
    """
    found = _TOPIC.fullmatch(topic)
    if found is None:
        raise ValueError("the topic's name is not schema.name in small letters, digits and _, each of at most 48")
    return found[1], found[2]


def table_for(topic: str, fields: Sequence[pa.Field], key: Sequence[str]) -> Table:
    """The definition of the topic's rows. Raises ValueError, naming what cannot be."""
    schema, name = split_topic(topic)
    if not 0 < len(fields) <= MAX_COLUMNS:
        raise ValueError(f"a topic has 1 to {MAX_COLUMNS} columns")
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise ValueError("two columns have the same name")
    for column in names:
        if not 0 < len(column.encode()) <= MAX_COLUMN_BYTES or not column.isprintable():
            raise ValueError(f"a column's name is 1 to {MAX_COLUMN_BYTES} bytes of printable text")
    if not key or len(set(key)) != len(key) or not set(key) <= set(names):
        raise ValueError("the key does not name columns, each once")
    table = Table(derived_number(topic), schema, name, tuple(_column(field, field.name in key) for field in fields))
    if (reserved := reserved_column(table)) is not None:
        raise ValueError(f"column {reserved} has a name that Headwater uses itself")
    return table


def _column(field: pa.Field, key: bool) -> Column:
    oid, typmod = _type(field)
    if key and oid in _NOT_IN_KEYS:
        raise ValueError(f"column {field.name} cannot be in the key: it is {type_name(oid)}")
    return Column(field.name, oid, typmod, key=key, outline=_outline(field) if oid == pgtypes.JSONB else "")


def _outline(field: pa.Field) -> str:
    text = str((field.metadata or {}).get(OUTLINE_METADATA, b""), "utf-8", "replace")
    try:
        outline_of(text)
    except ValueError:
        raise ValueError(f"column {field.name} has an outline that cannot be read") from None
    return text


def _type(field: pa.Field) -> tuple[int, int]:
    kind, said = field.type, (field.metadata or {}).get(TYPE_METADATA, b"").decode(errors="replace")
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return pgtypes.NUMERIC, (kind.precision << 16 | kind.scale) + 4
    for known, oid in _OIDS:
        if kind.equals(known):
            return (_TEXTS.get(said, oid) if oid == pgtypes.TEXT else oid), -1
    raise ValueError(f"column {field.name} has a type that a topic cannot have; docs/inbox.md lists those that it can")


def numbered(table: Table, known: Table | None, position: int) -> Table:
    """The definition with a number for each column: that of ``known`` while the column is there, for a
    new one a number that nothing of the topic ever had. So a column that was dropped gives nothing to
    a later one of its name. ``position``: where the definition enters the log.
    """
    before = {} if known is None else {column.name: column.attnum for column in known.columns}
    first = position * _NUMBERS_AT_A_POSITION
    columns = [replace(column, attnum=before.get(column.name, first + at)) for at, column in enumerate(table.columns)]
    return replace(table, columns=tuple(columns))


def fields_of(table: Table) -> list[pa.Field]:
    """The Arrow fields that ``table_for`` makes these columns of."""
    return [
        pa.field(column.name, arrow_type(column), metadata=_metadata(column.type_oid, column.outline)) for column in table.columns
    ]


def typed(structure: Structure, outline: str = "") -> Mapping[bytes, bytes] | None:
    """The metadata of a field whose texts are such values; None for values that a topic has as they are, or as texts.

    ``outline``: of JSON, what its documents look like.
    """
    match structure:
        case Scalar(ScalarType.JSON | ScalarType.JSONB):
            return _metadata(pgtypes.JSONB, outline)
        case ArrayOf(Scalar(element), ","):
            with suppress(KeyError):
                return _metadata(array_oid(ScalarType.TEXT if element is ScalarType.VARCHAR else element))
    return None


def _metadata(oid: int, outline: str = "") -> dict[bytes, bytes] | None:
    name = next((name for name, of in _TEXTS.items() if of == oid), None)
    found = None if name is None else {TYPE_METADATA: name.encode()}
    return found | {OUTLINE_METADATA: outline.encode()} if found is not None and outline else found


def type_name(oid: int) -> str:
    """The type's name, for people."""
    return _ARRAY_NAMES.get(oid) or _NAMES[oid]


def rekeyed(known: Table, new: Table) -> bool:
    """Whether the topic's rows are told apart by other columns, or by such of other types."""
    return _told_apart_by(known) != _told_apart_by(new)


def _told_apart_by(table: Table) -> list[tuple[str, int, int]]:
    return [(column.name, column.type_oid, column.typmod) for column in table.key]


def refuses(known: Table, new: Table) -> str | None:
    """Why the topic's rows cannot go on under the new definition, unless it redefines the topic.
    Columns may come and go; the key stays, and the type of each column while it is there.
    """
    if [column.name for column in known.key] != [column.name for column in new.key]:
        return f"its key is another than the topic's ({', '.join(column.name for column in known.key)})"
    before = {column.name: column for column in known.columns}
    for column in new.columns:
        old = before.get(column.name)
        if old is not None and (old.type_oid, old.typmod) != (column.type_oid, column.typmod):
            return f"column {column.name} is {type_name(column.type_oid)}, in the topic it is {type_name(old.type_oid)}"
    return None
