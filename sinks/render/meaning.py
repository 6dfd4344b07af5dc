"""The meaning of a value, as one text for all ways of writing it: what the audit compares. Pure.

A scalar means Postgres's own text of it, whatever way its store writes it (an interval: its ISO 8601). JSON, arrays and objects mean
themselves: the JSON with its names in order and its numbers reduced, so that 1.10, 1.1 and 1.1e0 are one. In a store that reads numbers as
doubles, a numeric without a declared scale means its number: 1.10 is 1.1 there.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.pgtypes import canonical_text
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from sinks.render import literals
from sinks.render.canonicalkernels import canonical_lines
from sinks.render.columns import literal_texts, trimmed
from sinks.render.kinds import Kind, Leaf, kind_of
from sinks.render.texts import Texts

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

PLAIN: Final = frozenset((Leaf.TEXT, Leaf.NUMBER, Leaf.BOOL, Leaf.MOMENT, Leaf.BYTES))
"""Kinds of values that mean Postgres's own text."""
_FLOAT4, _FLOAT8, _NUMERIC = Scalar(ScalarType.FLOAT4), Scalar(ScalarType.FLOAT8), Scalar(ScalarType.NUMERIC)
WHOLE_DIGITS_MAX: Final = 4000
"""Python reads and writes whole numbers of so many digits at once."""


class Number:
    """A number in JSON as it was written."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __float__(self) -> float:
        return float(self.text)


def plain_key(schema: TopicSchema) -> bool:
    """Whether the key's values mean Postgres's own text, so that rows can be asked for by what their keys mean."""
    return all(kind_of(column) in PLAIN for column in schema.key or schema.fields)


def canonical_json(value: Any, *, doubles: bool) -> str:
    """One text for all JSON that means the same; ``value``: parsed, its numbers ``int`` or ``Number``. An empty text for what is nested too deep
    to be ours (``literals.DEPTH_MAX``)."""
    try:
        return json.dumps(_in_order(value), separators=(",", ":"), default=_through_double if doubles else _reduced)
    except RecursionError:
        return ""


def _in_order(value: Any) -> Any:
    """With the names of objects in the order that jsonb keeps them in, so that few texts have to be put into it."""
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value, key=_name_order)}
    return [_in_order(one) for one in value] if isinstance(value, list) else value


def _name_order(name: str) -> tuple[int, bytes]:
    encoded = name.encode("utf-8", "surrogatepass")
    return len(encoded), encoded


def canonical_texts(texts: Texts, there: Mask, *, doubles: bool, parsed: bool = True) -> tuple[pa.Array, Rows]:
    """JSON texts as ``canonical_json`` has what they say (utf8), NULL where none is ``there``; and the rows that are not settled: what is not JSON or,
    unless it may be ``parsed``, what the kernel has left."""
    data, ends, left = canonical_lines(texts.data, texts.offsets, there)
    valid = there & ~left
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    found = pa.StringArray.from_buffers(len(there), pa.py_buffer(ends), pa.py_buffer(data), bitmap)
    rows = np.flatnonzero(left)
    if len(rows) == 0 or not parsed:
        return found, rows
    settled, slowly = [], []
    for row, text in zip(rows.tolist(), texts.to_array().take(pa.array(rows)).to_pylist(), strict=True):
        try:
            slowly.append(canonical_json(parse(text), doubles=doubles))
        except ValueError:
            continue
        settled.append(row)
    which = np.zeros(len(there), np.bool_)
    which[settled] = True
    return pc.replace_with_mask(found, pa.array(which), pa.array(slowly, pa.utf8())), np.flatnonzero(left & ~which)


def parse(text: str | bytes) -> Any:
    """Like json.loads, but a number with a fraction or an exponent stays the text it was written as (``Number``).

    Raises ValueError for what is not JSON, and for what is nested deeper than anything of ours: whoever can write to a store can put that there.
    """
    try:
        try:
            return json.loads(text, parse_float=Number)
        except json.JSONDecodeError:
            raise
        except ValueError:  # a whole number of more digits than Python takes
            return json.loads(text, parse_float=Number, parse_int=Number)
    except RecursionError:
        raise ValueError("nested too deep") from None


def meant(values: pa.Array, column: TopicField, kind: Kind, *, doubles: bool) -> pa.Array:
    """A column of Postgres's text (utf8) as what it means in a store that holds it as this kind."""
    if kind in PLAIN:
        return trimmed(values) if _is_trimmed(column, kind, doubles) else values
    texts, there = literal_texts(values, kind, doubles=doubles), values.is_valid().to_numpy(zero_copy_only=False)
    if kind is Leaf.INTERVAL:
        bare = pc.binary_slice(texts.to_array(), 1, -1).cast(pa.large_utf8()).cast(pa.utf8())  # nothing in it is ever escaped
        return pc.if_else(values.is_valid(), bare, pa.scalar(None, pa.utf8()))
    found, odd = canonical_texts(texts, there, doubles=doubles)
    assert len(odd) == 0, "a literal is JSON"
    return found


def held_column(values: Sequence[Any], column: TopicField, kind: Kind, *, doubles: bool) -> pa.Array:
    """The meanings (utf8) of what a store holds as this kind. ``values``: parsed JSON; none of them stands for NULL."""
    if kind is Leaf.NUMBER:
        return _numbers(values, column, doubles=doubles)
    read = _READERS.get(kind)
    texts = [canonical_json(value, doubles=doubles) if read is None else read(value) for value in values]
    return _array(texts)


def _array(texts: Sequence[str]) -> pa.Array:
    """The texts as utf8. JSON can also name half a character, which no text of ours holds: it stays JSON."""
    try:
        return pa.array(texts, pa.utf8())
    except UnicodeEncodeError:
        return pa.array([text if _is_whole(text) else f"JSON {json.dumps(text)}" for text in texts], pa.utf8())


def _is_whole(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _numbers(values: Sequence[Any], column: TopicField, *, doubles: bool) -> pa.Array:
    if column.structure in (_FLOAT4, _FLOAT8):
        return _floats(values, pa.float32() if column.structure == _FLOAT4 else pa.float64())
    if column.structure != _NUMERIC or not doubles:
        return _array([_number_text(value) for value in values])
    scale = column.type.scale if pa.types.is_decimal(column.type) else 0
    texts = _array([plain_number(value, scale) for value in values])
    return trimmed(texts) if _is_trimmed(column, Leaf.NUMBER, doubles) else texts


def plain_number(value: Any, scale: int) -> str:
    """A number that came out of a double as Postgres prints a numeric: without an exponent, with at least ``scale`` decimal places."""
    if isinstance(value, str):
        # Text where a double would not do; elsewhere the text of a number is another value than the number.
        lost = not literals.is_number(value) or not literals.survives(value) or ("." in value and value.endswith("0"))
        return value if lost else _number_text(value)
    if not isinstance(value, Number):
        text = _number_text(value)
        return f"{text}.{'0' * scale}" if scale and isinstance(value, int) and not isinstance(value, bool) else text
    double = float(value)
    if not math.isfinite(double):
        return str(value)
    whole, _, fraction = f"{Decimal(repr(double)):f}".partition(".")
    fraction = fraction.rstrip("0").ljust(scale, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _is_trimmed(column: TopicField, kind: Kind, doubles: bool) -> bool:
    """Whether a number means the same with and without zeros at its end. A key's never does: they are two documents."""
    return doubles and kind is Leaf.NUMBER and not column.key and column.structure == _NUMERIC and pa.types.is_string(column.type)


def _through_double(number: Number) -> Any:
    """As ``_reduced``, where a double has been between: there are several ways to write one (5e-324, 4.9E-324)."""
    double = float(number)
    return _reduced(Number(repr(double)) if math.isfinite(double) else number)


def _reduced(number: Number) -> Any:
    """What stands for a number in canonical JSON: an int or a float where that is exact, else its digits and exponent in an object."""
    text = str(number)
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:  # an exponent beyond all that Decimal counts
        return {"\0": text}
    assert isinstance(exponent, int)
    mantissa = "".join(map(str, digits)).lstrip("0")
    reduced = mantissa.rstrip("0")
    if not reduced:
        return -0.0 if sign and not text.lstrip("-").isdigit() else 0
    exponent += len(mantissa) - len(reduced)
    if exponent >= 0 and len(reduced) + exponent <= WHOLE_DIGITS_MAX:
        return int(("-" if sign else "") + reduced + "0" * exponent)
    double = float(text)
    if math.isfinite(double) and Decimal(repr(double)) == Decimal(text):
        return double
    return {"\0": f"{'-' if sign else ''}{reduced}e{exponent}"}


def _floats(values: Sequence[Any], held: pa.DataType) -> pa.Array:
    # NaN, the infinities, and what a store still has of a former type are texts.
    numbers: list[float | None] = []
    others: dict[int, str] = {}
    for row, value in enumerate(values):
        if isinstance(value, int | Number) and not isinstance(value, bool):
            numbers.append(float(str(value)))
        else:
            numbers.append(None)
            others[row] = _number_text(value)
    texts = canonical_text(pa.array(numbers, pa.float64()).cast(held))
    return _array([others.get(row, text) for row, text in enumerate(texts.to_pylist())]) if others else texts


def _number_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | Number | str):
        return _text(value)
    # The text of a number is another value than the number.
    return literals.quoted(value) if isinstance(value, str) and literals.is_number(value) else str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"JSON {canonical_json(value, doubles=False)}"


def _bool(value: Any) -> str:
    return "t" if value is True else "f" if value is False else f"JSON {canonical_json(value, doubles=False)}"


def _bytes(value: Any) -> str:
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except (ValueError, TypeError):
        return _text(value)


def _moment(value: Any) -> str:
    text = _text(value)
    # The form that we write has a T there; what is kept as Postgres's text (infinity, BC, long years) never has.
    if text[10:11] != "T":
        return text
    date, _, clock = text.partition("T")
    return f"{date} {clock.removesuffix('Z')}+00" if clock.endswith("Z") else f"{date} {clock}"


_READERS: Final[dict[Kind, Callable[[Any], str]]] = {
    Leaf.TEXT: _text,
    Leaf.BOOL: _bool,
    Leaf.MOMENT: _moment,
    Leaf.BYTES: _bytes,
    Leaf.INTERVAL: _text,
}
