"""A user's file as rows of a topic: NDJSON, one object a line, or Parquet. docs/inbox.md has the
rules.

An object's member ``op`` is never a column: ``"u"`` (or nothing) is the row as it is from here on,
``"d"`` says that the row with this key is gone. Parquet holds rows as they are from here on. No
message shows a value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.errors import ConfigError
from cdc.inbox.definition import JSONB, TYPE_METADATA, fields_of, table_for
from cdc.inbox.rowchecks import DELETE, UPSERT, check_rows
from cdc.model.batch import OP
from cdc.model.table import Table

_EXACT_IN_DOUBLE: Final = 2**53
_BIGINT: Final = 2**63
_DOCS: Final = "docs/inbox.md has the rules"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileRows:
    """``rows``: ``OP`` and then the topic's columns. ``digest``: of the topic, the key and the
    file's bytes.
    """

    rows: pa.Table
    key: tuple[str, ...]
    digest: str


def read_rows(path: Path, topic: str, key: Sequence[str], known: Table | None) -> FileRows:
    """Reads and checks the whole file. ``known``: the topic's definition in the log. Raises
    ConfigError for what cannot be appended, OSError.
    """
    raw = path.read_bytes()
    try:
        if not key:
            raise ValueError("the topic is new, so its key has to be named with --key")
        rows = _parquet(raw, known) if raw[:4] == b"PAR1" else _ndjson(raw, key, known)
        check_rows(table_for(topic, list(rows.schema)[1:], key), rows.to_batches())
    except (ValueError, pa.ArrowException) as error:
        problem = str(error) if type(error) is ValueError else "it cannot be read"
        raise ConfigError(f"{path}: {problem}", hint=_DOCS) from None
    digest = hashlib.blake2b(json.dumps([topic, list(key)]).encode(), digest_size=16)
    digest.update(raw)
    return FileRows(rows, tuple(key), digest.hexdigest())


# --- Parquet ---------------------------------------------------------------------------------------------------------


def _parquet(raw: bytes, known: Table | None) -> pa.Table:
    found = topic_columns(pq.read_table(pa.BufferReader(raw)), known)
    return found.add_column(0, pa.field(OP, pa.utf8()), [pa.array([UPSERT] * len(found), pa.utf8())])


def topic_columns(found: pa.Table, known: Table | None) -> pa.Table:
    """The same values in types that a topic can have: the next wider one, and JSON for what is nested. Raises ValueError and
    ``pa.ArrowException`` where a value would not be the same.
    """
    arrays: list[pa.ChunkedArray | pa.Array] = []
    fields = []
    said = {field.name: field.metadata for field in (fields_of(known) if known else ()) if field.metadata}
    for field, values in zip(found.schema, found.columns, strict=True):
        kind, metadata = field.type, said.get(field.name)
        if pa.types.is_dictionary(kind):
            values = values.cast(kind.value_type)
            kind = kind.value_type
        if pa.types.is_nested(kind):
            texts = [None if value is None else _json_text(value) for value in values.to_pylist()]
            values, kind, metadata = pa.array(texts, pa.utf8()), pa.utf8(), dict(JSONB)
        wanted = _nearest(kind)
        arrays.append(values if wanted.equals(kind) else values.cast(wanted))
        fields.append(pa.field(field.name, wanted, metadata=metadata))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _nearest(kind: pa.DataType) -> pa.DataType:
    """The type of a topic that holds this one's values; a cast that would lose something raises."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.utf8()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_int8(kind) or pa.types.is_uint8(kind):
        return pa.int16()
    if pa.types.is_uint16(kind):
        return pa.int32()
    if pa.types.is_uint32(kind) or pa.types.is_uint64(kind):
        return pa.int64()
    return pa.float32() if pa.types.is_float16(kind) else kind


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except TypeError:
        raise ValueError("a nested column holds something that JSON cannot hold, such as a time") from None


# --- NDJSON ----------------------------------------------------------------------------------------------------------


def _ndjson(raw: bytes, key: Sequence[str], known: Table | None) -> pa.Table:
    found = {number: _object(line, number) for number, line in enumerate(raw.splitlines(), 1) if line.strip()}
    lines, rows = list(found), list(found.values())
    ops = [row.pop("op", UPSERT) for row in rows]
    _check_keys(rows, ops, lines, key)
    fields = {field.name: field for field in (fields_of(known) if known else ())}
    names = dict.fromkeys([*fields, *(name for row in rows for name in row)])
    arrays, kept = [pa.array(ops, pa.utf8())], [pa.field(OP, pa.utf8())]
    for name in names:
        values = [row.get(name) for row in rows]
        field = fields.get(name) or _inferred(name, values)
        if field is not None:
            arrays.append(_array(field, values))
            kept.append(field)
    return pa.Table.from_arrays(arrays, schema=pa.schema(kept))


def _object(line: bytes, number: int) -> Row:
    try:
        row = json.loads(line, parse_constant=_not_json, parse_float=_double)
    except _Inexact:
        raise ValueError(f"line {number} has a number that double precision does not hold exactly; write it as a text") from None
    except (ValueError, RecursionError):
        raise ValueError(f"line {number} is not JSON") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not an object")
    return row


def _not_json(_: str) -> NoReturn:
    raise ValueError


class _Inexact(Exception):
    """A number with more digits, or a larger one, than a double has."""


def _double(text: str) -> float:
    """The number, if its shortest text as a double says the same."""
    value = float(text)
    try:
        exact = math.isfinite(value) and Decimal(repr(value)) == Decimal(text)
    except InvalidOperation:  # an exponent that not even a decimal can have
        exact = False
    if not exact:
        raise _Inexact
    return value


def _check_keys(rows: Sequence[Row], ops: Sequence[Any], lines: Sequence[int], key: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for row, op, line in zip(rows, ops, lines, strict=True):
        if op not in (UPSERT, DELETE):
            raise ValueError(f'line {line}: op is "{UPSERT}" or "{DELETE}"')
        missing = [name for name in key if row.get(name) is None]
        if missing:
            raise ValueError(f"line {line} has no {missing[0]}, which is in the key")
        if op == DELETE and len(row) != len(key):
            raise ValueError(f'line {line}: with "op": "{DELETE}" there is the key and nothing else')
        own = json.dumps([row[name] for name in key])
        if own in seen:
            raise ValueError(f"lines {seen[own]} and {line} have the same key; a file says of each row once what becomes of it")
        seen[own] = line


def _kind(value: Any) -> str:
    return "json" if isinstance(value, dict | list) else type(value).__name__


def _inferred(name: str, values: Sequence[Any]) -> pa.Field | None:
    """The field for a column that the topic does not have yet; None when it has no value at all."""
    kinds = {_kind(value) for value in values if value is not None}
    if not kinds:
        return None
    if "json" in kinds:
        return pa.field(name, pa.utf8(), metadata=dict(JSONB))
    types: Mapping[frozenset[str], pa.DataType] = {
        frozenset(("bool",)): pa.bool_(),
        frozenset(("int",)): pa.int64(),
        frozenset(("float",)): pa.float64(),
        frozenset(("int", "float")): pa.float64(),
        frozenset(("str",)): pa.utf8(),
    }
    found = types.get(frozenset(kinds))
    if found is None:
        raise ValueError(f"column {name} has values of several kinds, which no type holds")
    return pa.field(name, found)


_TAKEN: Final[Sequence[tuple[pa.DataType, frozenset[str]]]] = (
    (pa.bool_(), frozenset(("bool",))),
    (pa.int16(), frozenset(("int",))),
    (pa.int32(), frozenset(("int",))),
    (pa.int64(), frozenset(("int",))),
    (pa.float32(), frozenset(("int", "float"))),
    (pa.float64(), frozenset(("int", "float"))),
)
"""What JSON has a kind of value for. All other types are read from texts."""


def _array(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """The values as the field's type. Raises ValueError, naming the column, where they are
    something else.
    """
    kind = field.type
    if (field.metadata or {}).get(TYPE_METADATA) == JSONB[TYPE_METADATA]:
        return pa.array([None if value is None else _json_text(value) for value in values], pa.utf8())
    kinds = {_kind(value) for value in values if value is not None}
    taken = next((taken for known, taken in _TAKEN if known.equals(kind)), frozenset(("str",)))
    whole = [value for value in values if _kind(value) == "int"]
    limit = _EXACT_IN_DOUBLE if pa.types.is_floating(kind) else _BIGINT - 1
    if not kinds <= taken or any(abs(value) > limit for value in whole):
        raise ValueError(f"column {field.name} holds something that is not {_named(field)}")
    try:
        if taken == frozenset(("str",)) and kind not in (pa.utf8(), pa.binary()):
            return pa.array(values, pa.utf8()).cast(kind)
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, OverflowError):
        raise ValueError(f"column {field.name} holds something that is not {_named(field)}") from None


def _named(field: pa.Field) -> str:
    return {pa.int64(): "bigint", pa.utf8(): "text", pa.float64(): "double precision"}.get(field.type, str(field.type))
