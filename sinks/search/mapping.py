"""A table's strict mapping: every column is a field of the type that fits, and nothing else may enter. Pure.

The document itself (``_source``) is exact; a field is what is searched and may be coarser: a numeric is a double there, a timestamp
has milliseconds, and what a field cannot hold (NaN, infinity, years before 1) is left out of it (``ignore_malformed``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from cdc.model.batch import POSITION
from cdc.model.pgtypes import BPCHAR, FLOAT4, FLOAT8, NAME, NUMERIC, TEXT, VARCHAR, XML, arrow_type
from cdc.model.table import Column, Table
from sinks.jsonrows import DELETED
from sinks.search.naming import field_names

KEYWORD_CHARACTERS_MAX: Final = 8191
"""Lucene takes terms of up to 32,766 bytes, a character has up to 4."""
TEXT_KEYWORD_CHARACTERS_MAX: Final = 1024
FIELDS_DEFAULT_MAX: Final = 1000
"""``index.mapping.total_fields.limit`` as it is when nobody sets it."""

_FULL_TEXT: Final = frozenset((TEXT, VARCHAR, BPCHAR, NAME, XML))
_OWN_FIELDS: Final[Mapping[str, Any]] = {POSITION: {"type": "long"}, DELETED: {"type": "boolean"}}


def properties(table: Table) -> dict[str, Any]:
    """Field → its mapping, our own fields among them."""
    names = field_names(table)
    return {**_OWN_FIELDS, **{names.get(column.name, column.name): _field(column) for column in table.columns}}


def fields_limit(table: Table) -> int:
    """Room for every column with its sub-field, and as much again for columns to come."""
    return max(FIELDS_DEFAULT_MAX, 4 * len(table.columns))


def missing(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an index lacks."""
    return {name: field for name, field in wanted.items() if name not in held}


def contradicted(wanted: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    """The fields that an index has with another type; a field's type never changes."""
    return sorted(name for name, field in wanted.items() if name in held and held[name].get("type") != field["type"])


def _field(column: Column) -> dict[str, Any]:
    kind = arrow_type(column)
    if column.type_oid in (NUMERIC, FLOAT8, FLOAT4):
        return {"type": "float" if column.type_oid == FLOAT4 else "double", "ignore_malformed": True}
    if pa.types.is_integer(kind):
        return {"type": "long", "ignore_malformed": True}
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
    if pa.types.is_binary(kind):
        return {"type": "binary"}
    if column.type_oid in _FULL_TEXT:
        keyword = {"type": "keyword", "ignore_above": TEXT_KEYWORD_CHARACTERS_MAX}
        return {"type": "text", "fields": {"keyword": keyword}}
    return {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS_MAX}
