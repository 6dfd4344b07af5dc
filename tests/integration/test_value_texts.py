"""Texts that somebody wrote in a way of their own become those that Postgres prints, and what Postgres refuses is refused."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

import psycopg
import pyarrow as pa

from cdc.expressions.pgtype import JSONB, NUMERIC, UUID, PgType
from cdc.expressions.valuetexts import spelled
from tests.conftest import Database

NUMBERS: Final = ("0", "-0", "-0.00", "1.50", "1.50e1", "1E3", "1.5e-3", "12345678901234567890.10", "-7", "1e-20", "100e-1")
GIVEN: Final = (
    *((NUMERIC, text) for text in (*NUMBERS, " 1 ", "NaN", "x", "", "1e200000")),
    *((UUID, text) for text in ("0A0B0C0D-0000-4000-8000-000000000001", "{0a0b0c0d-0000-4000-8000-000000000001}", "0a0b", "")),
    *(
        (JSONB, text)
        for text in (
            *NUMBERS,
            "",
            "{",
            "[1,]",
            "NaN",
            "Infinity",
            "01",
            "'a'",
            "[1e200000]",
            "[1e-20000]",
            '"\\u0000"',
            '"\\ud800"',
        )
    ),
    *(
        (JSONB, text)
        for text in (
            '"\\ud83d\\ude00\\u00e9\\u0007\\/\\n"',
            '{"b":1,"a":2,"b":3,"aa":{}, "":[ ]}',
            " [ null,true , false]\n",
            '"\t"',
        )
    ),
)


def printed(connection: psycopg.Connection[Any], kind: PgType, text: str) -> str | None:
    try:
        row = connection.execute(f"select %s::text::{kind}::text", [text]).fetchone()  # type: ignore[arg-type]
    except psycopg.DataError:
        return None
    assert row is not None
    found: str = row[0]
    return found


def ours(kind: PgType, text: str) -> str | None:
    found = spelled(kind, pa.array([text, None, text], pa.utf8()))
    if found is None:
        return None
    first, none, last = found.to_pylist()
    assert (none, last) == (None, first)
    return str(first)


def random_json(dice: Random, depth: int = 0) -> Any:
    roll = dice.random()
    if depth < 4 and roll < 0.25:
        return {random_text(dice): random_json(dice, depth + 1) for _ in range(dice.randrange(5))}
    if depth < 4 and roll < 0.5:
        return [random_json(dice, depth + 1) for _ in range(dice.randrange(4))]
    return dice.choice(
        (None, True, False, random_text(dice), dice.randrange(-(10**20), 10**20), dice.random() * 10 ** dice.randrange(-9, 9))
    )


def random_text(dice: Random) -> str:
    return "".join(chr(dice.choice((dice.randrange(1, 128), 233, 0x20AC, 0x1F600))) for _ in range(dice.randrange(4)))


def test_texts_are_those_that_postgres_prints(postgres: Database, seed: int) -> None:
    dice, connection = Random(seed), postgres.connect()
    made = [(JSONB, json.dumps(random_json(dice), ensure_ascii=dice.random() < 0.5)) for _ in range(200)]
    differ = [
        (kind.name, text, ours(kind, text), there)
        for kind, text in (*GIVEN, *made)
        if ours(kind, text) != (there := printed(connection, kind, text))
    ]
    assert differ == []
