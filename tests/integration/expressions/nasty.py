"""Values at which engines differ, by type, as Postgres prints them; and a table of all pairs of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
import pyarrow as pa

from cdc.expressions import PgType, type_of
from cdc.expressions.pgtype import ENUM
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.topic import TopicSchema
from tests.contract.rows import upserts
from tests.documents.page import table_of

SIDE: Final = 16
"""Values of each type in a run: the rows are all pairs of them."""


def _moment(rng: random.Random) -> str:
    return f"{rng.randrange(1, 9999):04d}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d} {rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}.{rng.randrange(1, 10**6):06d}"


Values = tuple[str, ...]
POOLS: Final[Mapping[str, tuple[str, Values, Callable[[random.Random], str]]]] = {
    "bool": ("boolean", ("t", "f"), lambda rng: rng.choice("tf")),
    "int2": ("smallint", ("0", "1", "-1", "2", "7", "-32768", "32767", "181", "182"), lambda rng: str(rng.randrange(-32768, 32768))),
    "int4": (
        "integer",
        ("0", "1", "-1", "2", "-3", "-2147483648", "2147483647", "46341", "32768", "2145042905"),
        lambda rng: str(rng.randrange(-(2**31), 2**31)),
    ),
    "int8": (
        "bigint",
        ("0", "1", "-1", "2", "-9223372036854775808", "9223372036854775807", "3037000500", "9007199254740993", "2147483648"),
        lambda rng: str(rng.randrange(-(2**63), 2**63)),
    ),
    "float4": (
        "real",
        ("0", "-0", "1", "-1.5", "0.1", "2.5", "1e-45", "3.4028235e+38", "-3.4028235e+38", "NaN", "Infinity", "-Infinity", "16777217"),
        lambda rng: repr(rng.uniform(-1e5, 1e5)),
    ),
    "float8": (
        "double precision",
        (
            *("0", "-0", "1", "-1.5", "0.5", "2.5", "5e-324", "1.7976931348623157e+308", "-1e308", "NaN", "Infinity", "-Infinity"),
            *("0.1", "1e-200", "2147483647.5", "9.223372036854775e+18", "-9.223372036854775808e+18", "32767.5"),
        ),
        lambda rng: repr(rng.uniform(-1e12, 1e12)),
    ),
    "numeric": (
        "numeric",
        (
            *("0", "0.00", "1", "-1.10", "0.5", "-2.5", "1.005", "NaN", "Infinity", "-Infinity", "12345678901234567890.123", "0." + "0" * 30 + "7"),
            *("9" * 39, "9" * 400, "0." + "1" * 500, "1" + "0" * 60 + ".5", "10000", "9999.9999", "-0.00005", "9223372036854775807.5", "2147483647.5"),
        ),
        lambda rng: f"{rng.randrange(-(10 ** rng.randrange(1, 25)), 10**12)}.{rng.randrange(10 ** rng.randrange(1, 10))}",
    ),
    "money": (
        "numeric(12,2)",
        ("0.00", "0.01", "-0.01", "1.10", "-1.10", "NaN", "9999999999.99", "-9999999999.99", "0.05", "2.50", "-2.50", "100.00"),
        lambda rng: f"{rng.randrange(-(10**9), 10**9)}.{rng.randrange(100):02d}",
    ),
    "fraction": (
        "numeric(4,4)",
        ("0.0000", "0.0001", "-0.0001", "0.5000", "-0.5000", "0.9999", "-0.9999", "NaN"),
        lambda rng: f"{rng.choice(('', '-'))}0.{rng.randrange(10_000):04d}",
    ),
    "text": (
        "text",
        (
            *("", " ", "a", "A", "ab", "%", "_", "a_c", "abc", "  a  ", "\t\n", "é", "漢字", "😀x", "e\u0301", "ÄÖ", "İı", "\\", "'", "a'b"),
            *("12", " -7 ", "+5", "1e5", "NaN", "0x1F", "1_000", "99999999999999999999", "true", " OFF ", "of", "yes", "xx", "a,b,,c", "aaaa" * 50),
            *("1.50", ".5", "5.", "1e-5", "-Infinity", "inf", "٣", "x" * 3000, "\x01\x7f", "\u2028", "Straße", "null", "-32768", "1e400"),
        ),
        lambda rng: "".join(rng.choice("aAbé%_ ,1😀\\") for _ in range(rng.randrange(9))),
    ),
    "uuid": (
        "uuid",
        ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        lambda rng: str(__import__("uuid").UUID(int=rng.getrandbits(128))),
    ),
    "date": (
        "date",
        (
            *("1970-01-01", "1969-12-31", "2024-02-29", "2000-01-01", "0001-01-01", "9999-12-31", "infinity", "-infinity", "0044-03-15 BC"),
            *("4713-01-01 BC", "5874897-12-31", "10000-01-01", "294276-12-31", "294277-01-01", "2021-01-03", "2020-12-31", "0001-12-31 BC"),
        ),
        lambda rng: _moment(rng)[:10],
    ),
    "timestamp": (
        "timestamp",
        (
            *("1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2024-02-29 06:30:00.123456", "0001-01-01 00:00:00", "infinity", "-infinity"),
            *("9999-12-31 23:59:59.999999", "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC", "294246-12-31 23:59:59.999999", "2016-12-31 23:59:60"),
            *("2021-01-03 00:00:00.5", "0001-12-31 23:00:00 BC", "294276-12-31 23:59:59.999999", "1900-03-01 00:00:00.1"),
        ),
        _moment,
    ),
    "timestamptz": (
        "timestamptz",
        ("1970-01-01 00:00:00+00", "2024-02-29 06:30:00.123456+00", "infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "294247-01-10 04:00:54+00"),
        lambda rng: _moment(rng) + "+00",
    ),
    "jsonb": (
        "jsonb",
        (
            *("{}", "[]", "null", "1", '"x"', '{"a":1,"a":2}', '{"a":{"b":[1,{"a":null}]},"b":"x\\"y\\\\"}', '{"a":null}', '{"a":"null"}'),
            *('{"a":"\\u00e9\\t\\n\\u001f/\\b\\f"}', '{"a":1.10,"aa":12345678901234567890.50}', '["a","b",[1,2],{"a":"c"}]', '{"":{"":1}}', '{"a":"}","b":"]"}'),
            *('{"a b":true,"c\\"d":false,"\\u00e9":"\\ud83d\\ude00"}', "[" * 60 + "]" * 60, '{"a":[]}', '{"a":{}}', '["\\\\","\\""]', "[null]", '"a"'),
        ),
        lambda rng: __import__("json").dumps({rng.choice("abc"): rng.choice([1, "a", None, [1, "a"], {"a": 1.5}]) for _ in range(3)}),
    ),
    "enum": ("mood", ("sad", "it's, \"fine\"", "{a,b}", " "), lambda rng: rng.choice(("sad", " "))),
    "bytea": ("bytea", ("\\x", "\\x00ff"), lambda rng: "\\x" + rng.randbytes(3).hex()),
}  # fmt: skip


class Rows:
    """The table ``rows`` in the database, and the same rows as the product holds them. Columns are called ``a_int4``, ``b_int4`` …"""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        rng = random.Random(seed)
        for name, value in PINNED_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        connection.execute("create type public.mood as enum ('sad', 'it''s, \"fine\"', '{a,b}', ' ')")
        names = {f"{side}_{kind}": (side, pool) for kind, pool in POOLS.items() for side in "ab"}
        columns = [("id", "int primary key"), *((name, pool[0]) for name, (_, pool) in names.items())]
        chosen = {name: _chosen(rng, pool[1], pool[2]) for name, (_, pool) in names.items()}
        rows = []
        for number in range(SIDE * SIDE):
            at = {"a": number % SIDE, "b": number // SIDE}
            rows.append([str(number), *(chosen[name][at[side]] for name, (side, _) in names.items())])
        table, held = table_of(connection, "rows", columns, rows)
        held.sort(key=lambda row: int(row["id"] or 0))
        connection.execute("set search_path = public")
        self.connection = connection
        self.batch: pa.RecordBatch = upserts(table, 1, held)
        self.types: dict[str, PgType] = {one.name: type_of(one) for one in TopicSchema.of(table).fields}
        self.own = dict(self.types)
        """As the log tells the types apart."""
        self.types |= {"a_enum": ENUM, "b_enum": ENUM}

    def asked(self, text: str, columns: tuple[str, ...]) -> tuple[list[str | None], str]:
        """Postgres's answer for each row, an error as ``!`` and its SQLSTATE; and the type."""
        of = {name: POOLS[name[2:]][0] for name in columns}
        parameters = ", ".join(f"{name} {kind}" for name, kind in of.items())
        body = text.replace("$", "$")
        self.connection.execute(
            f"create or replace function pg_temp.asked({parameters}) returns text language plpgsql as $body$ begin "  # type: ignore[arg-type]
            f"return case when ({body}) is not null then format('%s', ({body})) end; exception when others then return '!' || sqlstate; end $body$"
        )
        found = self.connection.execute(f"select pg_temp.asked({', '.join(of)}) from rows order by id").fetchall()  # type: ignore[arg-type]
        kind = self.connection.execute(f"select {text} from rows limit 0").description  # type: ignore[arg-type]
        assert kind is not None
        [name] = self.connection.execute("select typname from pg_type where oid = %s", (kind[0].type_code,)).fetchone() or ("",)
        self.connection.execute(f"drop function pg_temp.asked({', '.join(of.values())})")  # type: ignore[arg-type]
        return [row[0] for row in found], str(name)


def _chosen(rng: random.Random, fixed: Values, make: Callable[[random.Random], str]) -> list[str | None]:
    values = [*rng.sample(fixed, min(len(fixed), SIDE - 3)), None]
    values += [make(rng) for _ in range(SIDE - len(values))]
    rng.shuffle(values)
    return values
