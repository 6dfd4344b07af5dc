"""Texts that somebody wrote in a way of their own → texts of the same values as Postgres prints them. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.decimals import from_text
from cdc.expressions.objects import order_of_name, quoted
from cdc.expressions.pgtype import PgType

_DIGITS_BEFORE, _DIGITS_BEHIND = 131_072, 16_383
"""Those that Postgres's numeric has room for, before and behind the point."""


class _Number(str):
    """A number of JSON as it was written."""


def spelled(kind: PgType, texts: pa.Array) -> pa.Array | None:
    """``texts``: utf8, of values of a type whose Arrow type is utf8. None where one of them is not such a value."""
    if kind.name == "text":
        return None if pc.any(pc.match_substring(texts, "\0")).as_py() else texts
    if kind.name == "numeric":
        values, failed = from_text(texts)
        return None if failed is not None else values
    read = _READ[kind.name]
    unique = texts.dictionary_encode()
    try:
        found = [None if text is None else read(text) for text in unique.dictionary.to_pylist()]
    except (ValueError, RecursionError):
        return None
    return pa.array(found, pa.utf8()).take(unique.indices)


def jsonb_text(text: str) -> str:
    """A JSON text as Postgres prints it as a jsonb: of members with one name the last, in the order of their names. Raises ValueError, RecursionError."""
    return _printed(
        json.loads(
            text,
            parse_float=_Number,
            parse_int=_Number,
            parse_constant=_refuse_constant,
            object_pairs_hook=lambda pairs: dict(pairs),
        )
    )


def _refuse_constant(_: str) -> None:
    raise ValueError("JSON has no such number")


def _printed(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _Number():
            return _number(Decimal(value))
        case str():
            return _string(value)
        case Mapping():
            return "{" + ", ".join(f"{_string(name)}: {_printed(value[name])}" for name in sorted(value, key=order_of_name)) + "}"
        case Sequence():
            return "[" + ", ".join(map(_printed, value)) + "]"
    raise ValueError("not JSON")


def _string(text: str) -> str:
    if "\0" in text:
        raise ValueError("Postgres has no such text")
    text.encode()  # half a surrogate pair is not a text either
    return quoted(text)


def _number(number: Decimal) -> str:
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or number.adjusted() >= _DIGITS_BEFORE or -exponent > _DIGITS_BEHIND:
        raise ValueError("Postgres has no room for the number")
    found = f"{number:f}"
    return found.removeprefix("-") if number.is_zero() else found


_READ: Final[Mapping[str, Callable[[str], str]]] = {"uuid": lambda text: str(UUID(text)), "jsonb": jsonb_text}
