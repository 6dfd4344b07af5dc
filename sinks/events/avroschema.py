"""The Avro schemas of keys and of Debezium's envelope. Pure.

Types that Avro names have its logical types: a numeric with bounds is ``decimal``, a date ``date``, a time ``time-micros``, timestamps ``timestamp-micros`` with a time zone and
``local-timestamp-micros`` without, a uuid ``uuid``. Fields that may be NULL are a union with null, which is their default, so that a schema with more of them reads what was written before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from sinks.events.flatrows import FlatField

Described = str | dict[str, Any] | list[Any]
_ODD: Final = re.compile(r"[^A-Za-z0-9_]")
_TYPES: Final[Mapping[int, Described]] = {
    pa.bool_().id: "boolean",
    pa.int16().id: "int",
    pa.int32().id: "int",
    pa.int64().id: "long",
    pa.float32().id: "float",
    pa.float64().id: "double",
    pa.binary().id: "bytes",
    pa.date32().id: {"type": "int", "logicalType": "date"},
    pa.time64("us").id: {"type": "long", "logicalType": "time-micros"},
}
_MEANINGS: Final[Mapping[str, Described]] = {
    "": "string",
    "uuid": {"type": "string", "logicalType": "uuid"},
    "json": {"type": "string", "connect.name": "io.debezium.data.Json"},
    "interval": {"type": "string", "connect.name": "io.debezium.time.Interval"},
}


def valid_name(name: str) -> str:
    """A name that Avro takes: letters, digits and ``_`` of ASCII, no digit first."""
    made = _ODD.sub("_", name)
    return f"_{made}" if not made or made[0].isdigit() else made


def _namespace(topic: str) -> str:
    return ".".join(map(valid_name, topic.split(".")))


def key_schema(topic: str, fields: Sequence[FlatField]) -> str:
    """The JSON of the schema of keys. ``topic``: its name in Kafka."""
    return _text(_record("Key", _namespace(topic), [_field(one) for one in fields]))


def envelope_schema(topic: str, fields: Sequence[FlatField]) -> str:
    """The JSON of the schema of values; the fields stand in the order of ``sinks.events.avro``."""
    space = _namespace(topic)
    return _text(
        _record(
            "Envelope",
            space,
            [
                _nullable("before", _record("Value", space, [_field(one) for one in fields])),
                _nullable("after", f"{space}.Value"),
                {"name": "source", "type": _record("Source", "io.debezium.connector.postgresql", _SOURCE)},
                _nullable("transaction", _record("block", "event", _BLOCK)),
                {"name": "op", "type": "string"},
                *(_nullable(one, "long") for one in ("ts_ms", "ts_us", "ts_ns")),
            ],
        )
    )


def plain_schema(kind: str) -> str:
    """The JSON of the schema of single values: ``string`` or ``bytes``."""
    return _text(kind)


def _nullable(name: str, kind: Described) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


_SOURCE: Final = [
    {"name": "version", "type": "string"},
    {"name": "connector", "type": "string"},
    {"name": "name", "type": "string"},
    {"name": "ts_ms", "type": "long"},
    _nullable("snapshot", "string"),
    {"name": "db", "type": "string"},
    _nullable("sequence", "string"),
    _nullable("ts_us", "long"),
    _nullable("ts_ns", "long"),
    {"name": "schema", "type": "string"},
    {"name": "table", "type": "string"},
    _nullable("txId", "long"),
    _nullable("lsn", "long"),
    _nullable("xmin", "long"),
    _nullable("origin", "string"),
    _nullable("origin_lsn", "long"),
]
_BLOCK: Final = [
    {"name": "id", "type": "string"},
    {"name": "total_order", "type": "long"},
    {"name": "data_collection_order", "type": "long"},
]


def _record(name: str, space: str, fields: Sequence[Described]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": space, "fields": list(fields)}


def _field(one: FlatField) -> dict[str, Any]:
    kind = _type(one)
    name = valid_name(one.name)
    return {"name": name, "type": kind} if one.required else _nullable(name, kind)


def _type(one: FlatField) -> Described:
    if pa.types.is_decimal(one.type):
        return {"type": "bytes", "logicalType": "decimal", "precision": one.type.precision, "scale": one.type.scale}
    if pa.types.is_timestamp(one.type):
        return {"type": "long", "logicalType": "timestamp-micros" if one.type.tz else "local-timestamp-micros"}
    return _TYPES.get(one.type.id) or _MEANINGS[one.meaning]


def _text(schema: Described) -> str:
    return json.dumps(schema, separators=(",", ":"))
