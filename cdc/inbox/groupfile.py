"""One group as bytes: an Arrow IPC stream with a header in its schema's metadata. Whatever is read
here is untrusted. Pure.

The file's name says who handed it over, which opening of that producer, which of its groups, and
the SHA-256 of all the file's bytes: ``PRODUCER~EPOCH~NUMBER~HASH.arrow``. Everything that a file
can say wrongly is refused in words that hold no value of a row.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from cdc.inbox.definition import table_for
from cdc.inbox.rowchecks import check_rows
from cdc.inbox.verdicts import MAX_MARK_TEXT_BYTES, GroupStep
from cdc.model.batch import OP
from cdc.model.table import Table

FORMAT: Final = 1
MAX_GROUP_BYTES: Final = 64 * 2**20
MAX_GROUP_ROWS: Final = 1_000_000
MAX_BATCHES: Final = 10_000
HEADER_METADATA: Final = b"cdc.group"
SUFFIX: Final = ".arrow"

_MAX_HEADER_BYTES: Final = 2**18
_PRODUCER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,119}")
_NAME: Final = re.compile(rf"({_PRODUCER.pattern})~(\d{{10}})~(\d{{10}})~([0-9a-f]{{64}})\.arrow")
_TOKEN: Final = re.compile(r"[0-9a-f]{32}")


class GroupRefused(Exception):
    """The file is put aside with this reason."""


@dataclass(frozen=True, slots=True, order=True)
class GroupName:
    """The facts in a file's name; in order, they are the order of one producer's groups."""

    producer: str
    epoch: int
    number: int
    digest: str

    @property
    def file(self) -> str:
        return f"{self.producer}~{self.epoch:010d}~{self.number:010d}~{self.digest}{SUFFIX}"


def name_of(file: str) -> GroupName | None:
    """Decodes a file's name; None for any other file."""
    found = _NAME.fullmatch(file)
    return GroupName(found[1], int(found[2]), int(found[3]), found[4]) if found else None


def check_producer(producer: str) -> str:
    """The name, if a producer may have it. Raises ValueError."""
    if not _PRODUCER.fullmatch(producer):
        raise ValueError("a producer's name is 1 to 120 of A-Z a-z 0-9 _ . : - and begins with a letter or a digit")
    return producer


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """A group's own words about itself. With a ``token`` it opens its producer and has no rows."""

    producer: str
    begin: str = ""
    to: str = ""
    topic: str = ""
    key: tuple[str, ...] = ()
    rows: int = 0
    token: str = ""
    redefines: bool = False
    """Its topic's key, and the types of columns that stay, may be others than before; its rows, and those of the groups behind it, are then all that the topic has."""

    def encode(self) -> bytes:
        facts: dict[str, Any] = {"format": FORMAT, "producer": self.producer}
        if self.token:
            facts |= {"open": self.token}
        else:
            facts |= {"from": self.begin, "to": self.to, "topic": self.topic, "key": list(self.key), "rows": self.rows}
            facts |= {"redefines": True} if self.redefines else {}
        return json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A group that is what it says. ``table`` is None where it brings no rows."""

    name: GroupName
    header: GroupHeader
    table: Table | None = None
    batches: tuple[pa.RecordBatch, ...] = ()

    @property
    def step(self) -> GroupStep:
        """The same for the decision."""
        header = self.header
        return GroupStep(self.name.epoch, header.begin, header.to, "" if header.token else self.name.digest, header.token)


def encode(header: GroupHeader, batches: Sequence[pa.RecordBatch] = ()) -> bytes:
    """The file's bytes. ``batches``: of one schema, ``OP`` (utf8: u or d) first and then the
    topic's columns.
    """
    schema = batches[0].schema if batches else pa.schema([])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata({HEADER_METADATA: header.encode()})) as stream:
        for batch in batches:
            stream.write_batch(batch.replace_schema_metadata({HEADER_METADATA: header.encode()}))
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def digest_of(raw: bytes) -> str:
    """The content hash of a group's file."""
    return hashlib.sha256(raw).hexdigest()


def decode(raw: bytes, name: GroupName) -> HandedOver:
    """Reads one file. Raises GroupRefused for whatever is not as it should be."""
    if len(raw) > MAX_GROUP_BYTES:
        raise GroupRefused(f"a group is at most {MAX_GROUP_BYTES} bytes long")
    if digest_of(raw) != name.digest:
        raise GroupRefused("its bytes are not those that its name says")
    schema, batches = _read(raw)
    header = _header((schema.metadata or {}).get(HEADER_METADATA))
    if header.producer != name.producer:
        raise GroupRefused("its header names another producer than its name")
    if sum(len(batch) for batch in batches) != header.rows:
        raise GroupRefused("it has another number of rows than its header says")
    if not header.topic:
        if len(schema) or header.rows:
            raise GroupRefused("it has columns or rows, and names no topic")
        return HandedOver(name, header)
    try:
        if not len(schema) or schema.field(0).name != OP or not schema.field(0).type.equals(pa.utf8()):
            raise ValueError(f"its first column is not {OP}, a text")
        table = table_for(header.topic, list(schema)[1:], header.key)
        check_rows(table, batches)
    except ValueError as error:
        raise GroupRefused(str(error)) from None
    return HandedOver(name, header, table, batches)


def _header(raw: bytes | None) -> GroupHeader:
    if raw is None or len(raw) > _MAX_HEADER_BYTES:
        raise GroupRefused("it has no header, or one that is too long")
    try:
        facts = json.loads(raw)
        if facts.pop("format") != FORMAT:
            raise GroupRefused(f"its format is not {FORMAT}")
        if "open" in facts:
            header = GroupHeader(facts.pop("producer"), token=facts.pop("open"))
            sound = isinstance(header.token, str) and bool(_TOKEN.fullmatch(header.token))
        else:
            producer, begin, to, topic = (facts.pop(name) for name in ("producer", "from", "to", "topic"))
            key, rows = facts.pop("key"), facts.pop("rows")
            redefines = facts.pop("redefines", False)
            header = GroupHeader(producer, begin, to, topic, tuple(key), rows, redefines=redefines)
            sound = _is_text(begin) and _is_text(to) and _is_text(topic) and type(rows) is int and bool(to) and begin != to
            sound = (
                sound and isinstance(redefines, bool) and isinstance(key, list) and all(isinstance(column, str) for column in key)
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise GroupRefused("its header cannot be read") from None
    if facts or not sound:
        raise GroupRefused("its header says something that a header cannot say")
    return header


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value.encode(errors="replace")) <= MAX_MARK_TEXT_BYTES and value.isprintable()


def _read(raw: bytes) -> tuple[pa.Schema, tuple[pa.RecordBatch, ...]]:
    """Every batch is checked down to its last offset before anything else looks at it."""
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(raw))
        first = messages.read_next_message()
        if first.type != "schema":
            raise GroupRefused("it does not begin with a schema")
        schema = pa.ipc.read_schema(first)
        if any(_nested(field.type) for field in schema):
            raise GroupRefused("it has a column of a type that a topic cannot have; docs/inbox.md lists those that it can")
        batches: list[pa.RecordBatch] = []
        rows = 0
        while (message := _next(messages)) is not None:
            if message.type != "record batch" or _compressed(message.metadata.to_pybytes()):
                raise GroupRefused("it has dictionaries or compressed buffers")
            batch = pa.ipc.read_record_batch(message, schema)
            rows += len(batch)
            if rows > MAX_GROUP_ROWS or len(batches) == MAX_BATCHES:
                raise GroupRefused(f"a group has at most {MAX_GROUP_ROWS} rows, in {MAX_BATCHES} batches")
            batch.validate(full=True)
            batches.append(batch)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, StopIteration, struct.error):
        raise GroupRefused("it is not a whole Arrow stream") from None
    return schema, tuple(batch for batch in batches if len(batch))


def _next(messages: Any) -> Any:
    try:
        return messages.read_next_message()
    except StopIteration:
        return None


def _nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType))


def _compressed(metadata: bytes) -> bool:
    """Whether the message's buffers are compressed, and so may become larger than any limit: asked
    before Arrow reads them.

    The metadata is a flatbuffer: a Message, whose field 2 leads to a RecordBatch, whose field 3 is
    its compression.
    """
    message = struct.unpack_from("<I", metadata)[0]
    header = _field(metadata, message, 2)
    if header is None:
        return True
    return _field(metadata, header + struct.unpack_from("<I", metadata, header)[0], 3) is not None


def _field(raw: bytes, table: int, number: int) -> int | None:
    """Where a flatbuffer's table has this field, if it has it. Raises struct.error outside the
    buffer.
    """
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    if vtable < 0:
        raise struct.error
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", raw, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", raw, vtable + at)[0]
    return table + offset if offset else None
