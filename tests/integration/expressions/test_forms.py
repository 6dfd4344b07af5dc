"""SQL's own forms, precedences and texts as users write them: Postgres gives the same, and parses the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdc.embedded.postgres import NEWEST
from tests.conftest import SEED_VARIABLE, PostgresServers, _database
from tests.integration.expressions.nasty import Rows
from tests.integration.expressions.test_whitelist import differences


@pytest.fixture(scope="module")
def rows(postgres_servers: PostgresServers) -> Iterator[Rows]:
    """The same for all tests of this module: they only read them. The seed is the run's, which the header prints."""
    with contextmanager(_database)(postgres_servers.of(NEWEST)) as database:
        yield Rows(database.connect(), int(os.environ[SEED_VARIABLE]))


NULLS = [
    "a_bool AND b_bool",
    "a_bool OR b_bool",
    "NOT a_bool",
    "a_bool IS TRUE",
    "a_bool IS NOT FALSE",
    "a_bool IS UNKNOWN",
    "a_bytea IS NULL",
    "a_text ISNULL OR b_text NOTNULL",
    "a_int4 IS DISTINCT FROM b_int8",
    "a_float8 IS NOT DISTINCT FROM b_float4",
    "a_numeric IS DISTINCT FROM b_numeric",
    "a_text IS DISTINCT FROM NULL",
    "coalesce(a_int4, b_int8, 0)",
    "coalesce(a_money, 0)",
    "coalesce(a_text, 'none')",
    "nullif(a_text, 'a')",
    "nullif(a_int4, 0)",
    "nullif(a_int4, 1.0)",
    "greatest(a_int4, b_int4)",
    "least(a_int2, b_int8, 5)",
    "greatest(a_numeric, b_numeric)",
    "least(a_float8, b_float8)",
    "greatest(a_date, b_date)",
    'least(a_text COLLATE "C", b_text)',
    "a_int4 IN (1, 2, NULL)",
    "a_text NOT IN ('a', 'ab', '')",
    "a_int4 IN (b_int4, 0)",
    "a_int4 IN (1, 2.5)",
    "a_enum IN ('sad', ' ')",
    "a_enum = 'sad'",
    "a_text = ANY (ARRAY['a', 'ab', NULL])",
    "a_int4 <> ALL (ARRAY[1, -1])",
    "array_position(ARRAY['a', 'ab', NULL, 'a'], a_text)",
    "a_int4 BETWEEN b_int4 AND 5",
    "a_numeric NOT BETWEEN -1 AND 1.5",
]
FAILURES = [
    "a_int4 <> 0 AND b_int4 / a_int4 > 1",
    "b_int4 / a_int4 > 1 AND a_int4 <> 0",
    "a_int4 = 0 OR b_int4 / a_int4 > 1",
    "CASE WHEN a_int4 <> 0 THEN b_int4 / a_int4 ELSE -1 END",
    "CASE a_text WHEN 'a' THEN 1 WHEN b_text THEN 2.50 END",
    "coalesce(a_int4, b_int4 / 0)",
    "a_int4 * 2 + b_int4 * 3",
    "(a_int4 + b_int4)::int2",
    "a_text::int4 + 1",
    "coalesce(a_text::int4, 0) IN (1, 12)",
    "a_numeric / b_numeric * 2",
]
WRITTEN = [
    "round(a_money * 1.19, 2)",
    "round(a_money * 1.19, 2)::numeric(12,2)",
    "a_fraction::text",
    "a_fraction + b_fraction",
    "coalesce(a_fraction, 2)::text",
    "CASE WHEN a_fraction < 0.5 THEN a_fraction ELSE b_money END",
    "jsonb_build_object('a', a_fraction)",
    "a_numeric::numeric(10,3)",
    "a_numeric::numeric(5,-2)",
    "a_float8::int8",
    "a_jsonb->>'a'",
    "a_jsonb->'a'->>'b'",
    "a_jsonb->'a'->'b'->1->>'a'",
    "(a_jsonb->>'a')::int",
    "a_jsonb::text",
    "date_trunc('day', a_timestamptz AT TIME ZONE 'UTC')",
    "extract(year FROM (a_timestamptz AT TIME ZONE 'UTC')::date)",
    "extract(epoch FROM a_timestamp) * 2",
    "a_date > '2020-02-29' AND a_date < 'infinity'",
    "a_timestamptz >= '2020-01-01 00:00:00+02'",
    "a_date - b_date",
    "lower(trim(both ' ' from a_text) COLLATE \"C\") || '/' || b_int4",
    "substring(a_text from 2 for 3)",
    "position('b' in a_text)",
    "a_text COLLATE \"C\" < 'b'",
    "a_text LIKE 'a%' AND NOT b_text LIKE '%b'",
    "- a_int4 % 7",
    "a_int8 = -9223372036854775808",
    "1 + 2 * a_int2 - -1",
    "a_bool = (b_int4 > 0)",
    "a_int4 > 0 IS TRUE",
    "NOT a_int4 > 0 AND b_bool",
    "(a_int4 > 5) = a_bool",
    "a_text || b_int4 + 1",
    "a_text || 'x' LIKE '%x'",
    "10.0 / a_int2",
    "true",
    "'a' || 'b'",
    "1.10 + 1",
    "date '2024-02-29' + a_int2",
    """jsonb_build_object('text', a_text, 't', b_bool, 'é', a_uuid, 'aa', b_enum, 'a"b', a_jsonb, 'none', NULL, 'one', 'x', 'two', 2)""",
    "jsonb_build_object('i', a_int2, 'j', b_int4, 'k', a_int8, 'n', b_numeric, 'm', a_money, 'f', a_float8, 'g', b_float4)",
    "jsonb_build_object('d', a_date, 't', b_timestamp, 'z', a_timestamptz, 'o', jsonb_build_object('inner', b_text || '!'))",
    "jsonb_build_object('q', 10 / a_int4)",
    "coalesce(CASE WHEN a_bool THEN jsonb_build_object('x', 1) END, '[]'::jsonb)",
]


@pytest.mark.parametrize("text", [*NULLS, *FAILURES, *WRITTEN])
def test_an_expression_gives_what_postgres_gives(rows: Rows, text: str) -> None:
    assert differences(rows, text) == []
