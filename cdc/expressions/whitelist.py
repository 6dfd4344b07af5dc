"""The one table of what an expression may use, and the names that are refused with what to write instead. Pure.

Whatever does not stand in the table is refused. A property test holds each line of it against Postgres's own answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from cdc.expressions import casts, documents, moments, numbers, texts
from cdc.expressions.entry import WhitelistEntry


def _table() -> Mapping[str, tuple[WhitelistEntry, ...]]:
    found: dict[str, list[WhitelistEntry]] = defaultdict(list)
    for room in (numbers, texts, moments, documents):
        for entry in room.entries():
            found[entry.name].append(entry)
    return {name: tuple(of) for name, of in found.items()}


ENTRIES: Final[Mapping[str, tuple[WhitelistEntry, ...]]] = _table()
"""Operators and functions by name."""
CASTS: Final[tuple[WhitelistEntry, ...]] = tuple(casts.entries())
"""Each under the name of the type that it leads to."""
FORMS: Final[Mapping[str, str]] = {
    "AND, OR, NOT": "from left to right: what stands behind a decided one is not computed, so `b <> 0 AND a / b > 1` never fails",
    "IS [NOT] NULL": "of a column of any type",
    "IS [NOT] TRUE, FALSE, UNKNOWN": "",
    "IS [NOT] DISTINCT FROM": "of the types that have =",
    "[NOT] BETWEEN, [NOT] IN (…), = ANY (ARRAY[…]), <> ALL (ARRAY[…])": "of the types that have these comparisons",
    "CASE": "both kinds; what is not chosen is not computed",
    "coalesce, nullif": "",
    "greatest, least": "of the types that have <",
    "array_position(ARRAY[…], x)": "the number of the first item that equals x",
    "jsonb_build_object('name', x, …)": "names are constants; a timestamptz is written as in UTC",
}
"""SQL's own forms, with what to know of them."""
WORDS_OF_FORMS: Final = ("coalesce", "nullif", "greatest", "least", "array_position", "jsonb_build_object")

_TIME: Final = "its answer changes with time"
_SESSION: Final = "its answer depends on the session"
_CHANCE: Final = "its answer is not the same twice"
_COLLATION: Final = "its answer depends on the database's collation"
_ROW: Final = "an expression sees one row"
_REGULAR: Final = "Postgres's regular expressions have no exact counterpart here, and some never end"
_ONLY_ROW: Final = "an expression may only depend on the row"
_PATTERN: Final = "write LIKE, starts_with, strpos or split_part"

REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(
        ("now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday", "age"), (_TIME, _ONLY_ROW)
    ),
    **dict.fromkeys(
        (
            "random",
            "random_normal",
            "gen_random_uuid",
            "uuidv4",
            "uuidv7",
            "uuid_generate_v4",
            "nextval",
            "currval",
            "lastval",
            "setval",
        ),
        (_CHANCE, _ONLY_ROW),
    ),
    **dict.fromkeys(
        ("current_setting", "current_schemas", "current_database", "version", "pg_backend_pid", "txid_current", "inet_client_addr"),
        (_SESSION, _ONLY_ROW),
    ),
    "to_char": (_SESSION, "write extract(…), date_trunc(…) or ::text"),
    **dict.fromkeys(
        ("to_timestamp", "to_date", "to_number", "make_timestamptz"), (_SESSION, "store the value in a column of its type")
    ),
    "date_part": ("it gives a float", "write extract(year from x), which gives a numeric"),
    **dict.fromkeys(("concat", "concat_ws"), (_SESSION, "write coalesce(a, '') || coalesce(b, '')")),
    "format": (_SESSION, "write a || b"),
    "initcap": (_COLLATION, 'write upper(left(x COLLATE "C", 1)) || substr(x, 2), which changes an ASCII letter only'),
    **dict.fromkeys(
        ("regexp_replace", "regexp_match", "regexp_matches", "regexp_like", "regexp_substr", "regexp_count", "regexp_instr"),
        (_REGULAR, _PATTERN),
    ),
    **dict.fromkeys(("~", "~*", "!~", "!~*", "regexp_split_to_array"), (_REGULAR, _PATTERN)),
    **dict.fromkeys(("~~", "!~~"), ("it is another word for LIKE", "write LIKE or NOT LIKE")),
    **dict.fromkeys(("~~*", "!~~*"), (_COLLATION, "write lower(x COLLATE \"C\") LIKE 'abc%'")),
    **dict.fromkeys(
        (
            *(
                "count",
                "sum",
                "avg",
                "min",
                "max",
                "array_agg",
                "string_agg",
                "json_agg",
                "jsonb_agg",
                "jsonb_object_agg",
                "bool_and",
                "bool_or",
                "every",
            ),
        ),
        ("it is an aggregate", f"{_ROW}; least and greatest compare several columns"),
    ),
    **dict.fromkeys(
        ("row_number", "rank", "dense_rank", "lag", "lead", "first_value", "last_value", "nth_value", "ntile"),
        ("it is a window function", _ROW),
    ),
    **dict.fromkeys(
        ("generate_series", "unnest", "jsonb_array_elements", "jsonb_each", "jsonb_object_keys", "jsonb_each_text"),
        ("it gives many rows", _ROW),
    ),
    **dict.fromkeys(
        ("power", "pow", "^", "sqrt", "exp", "ln", "log", "sin", "cos", "tan", "cbrt"),
        ("its last digits differ from one machine to another", "compute it in the database, in a generated column"),
    ),
    **dict.fromkeys(
        ("repeat", "lpad", "rpad"), ("its text may be as long as a value says", "compute it in the database, in a generated column")
    ),
    **dict.fromkeys(("pg_sleep", "dblink", "lo_get", "pg_read_file"), ("it does more than compute", _ONLY_ROW)),
}
"""Functions and operators that are asked for and are not here: why not, and what to write instead."""
