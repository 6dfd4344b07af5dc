"""A topic's fields as DuckDB's types, and values as its columns hold them: what comes back as another text is text. Pure.

DuckDB holds some values that Arrow's types do not: infinity, 24:00:00. Through Arrow they go as the numbers that it keeps them as.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.pgtypes import canonical_text
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField
from sinks.render.fromtext import typed
from sinks.render.rowtext import ExactValues

TEXT: Final = "VARCHAR"
JSON: Final = "JSON"
UUID: Final = "UUID"

_TIMESTAMPTZ: Final = "TIMESTAMP WITH TIME ZONE"
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    _TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    "BLOB": pa.binary(),
}
_KINDS: Final = {arrow: kind for kind, arrow in _ARROW.items()}
_NUMBERS: Final[Mapping[str, pa.DataType]] = {
    "DATE": pa.int32(),
    "TIME": pa.int64(),
    "TIMESTAMP": pa.int64(),
    _TIMESTAMPTZ: pa.int64(),
}
_BEYOND: Final[Mapping[str, Mapping[str, int]]] = {
    "DATE": {"infinity": 2**31 - 1, "-infinity": 1 - 2**31},
    "TIME": {"24:00:00": 86_400_000_000},
    "TIMESTAMP": {"infinity": 2**63 - 1, "-infinity": 1 - 2**63},
    _TIMESTAMPTZ: {"infinity": 2**63 - 1, "-infinity": 1 - 2**63},
}
"""Type → canonical text → the number."""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def column_type(field: TopicField) -> str:
    """The type as DuckDB's catalog names it."""
    if field.protected:
        return TEXT  # a digest or a ciphertext
    if pa.types.is_decimal(field.type):
        return f"DECIMAL({field.type.precision},{field.type.scale})"
    if field.type in _KINDS:
        return _KINDS[field.type]
    if field.defined:
        return TEXT
    match field.structure:
        case Scalar(ScalarType.JSON | ScalarType.JSONB):
            return JSON
        case Scalar(ScalarType.UUID):
            return UUID
        case _:
            return TEXT


def is_known(kind: str) -> bool:
    """Whether ``column_type`` may say this type. Somebody has given any other one to a column himself: its values come and go as text."""
    return kind in _ARROW or kind in (TEXT, JSON, UUID) or _DECIMAL.fullmatch(kind) is not None


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type in which values go to a column of this type, and come from it."""
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _ARROW.get(kind, pa.utf8())


def as_held(values: pa.Array, exact: ExactValues | None, kind: str) -> pa.Array | None:
    """A batch's column as a column of type ``kind`` takes it; None where it cannot hold one of the values. Whether a text is JSON is not looked at."""
    wanted = arrow_type(kind)
    if exact is None and values.type == wanted and kind != UUID:
        return values
    texts = canonical_text(values)
    if exact is not None:
        texts = exact.put_into(texts)
    if kind == UUID:
        return texts if pc.all(pc.match_substring_regex(texts, _UUID)).as_py() is not False else None
    found, odd = typed(texts, wanted)
    return _beyond(found, odd, kind) if odd else found


def _beyond(values: pa.Array, odd: Mapping[int, str], kind: str) -> pa.Array | None:
    known = _BEYOND.get(kind, {})
    if not all(text in known for text in odd.values()):
        return None
    numbers = values.view(_NUMBERS[kind]).to_pylist()
    for row, text in odd.items():
        numbers[row] = known[text]
    return pa.array(numbers, _NUMBERS[kind]).view(values.type)


def as_text(values: pa.Array, kind: str) -> pa.Array:
    """The canonical text of a column's values as they come from there."""
    known = _BEYOND.get(kind)
    if known is None:
        return canonical_text(values)
    numbers = values.view(_NUMBERS[kind])
    found: dict[int, str] = {}
    for text, number in known.items():
        same = pc.equal(numbers, pa.scalar(number, numbers.type))
        found |= dict.fromkeys(pc.indices_nonzero(same.fill_null(False)).to_pylist(), text)
    if not found:
        return canonical_text(values)
    rows = np.array(sorted(found), np.int64)
    mask = np.zeros(len(values), np.bool_)
    mask[rows] = True
    rest = canonical_text(pc.if_else(pa.array(mask), pa.scalar(None, values.type), values))
    return ExactValues(rows, pa.array([found[row] for row in rows.tolist()], pa.utf8())).put_into(rest)
