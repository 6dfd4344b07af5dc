"""Canonical text back into the Arrow types of a batch, with what those types cannot hold beside it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import time
from decimal import Decimal, InvalidOperation
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT_TYPE
from cdc.model.pgtypes import canonical_text
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField

_UUID: Final = Scalar(ScalarType.UUID)
_NUMBER: Final = Scalar(ScalarType.NUMERIC)
_PADDED: Final = Scalar(ScalarType.BPCHAR)
_WORDS: Final = frozenset(Scalar(one) for one in (ScalarType.TEXT, ScalarType.VARCHAR, ScalarType.NAME, ScalarType.BPCHAR))
_DIGITS_MAX: Final = 150_000
"""More than any numeric has before its point or behind it."""
_BOOLEANS: Final = dict.fromkeys(("t", "true", "y", "yes", "on", "1"), "t") | dict.fromkeys(
    ("f", "false", "n", "no", "off", "0"), "f"
)
_NO_NUMBERS: Final = {text.lower(): text for text in ("NaN", "Infinity", "-Infinity")}
_BEYOND: Final = re.compile(r"-?infinity|\d{4,}-.* BC|\d{5,}-.*|24:00:00")
"""Of times and dates, what their Arrow types do not hold."""


def typed(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mapping[int, str]]:
    """The texts (utf8) as values of ``kind``, and row → text for those that would not come back from it as the same text.

    kind: one of the types that ``cdc.model.pgtypes.arrow_type`` gives. Such a value is NULL in the array.
    """
    if pa.types.is_string(kind):
        return texts, {}
    try:
        values = _parsed(texts, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        values = (
            pa.concat_arrays([_one(texts.slice(row, 1), kind) for row in range(len(texts))]) if len(texts) else texts.cast(kind)
        )
    same = pc.fill_null(pc.equal(canonical_text(values), texts), False)
    odd = pc.indices_nonzero(pc.and_(texts.is_valid(), pc.invert(same))).to_pylist()
    if not odd:
        return values, {}
    return pc.if_else(same, values, pa.scalar(None, kind)), {row: texts[row].as_py() for row in odd}


def retyped(texts: pa.Array, field: TopicField) -> tuple[pa.Array, Mapping[int, str]]:
    """The texts of values of another type as values of this field: as ``typed`` gives them, but in the type's own spelling, as ``7`` is ``7.00``. What is not a
    value of the type is NULL, and has no text."""
    kind = field.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return _parsed(texts, kind), {}  # most often all of them are, and then it is fast
    values, odd = typed(texts, kind)
    if not odd:
        return values, {}
    rows = list(odd)
    found, left = typed(pa.array([_value(text, field) for text in odd.values()], pa.utf8()), kind)
    at = dict(zip(rows, range(len(values), len(values) + len(rows)), strict=True))
    values = pa.concat_arrays([values, found]).take(pa.array([at.get(row, row) for row in range(len(values))], pa.int64()))
    return values, {rows[number]: text for number, text in left.items()}


def _value(text: str, field: TopicField) -> str | None:
    kind = field.type
    if pa.types.is_binary(kind) or (pa.types.is_time64(kind) and ":" not in text):
        return None
    found = spelled(text, field)
    return (
        None if found is not None and pa.types.is_decimal(kind) and "Infinity" in found else found
    )  # a numeric with a scale has none


def spelled(text: str, field: TopicField) -> str | None:
    """The canonical text of a value of this field that somebody wrote in a way of their own; None where the field's type has no such value."""
    kind, plain = field.type, text.strip()
    if field.structure == _UUID:
        try:
            return str(UUID(plain))
        except ValueError:
            return None
    if field.structure == _NUMBER and pa.types.is_string(kind):
        return _plain_number(plain)
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return _BOOLEANS.get(plain.lower())
    values = _one(pa.array([plain], pa.utf8()), kind)
    if values.null_count and pa.types.is_timestamp(kind) and kind.tz:
        with suppress(pa.ArrowInvalid):
            values = pa.array([plain], pa.utf8()).cast(kind)  # in a zone of its own
    if pa.types.is_time64(kind):
        with suppress(ValueError):
            values = pa.array([time.fromisoformat(plain).replace(tzinfo=None)], kind)
    if not values.null_count:
        found: str = canonical_text(values)[0].as_py()
        return found
    if pa.types.is_decimal(kind):
        return _NO_NUMBERS.get(plain.lower())
    return plain if pa.types.is_temporal(kind) and _BEYOND.fullmatch(plain) else None


def alike(texts: pa.Array, text: str, field: TopicField) -> pa.Array:
    """A mask: which of a field's canonical texts are the value that ``spelled`` has given this text.

    They are that text, but where the type itself takes several texts for one value: a numeric without a scale keeps the zeros that it came with,
    and what pads a char(n) counts for nothing.
    """
    if field.structure == _PADDED:
        texts, text = pc.ascii_rtrim(texts, " "), text.rstrip(" ")
    elif field.structure == _NUMBER and pa.types.is_string(field.type):
        texts = pc.replace_substring_regex(texts, r"(\.\d*?)0*$", r"\1")
        texts = pc.replace_substring_regex(texts, r"\.$", "")
    return pc.equal(texts, text)


def is_by_text(field: TopicField) -> bool:
    """Whether ``spelled`` takes a value of this field as it is written, though its type may have several spellings of it."""
    plain = not field.defined and field.structure in _WORDS
    return pa.types.is_string(field.type) and not plain and field.structure not in (_UUID, _NUMBER, _PADDED)


def exact_column(rows: int, exact: Mapping[str, Mapping[int, str]]) -> pa.Array:
    """``_cdc_exact`` of a batch: column → row → text."""
    if not any(exact.values()):
        return pa.nulls(rows, EXACT_TYPE)
    pairs: list[list[tuple[str, str]]] = [[] for _ in range(rows)]
    for name, texts in exact.items():
        for row, text in texts.items():
            pairs[row].append((name, text))
    found: Sequence[list[tuple[str, str]] | None] = [entry or None for entry in pairs]
    return pa.array(found, EXACT_TYPE)


def _plain_number(text: str) -> str | None:
    """A numeric without an exponent and without zeros that say nothing."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite():
        return _NO_NUMBERS.get(text.lower())
    if abs(number.adjusted()) > _DIGITS_MAX:
        return None
    found = f"{number:f}"
    found = found.rstrip("0").rstrip(".") if "." in found else found
    return "0" if found == "-0" else found


def _one(text: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return _parsed(text, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return pa.nulls(1, kind)


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        plain = [None if text is None else bytes.fromhex(text.removeprefix("\\x")) for text in texts.to_pylist()]
        return pa.array(plain, pa.binary())
    if pa.types.is_timestamp(kind):
        return pc.replace_substring_regex(texts, r"\+00$", "").cast(pa.timestamp("us")).cast(kind)
    return texts.cast(kind)
