"""jsonb made of a row's values: what ``jsonb_build_object`` and ``jsonb_agg`` write of each, as Postgres prints it. Pure.

A timestamptz is shown as in a session whose TimeZone is UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.entry import Kernel, Value
from cdc.expressions.outside import handed_out
from cdc.expressions.pgtype import FLOATS, INTEGERS, PgType
from cdc.model.pgtypes import canonical_text

SHOWN: Final = (
    *("bool", "numeric", "text", "uuid", "enum", "jsonb", "date", "timestamp", "timestamptz"),
    *(kind.name for kind in (*INTEGERS, *FLOATS)),
)
"""The names of the types whose values can stand in a jsonb."""
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_ESCAPED: Final = r'["\\\x00-\x1f]'
_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
"""What Postgres escapes beside control characters."""


def built(names: Sequence[str], kinds: Sequence[PgType]) -> Kernel:
    """The kernel of an object with these different names, whose values have these types."""
    order = sorted(range(len(names)), key=lambda place: order_of_name(names[place]))

    def kernel(*values: Value) -> tuple[Value, Value | None]:
        pieces: list[Value] = []
        for number, place in enumerate(order):
            pieces += [("{" if number == 0 else ", ") + quoted(names[place]) + ": ", _pieces(kinds[place], values[place])]
        return pc.binary_join_element_wise(*pieces, "}", ""), None

    return kernel


def order_of_name(name: str) -> tuple[int, bytes]:
    """The place of a name among those of a jsonb: Postgres orders them by their length in bytes, and then by their bytes."""
    return len(name.encode()), name.encode()


def _pieces(kind: PgType, value: Value) -> Value:
    if not isinstance(value, pa.Scalar):
        return jsonb_texts(kind, value)
    return jsonb_texts(kind, pa.array([value.as_py()], value.type))[0]


def jsonb_texts(kind: PgType, values: pa.Array) -> pa.Array:
    """``values``, in the engine's form, as jsonb: utf8, ``null`` for NULL."""
    if kind.name == "jsonb":
        made = values
    elif kind.name == "bool":
        made = pc.if_else(values, "true", "false")
    elif kind in INTEGERS:
        made = values.cast(pa.utf8())
    elif kind in FLOATS:
        made = pa.array([None if text is None else _plain_number(text) for text in canonical_text(values).to_pylist()], pa.utf8())
    elif kind.name == "numeric":
        texts = canonical_text(values)
        made = pc.if_else(pc.is_in(texts, pa.array(_NO_NUMBERS)), pc.binary_join_element_wise('"', texts, '"', ""), texts)
    elif kind.name in ("date", "timestamp", "timestamptz"):
        made = _moments(kind, values)
    else:
        made = _texts(values)
    return pc.fill_null(made.cast(pa.utf8()), "null")


def quoted(text: str) -> str:
    """The text as a string of JSON."""
    return '"' + "".join(_SHORT.get(sign) or (f"\\u{ord(sign):04x}" if sign < " " else sign) for sign in text) + '"'


def _texts(values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        return pa.array([None if text is None else quoted(text) for text in values.to_pylist()], pa.utf8())
    return pc.binary_join_element_wise('"', values, '"', "")


def _plain_number(text: str) -> str:
    """A number that Postgres makes a numeric of: without an exponent, and 0 without a sign."""
    if text in _NO_NUMBERS:
        return f'"{text}"'
    number = Decimal(text)
    return "0" if number.is_zero() else f"{number:f}"


def _moments(kind: PgType, values: pa.Array) -> pa.Array:
    typed, exact = handed_out(kind, values)
    texts = canonical_text(typed)
    if exact is not None:
        texts = pc.coalesce(exact, texts)
    if kind.name != "date":
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
        texts = pc.replace_substring(texts, "+00", "+00:00")
    return pc.binary_join_element_wise('"', texts, '"', "")
