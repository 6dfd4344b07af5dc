"""One line of the whitelist: an operator, function or cast, the types that it takes, and how its value is computed. Pure.

What always holds of an entry's SQL: it raises nothing, whatever the values. An engine that raises for one row of a batch gives nothing for the others,
and to catch that row by row takes a hundred times as long. So each template guards what is inside it, and the conditions in ``errors`` say which rows Postgres
would have refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.expressions.pgtype import PgType

DIVISION_BY_ZERO: Final = "22012"
OUT_OF_RANGE: Final = "22003"
MOMENT_OUT_OF_RANGE: Final = "22008"
NOT_A_VALUE: Final = "22P02"
NOT_A_LENGTH: Final = "22011"
NOT_A_PARAMETER: Final = "22023"
TOO_LARGE: Final = "54000"
NOT_HELD: Final = "0A000"
"""Postgres has an answer and this room does not: the class of what is not supported."""

MEANINGS: Final[Mapping[str, str]] = {
    DIVISION_BY_ZERO: "division by zero",
    OUT_OF_RANGE: "a number out of range",
    MOMENT_OUT_OF_RANGE: "a date or time out of range",
    NOT_A_VALUE: "a text that is not a value of the type",
    NOT_A_LENGTH: "a negative length",
    NOT_A_PARAMETER: "an argument that the function does not take",
    TOO_LARGE: "a text that is too long",
    NOT_HELD: "a value for which Postgres may have an answer, and an expression has none",
}
"""The classes of errors that rows can fail with, by SQLSTATE."""

Value = Any
"""A pyarrow Array, or a Scalar where it is the same for all rows."""
Kernel = Callable[..., tuple[Value, Value | None]]
"""Values of the arguments → values, and SQLSTATEs of the rows that fail (utf8, NULL for the others; None: no row fails)."""


@dataclass(frozen=True, slots=True)
class WhitelistEntry:
    """``sql``: the value by its arguments ``{0}``, ``{1}`` …; ``errors``: (condition, SQLSTATE) in order, where ``{v}`` is the value.

    Numbers of type numeric come to ``sql`` as text, and to a ``kernel`` as decimals where their column has a scale, else as text. ``constants``:
    arguments that have to be constants. ``word``: what the first argument has to be. ``collated``: an argument needs COLLATE "C".
    """

    name: str
    arguments: tuple[PgType, ...]
    result: PgType
    sql: str = ""
    errors: tuple[tuple[str, str], ...] = ()
    kernel: Kernel | None = None
    constants: tuple[int, ...] = ()
    word: str = ""
    collated: bool = False
    lenient: bool = False
    """Its SQL has a value although an argument is NULL. Postgres's functions have none."""
    given: Callable[[Sequence[Any]], str | None] | None = None
    """What is wrong with these constants, as far as they are constant; None when nothing is."""

    def __str__(self) -> str:
        names = [str(one) for one in self.arguments]
        if self.collated:
            names = [f'{name} COLLATE "C"' if name == "text" else name for name in names]
        if self.word:
            names[0] = f"'{self.word}'"
        return f"{self.name}({', '.join(names)})"


_PLACE: Final = re.compile(r"\{(\d+|v)\}")


def filled(template: str, arguments: Sequence[str], value: str = "") -> str:
    """The template with its arguments' SQL."""
    return _PLACE.sub(lambda found: value if found[1] == "v" else arguments[int(found[1])], template)


def missing(count: int) -> str:
    """The condition that a value is missing although no argument is."""
    return " AND ".join(("{v} IS NULL", *(f"{{{number}}} IS NOT NULL" for number in range(count))))


def within(value: str, name: str) -> str:
    """The wide integer as one of this type; NULL where it is none."""
    bits = {"int2": 15, "int4": 31, "int8": 63}[name]
    wide = "HUGEINT" if bits == 63 else "BIGINT"
    return f"CAST(CASE WHEN {value} BETWEEN CAST({-(2**bits)} AS {wide}) AND CAST({2**bits - 1} AS {wide}) THEN {value} END AS {HELD[name]})"


HELD: Final[Mapping[str, str]] = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "date": "INTEGER",
    "timestamp": "BIGINT",
    "timestamptz": "BIGINT",
}
"""The engine's type for a type's values, VARCHAR for the others. Dates are days and times microseconds since 1970, infinity the ends of the range."""
