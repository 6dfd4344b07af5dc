"""Every line of the whitelist gives Postgres's own answers, its errors too, over values at which engines differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from cdc.embedded.postgres import NEWEST
from cdc.expressions import Expression, compile
from cdc.expressions.entry import NOT_HELD, WhitelistEntry
from cdc.expressions.expression import Result
from cdc.expressions.pgtype import FLOAT4, FLOATS, TEXT
from cdc.expressions.whitelist import CASTS, ENTRIES
from cdc.model.pgtypes import canonical_text
from tests.conftest import SEED_VARIABLE, PostgresServers, _database
from tests.integration.expressions.nasty import Rows

CONSTANTS = {"round": ("0", "2", "-2", "40"), "trunc": ("0", "1", "-3", "40")}
PATTERNS = (
    "",
    "%",
    "a%",
    "%b",
    "%a%",
    "_",
    "a_c",
    "__%",
    r"\%",
    r"a\_c",
    "é%",
    "%😀%",
    "a",
    "%a%b%",
    r"\\",
    "_%_",
    "[a]%",
    "a.c",
    "(",
    "%'%",
)
KEYS = ("'a'", "'b'", "''", "'a b'", "'c\"d'", "'é'", "'aa'", "'0'", "'\\'")


def written(entry: WhitelistEntry, cast: bool = False) -> Iterator[str]:
    """SQL that comes to this entry."""
    columns = [f"{'ab'[number % 2]}_{kind.name if kind.name != 'own' else 'enum'}" for number, kind in enumerate(entry.arguments)]
    if entry.collated:
        columns[0] = f'({columns[0]} COLLATE "C")'
    if entry.word:
        columns[0] = f"'{entry.word}'"
    if cast:
        yield f"{columns[0]}::{entry.name}"
    elif entry.name == "like":
        yield from (f"{columns[0]} LIKE '{pattern.replace(chr(39), chr(39) * 2)}'" for pattern in PATTERNS)
    elif entry.name == "timezone":
        yield f"{columns[1]} AT TIME ZONE {columns[0]}"
    elif entry.name == "extract":
        yield f"extract({entry.word} FROM b_{entry.arguments[1].name})"
    elif entry.name == "position":
        yield f"position({columns[1]} IN {columns[0]})"
    elif entry.name.startswith("unary"):
        yield f"{entry.name[6:]}{columns[0]}"
    elif entry.name.startswith("->"):
        steps = KEYS if entry.arguments[1] is TEXT else ("0", "1", "-1", "-2", "7", "-2147483648")
        yield from (f"{columns[0]} {entry.name} {step}" for step in steps)
    elif entry.constants:
        yield from (f"{entry.name}({columns[0]}, {digits})" for digits in CONSTANTS[entry.name])
    elif entry.name[0].isalpha():
        yield f"{entry.name}({', '.join(columns)})"
    else:
        yield f"{columns[0]} {entry.name} {columns[1]}"


def texts(result: Result) -> list[str | None]:
    """A result as Postgres prints it, failed rows as ``!`` and the SQLSTATE."""
    values = canonical_text(result.values).to_pylist()
    for row, text in enumerate(result.exact.to_pylist() if result.exact is not None else ()):
        values[row] = text if text is not None else values[row]
    for row, state in enumerate(result.failed.to_pylist() if result.failed is not None else ()):
        if state is not None:
            assert values[row] is None
            values[row] = f"!{state}"
    return values


def differences(rows: Rows, text: str) -> list[str]:
    """What our answers have other than Postgres's; empty when they are equal."""
    expression = compile(text, rows.types)
    ours = texts(expression.evaluate(rows.batch))
    theirs, kind = rows.asked(text, expression.columns)
    found = [] if kind == expression.type.name else [f"{text}: type {expression.type.name} is {kind}"]
    values = rows.batch.select(list(expression.columns)).to_pylist()
    for row, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if our != their and our != f"!{NOT_HELD}" and not same_float(expression, our, their):
            found.append(f"{text} of {str(values[row])[:200]}: {str(our)[:100]!r} is {str(their)[:100]!r}")
    return found


def same_float(expression: Expression, our: str | None, their: str | None) -> bool:
    """Two shortest texts of one float may differ."""
    if expression.type not in FLOATS or None in (our, their) or f"{our}{their}".count("!"):
        return False
    width = np.float32 if expression.type == FLOAT4 else np.float64
    return repr(width(our)) == repr(width(their))


@pytest.fixture(scope="module")
def rows(postgres_servers: PostgresServers) -> Iterator[Rows]:
    """The same for all tests of this module: they only read them. The seed is the run's, which the header prints."""
    with contextmanager(_database)(postgres_servers.of(NEWEST)) as database:
        yield Rows(database.connect(), int(os.environ[SEED_VARIABLE]))


NAMES = sorted(ENTRIES)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_gives_what_postgres_gives(rows: Rows, name: str) -> None:
    found = [line for entry in ENTRIES[name] for text in written(entry) for line in differences(rows, text)]
    assert found == []


@pytest.mark.parametrize("name", sorted({entry.name for entry in CASTS}))
def test_a_cast_gives_what_postgres_gives(rows: Rows, name: str) -> None:
    found = [
        line for entry in CASTS if entry.name == name for text in written(entry, cast=True) for line in differences(rows, text)
    ]
    assert found == []
