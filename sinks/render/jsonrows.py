"""Record batches → JSON documents, column by column: no Python object per row.

How a value stands in JSON says ``sinks.render``: of its own kind (numbers with their exact digits, arrays, objects …), dates
"2013-01-31", timestamps "2013-01-31T10:00:00.5" (with a Z when the type has a time zone), bytea in base64, and what JSON of that kind
cannot hold exactly as the string of Postgres's text. NULL is null; of a json or jsonb column, where null is JSON's own, it is left out.

>>> lines(batch, table)
b'{"_cdc_position":7,"id":1,"amount":1.10,"note":null}\\n'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.digits import decimal_text
from cdc.kernels.memory import Reused
from cdc.kernels.moments import date_text, time_text, timestamp_text
from cdc.model.batch import OP, POSITION, Op, is_truncate
from cdc.model.display import As
from cdc.model.evolution import topic_change_of
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicField, TopicSchema
from sinks.render import columns
from sinks.render import jsonkernels as kernels
from sinks.render.columns import literal_texts, lossy_numbers, trimmed
from sinks.render.jsonkernels import ABSENT, NULL, VALUE, Bytes
from sinks.render.kinds import JSON_KINDS, Kind, Leaf, Object, kind_of
from sinks.render.rowtext import ExactValues, column_text, exact_values
from sinks.render.texts import NOTHING, binary_view, readonly, view
from sinks.render.texts import Texts as Texts
from sinks.render.texts import raw_texts as raw_texts
from sinks.render.tokenkernels import DOUBLE_DIGITS, UPPER_T

Mask = npt.NDArray[np.bool_]

DELETED: Final = "_cdc_deleted"
"""Set (to true) in the document that stands for a deleted row; such a document carries the key's columns only."""

_NO_STATES: Final = np.empty(0, np.uint8)
BUFFERS: Final = Reused(16 << 20)
"""What rows are put together in."""
QUOTE: Final = 34
_ZULU: Final = np.frombuffer(b"Z", np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Style:
    """The differences between stores; made once for a table, as plans are kept by it. ``doubles``: the store reads numbers as doubles (``sinks.render.literals``)."""

    doubles: bool = False
    as_: Mapping[str, As] = field(default_factory=dict)
    """Column → what the configuration asks for."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Column → the name that it has in the document, where that is not its own."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Column → what its values become, where that follows neither from its type nor from ``as_``."""

    def kind(self, column: TopicField) -> Kind:
        """The kind of JSON that the column's values become."""
        return self.kinds.get(column.name) or kind_of(column, self.as_.get(column.name))


EXACT: Final = Style()


class Piece(NamedTuple):
    """A part of every row: ``before`` + the row's text + ``after``; or ``null``, or nothing, where ``states`` says so."""

    texts: Texts
    before: bytes = b""
    after: bytes = b""
    null: bytes = b""
    states: Bytes | None = None


class Member(NamedTuple):
    """One column's place in every document: its literals are ``quote`` + text + ``quote`` where ``states`` (None: everywhere) is VALUE."""

    column: TopicField
    kind: Kind
    label: bytes
    texts: Texts
    quote: bytes
    states: Bytes | None
    told: Mask | None = None
    """For JSON: where the literal is the string of a text that could not stand as itself; None: nowhere."""

    def literals(self) -> Texts:
        """With their quotes."""
        return join([Piece(self.texts, self.quote, self.quote)]) if self.quote else self.texts


def join(pieces: Sequence[Piece]) -> Texts:
    """Row by row, all pieces one after the other."""
    rows = len(pieces[0].texts)
    lengths = np.zeros(rows, np.int64)
    for piece in pieces:
        states = _NO_STATES if piece.states is None else piece.states
        kernels.add_lengths(lengths, piece.texts.offsets, states, len(piece.before) + len(piece.after), len(piece.null))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = BUFFERS.take(int(offsets[-1]))
    cursors = offsets[:-1].copy()
    for piece in pieces:
        around = (_bytes(piece.before), _bytes(piece.after), _bytes(piece.null))
        states = _NO_STATES if piece.states is None else piece.states
        kernels.put_piece(out, cursors, piece.texts.data, piece.texts.offsets, states, *around)
    return Texts(out, offsets)


def members(batch: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> Iterator[Member]:
    """The columns of each row's document, in the table's order. A delete has the key's columns only."""
    deleted, exact = _deleted(batch), exact_values(batch)
    for column, kind, label, encoder, null in _shown(schema, style):
        values, beside = batch.column(column.name), exact.get(column.name) if exact else None
        texts, quote = _literals(values, encoder, beside)
        told = _told(texts, values, beside) if kind in JSON_KINDS else None
        yield Member(column, kind, label, texts, quote, _states(values, beside, None if column.key else deleted, null), told)


@lru_cache(maxsize=1024)
def _shown(schema: TopicSchema, style: Style) -> Sequence[tuple[TopicField, Kind, bytes, _Encoder, int]]:
    """Each column, its kind, how its member begins, what writes it, and what stands for NULL."""
    found = []
    for column in schema.fields:
        if not column.shown:
            continue
        kind = style.kind(column)
        null = ABSENT if kind in JSON_KINDS else NULL
        label = label_of(place_of(column, style)[-1])
        found.append((column, kind, label, _encoder(column.type, kind, style.doubles, key=column.key), null))
    return found


def place_of(column: TopicField, style: Style) -> tuple[str, ...]:
    """Where the column stands in a document: the name of each object on the way, then its own there."""
    return column.path or (style.names.get(column.name, column.name),)


def objects(given: Iterable[Member], rows: int, depth: int = 0) -> Iterator[Member]:
    """The members of a document: those that stand in an object further in, which come one after the other, as that one object. ``depth``: how many
    objects there are around all of these."""

    def around(member: Member) -> tuple[str, ...] | None:
        path = member.column.path
        return path[: depth + 1] if len(path) > depth + 1 else None

    for path, group in groupby(given, around):
        if path is None:
            yield from group
            continue
        inner = list(objects(group, rows, depth + 1))
        absent = [member.states == ABSENT for member in inner if member.states is not None]
        states = np.where(np.all(absent, axis=0), ABSENT, VALUE).astype(np.uint8) if len(absent) == len(inner) else None
        yield Member(inner[0].column, Object(()), label_of(path[-1]), join(_members_pieces(inner, (), rows)), b"", states)


def label_of(name: str) -> bytes:
    """How a member of that name begins."""
    return json.dumps(name, ensure_ascii=False).encode() + b":"


def object_pieces(given: Iterable[Member], head: Sequence[Piece] = (), *, rows: int) -> list[Piece]:
    """The pieces of one JSON object per row. ``head``: what stands before the members in every row, the opening brace with it."""
    return _members_pieces(objects(given, rows), head, rows)


def _members_pieces(given: Iterable[Member], head: Sequence[Piece], rows: int) -> list[Piece]:
    pieces = list(head) or [Piece(_empty(rows), before=b"{")]
    begun: Mask | None = None if head else np.zeros(rows, np.bool_)
    """Where a member stands already, so that the next one comes behind a comma; None: everywhere."""
    for member in given:
        if begun is None:
            pieces.append(_labelled(member, b"," + member.label, member.states))
            continue
        if not begun.any():
            pieces.append(_labelled(member, member.label, member.states))
        else:
            states = np.zeros(rows, np.uint8) if member.states is None else member.states
            for which, before in ((~begun, member.label), (begun, b"," + member.label)):
                pieces.append(_labelled(member, before, np.where(which, states, ABSENT).astype(np.uint8)))
        begun = None if member.states is None else begun | (member.states != ABSENT)
        begun = None if begun is None or begun.all() else begun
    pieces.append(Piece(_empty(rows), before=b"}"))
    return pieces


def _labelled(member: Member, label: bytes, states: Bytes | None) -> Piece:
    return Piece(member.texts, label + member.quote, member.quote, label + b"null", states)


def head_pieces(batch: pa.RecordBatch) -> list[Piece]:
    """How a document with our own fields begins: ``_cdc_position``, then ``_cdc_deleted`` in deletes."""
    pieces, deleted = [Piece(position_texts(batch), before=f'{{"{POSITION}":'.encode())], _deleted(batch)
    if deleted is not None:
        mark = f',"{DELETED}":true'.encode()
        pieces.append(Piece(_empty(len(batch)), before=mark, states=np.where(deleted, VALUE, ABSENT).astype(np.uint8)))
    return pieces


def document_pieces(batch: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> list[Piece]:
    """The pieces of one JSON object per row: ``_cdc_position`` first, then ``_cdc_deleted`` in deletes, then the columns."""
    return object_pieces(members(batch, schema, style), head_pieces(batch), rows=len(batch))


def documents(batch: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> Texts:
    """One JSON object per row (see ``document_pieces``)."""
    return join(document_pieces(batch, schema, style))


def plain_documents(batch: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> Texts:
    """One JSON object per row without any field of ours: the row itself."""
    return join(object_pieces(members(batch, schema, style), rows=len(batch)))


def fields(batch: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> Iterator[tuple[Member, Texts]]:
    """Each column as a field of text: a scalar's own text, the JSON of everything else. Of NULL (and in deletes) it may be anything.

    Numbers and booleans are written as in JSON; strings are what they say, but those of a json or jsonb column, which keep their quotes.
    """
    exact = exact_values(batch)
    for member in objects(members(batch, schema, style), len(batch)):
        if member.kind is Leaf.TEXT or not member.quote:
            yield member, _field(member, partial(column_text, batch, member.column.name, exact))
        else:
            yield member, member.texts


def _field(member: Member, own: Callable[[], pa.Array]) -> Texts:
    """``own``: makes the column's own text, which few columns need."""
    if member.kind is Leaf.TEXT:
        return raw_texts(own())
    strings = first_bytes(member.texts) == QUOTE
    if member.kind in JSON_KINDS:
        strings = np.zeros(len(strings), np.bool_) if member.told is None else member.told
    if not strings.any():
        return member.texts
    whole = member.texts.to_array()
    bare = pc.binary_slice(whole, 1, -1)
    # Only a text that is not of its column's kind has anything in it that a string must escape.
    escaped = pc.match_substring(bare, "\\")
    bare = pc.if_else(escaped, own().fill_null("").cast(pa.large_binary()), bare) if pc.any(escaped).as_py() else bare
    return raw_texts(pc.if_else(pa.array(strings), bare, whole))


def lines(batch: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> bytes:
    """The batch as NDJSON. A TRUNCATE is the line ``{"_cdc_position":7,"_cdc_truncated":"schema.table"}``, a SCHEMA record the line
    ``{"_cdc_position":7,"_cdc_schema":"schema.table","kind":"altered","columns":[…]}``, with ``"empties":true`` when every row is gone."""
    if (change := topic_change_of(batch)) is not None:
        told: dict[str, Any] = {POSITION: batch.column(POSITION)[0].as_py(), "_cdc_schema": schema.topic, "kind": change.kind}
        told |= (
            {"columns": list(schema.names)}
            | ({"empties": True} if change.empties else {})
            | ({"now": change.now} if change.now else {})
        )
        return (json.dumps(told, separators=(",", ":"), ensure_ascii=False) + "\n").encode()
    if is_truncate(batch):
        position = batch.column(POSITION)[0].as_py()
        return (json.dumps({POSITION: position, "_cdc_truncated": schema.topic}, separators=(",", ":")) + "\n").encode()
    pieces = document_pieces(batch, schema, style)
    return join([*pieces, Piece(_empty(len(batch)), before=b"\n")]).data.tobytes()


def position_texts(batch: pa.RecordBatch) -> Texts:
    """Each row's position in decimal digits."""
    return Texts(*kernels.integer_text(_numbers(batch.column(POSITION))))


def string_texts(values: pa.Array) -> Texts:
    """utf8 values as the inside of JSON strings; empty for NULL."""
    data, offsets = binary_view(values)
    if kernels.needs_escape(data[offsets[0] : offsets[-1]]):
        return Texts(*kernels.escape_text(data, offsets))
    return Texts(data, offsets)


@cache
def warm_up() -> None:
    """Compiles (once per machine) or loads (once per process) every kernel, so that no batch has to wait for it."""
    nothing, start = readonly(np.empty(0, np.uint8)), readonly(np.zeros(1, np.int64))
    none = readonly(np.empty(0, np.int64))
    kernels.integer_text(none)
    decimal_text(readonly(np.empty(0, np.uint64)), 0)
    date_text(readonly(np.empty(0, np.int32)))
    time_text(none)
    timestamp_text(none, UPPER_T, _ZULU)
    kernels.base64_text(nothing, start)
    kernels.needs_escape(nothing)
    kernels.escape_text(nothing, start)
    join([Piece(_empty(0))])
    columns.warm_up()


def _literals(values: pa.Array, encoder: _Encoder, exact: ExactValues | None) -> tuple[Texts, bytes]:
    """A column's literals without their quotes, and the quotes."""
    texts, quote = encoder.encode(values), encoder.quote
    odd = None if encoder.odd is None else encoder.odd(values, texts)
    if odd is None and exact is None:
        return texts, quote
    # All literals are written out, then the odd ones take the place of theirs.
    mixed = join([Piece(texts, quote, quote)]).to_array()
    if odd is not None:
        mixed = odd.put_into(mixed)
    if exact is not None:
        mixed = ExactValues(exact.rows, join([Piece(string_texts(exact.texts), b'"', b'"')]).to_array()).put_into(mixed)
    return raw_texts(mixed), b""


def _told(texts: Texts, values: pa.Array, exact: ExactValues | None) -> Mask | None:
    """Where a literal is the string of a text that could not be itself; a string in JSON is one that is."""
    strings: Mask = first_bytes(texts) == QUOTE
    rows = np.flatnonzero(strings)
    if len(rows) == 0:
        return None
    own = [text is not None and text.lstrip(" \t\n\r").startswith('"') for text in values.take(pa.array(rows)).to_pylist()]
    strings[rows[own]] = False
    if exact is not None:
        strings[exact.rows] = True
    return strings


def first_bytes(texts: Texts) -> Bytes:
    """The first byte of each text, which says what a literal is; anything for an empty one."""
    if len(texts.data) == 0:
        return np.zeros(len(texts), np.uint8)
    found: Bytes = texts.data[np.minimum(texts.offsets[:-1], len(texts.data) - 1)]
    return found


def _odd_floats(values: pa.Array, _: Texts) -> ExactValues | None:
    """The literals (large_binary) of what is not written as a number, or not like Arrow does."""
    numbers = values.to_numpy(zero_copy_only=False)
    # A NULL is NaN in numpy. Many JSON readers take the literal -0 for an integer and lose its sign.
    odd = ~np.isfinite(numbers) & values.is_valid().to_numpy(zero_copy_only=False) | (numbers == 0) & np.signbit(numbers)
    if not odd.any():
        return None
    rows = np.flatnonzero(odd)
    return ExactValues(rows, pa.array([_odd_float(value) for value in numbers[rows].tolist()], pa.large_binary()))


def _lossy_decimals(values: pa.Array, texts: Texts) -> ExactValues | None:
    """The literals (large_binary) of decimals that a double does not hold."""
    rows = lossy_numbers(texts)
    rows = np.sort(rows[values.is_valid().to_numpy(zero_copy_only=False)[rows]])
    if len(rows) == 0:
        return None
    return ExactValues(rows, join([Piece(raw_texts(texts.to_array().take(pa.array(rows))), b'"', b'"')]).to_array())


def _zeros_at_the_end(values: pa.Array, _: Texts) -> ExactValues | None:
    """The literals (large_binary) of a key's numbers that would not come back from a double with the text that names their document."""
    odd = pc.fill_null(pc.not_equal(trimmed(values), values), False)
    rows = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
    return ExactValues(rows, join([Piece(string_texts(values.filter(odd)), b'"', b'"')]).to_array()) if len(rows) else None


class _Encoder(NamedTuple):
    encode: Callable[[pa.Array], Texts]
    """Where a value is NULL anything may be written."""
    quote: bytes = b'"'
    odd: Callable[[pa.Array, Texts], ExactValues | None] | None = None
    """The literals (large_binary) that ``encode`` cannot write."""


def _encoder(held: pa.DataType, kind: Kind, doubles: bool, *, key: bool = False) -> _Encoder:
    """What writes a column of this Arrow type as values of the kind."""
    if pa.types.is_string(held):
        odd = _zeros_at_the_end if key and doubles and kind is Leaf.NUMBER else None
        return (
            _Encoder(string_texts) if kind is Leaf.TEXT else _Encoder(partial(literal_texts, kind=kind, doubles=doubles), b"", odd)
        )
    if kind in JSON_KINDS or (kind is Leaf.TEXT and not pa.types.is_date(held) and not pa.types.is_time(held)):
        as_text = _encoder(pa.utf8(), kind, doubles)
        return _Encoder(lambda values: as_text.encode(canonical_text(values)), as_text.quote)
    if pa.types.is_integer(held):
        return _Encoder(lambda values: Texts(*kernels.integer_text(readonly(_numbers(values).astype(np.int64, copy=False)))), b"")
    if pa.types.is_boolean(held) or pa.types.is_floating(held):
        odd = _odd_floats if pa.types.is_floating(held) else None
        return _Encoder(lambda values: raw_texts(values.cast(pa.utf8())), b"", odd)
    if pa.types.is_decimal(held):
        lossy = _lossy_decimals if doubles and held.scale and held.precision > DOUBLE_DIGITS else None
        return _Encoder(lambda values: Texts(*decimal_text(_words(values), held.scale)), b"", lossy)
    if pa.types.is_date(held):
        return _Encoder(lambda values: Texts(*date_text(_numbers(values))))
    if pa.types.is_time(held):
        return _Encoder(lambda values: Texts(*time_text(_numbers(values))))
    if pa.types.is_timestamp(held):
        return _Encoder(lambda values: Texts(*timestamp_text(_numbers(values), UPPER_T, _ZULU if held.tz else _ZULU[:0])))
    return _Encoder(lambda values: Texts(*kernels.base64_text(*binary_view(values))))


def _states(values: pa.Array, exact: ExactValues | None, absent: Mask | None, null: int) -> Bytes | None:
    """``null``: what stands in the place of NULL."""
    if values.null_count == 0 and absent is None:
        return None
    states: Bytes = values.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)  # NULL is 1, VALUE is 0
    assert (VALUE, NULL) == (0, 1)
    if exact is not None:
        states[exact.rows] = VALUE
    if null != NULL:
        states[states == NULL] = null
    if absent is not None:
        states[absent] = ABSENT
    return states


def _deleted(batch: pa.RecordBatch) -> Mask | None:
    deleted = batch.column(OP).to_numpy() == int(Op.DELETE)
    return deleted if deleted.any() else None


def _numbers(values: pa.Array) -> npt.NDArray[Any]:
    """The values' own buffer; what stands at a NULL is anything (mostly 0)."""
    return view(values.buffers()[1], np.dtype(f"i{values.type.bit_width // 8}"), len(values), values.offset)


def _words(values: pa.Array) -> npt.NDArray[Any]:
    return view(values.buffers()[1], np.dtype(np.uint64), 2 * len(values), 2 * values.offset)


def _odd_float(value: float) -> bytes:
    if value == 0:
        return b"-0.0"
    return b'"NaN"' if value != value else b'"Infinity"' if value > 0 else b'"-Infinity"'


def _empty(rows: int) -> Texts:
    return Texts(NOTHING, np.zeros(rows + 1, np.int64))


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)
