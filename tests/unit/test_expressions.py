"""What is refused, with its place and what to write instead; and how rows fail, one by one."""

from __future__ import annotations

import pickle
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from cdc.expressions import Expression, ExpressionRefused, PgType, compile
from cdc.expressions.entry import MEANINGS
from cdc.expressions.pgtype import BOOL, DATE, ENUM, FLOAT8, INT4, INT8, JSONB, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, opaque
from cdc.expressions.whitelist import CASTS, ENTRIES, REFUSED
from cdc.model.batch import EXACT, EXACT_TYPE
from tests.documents import expressions
from tests.documents.writing import written

COLUMNS = {
    "id": INT8,
    "n": INT4,
    "status": TEXT,
    "note": TEXT,
    "price": PgType("numeric", (12, 2)),
    "free": NUMERIC,
    "f": FLOAT8,
    "live": BOOL,
    "day": DATE,
    "at": TIMESTAMP,
    "created_at": TIMESTAMPTZ,
    "doc": JSONB,
    "mood": ENUM,
    "tags": opaque("text[]"),
    "kind": PgType("own", label="mood"),
    "Odd name": TEXT,
}


def refusal(text: str, expects: PgType | None = None) -> ExpressionRefused:
    with pytest.raises(ExpressionRefused) as caught:
        compile(text, COLUMNS, expects)
    return caught.value


REFUSALS = [
    ("", 1, "the expression is empty", None),
    ("statuss = 'new'", 1, "column statuss does not exist", "do you mean status?"),
    ("n =", 4, "a value is missing at the end", None),
    ("n = 1)", 6, ") is not expected here", None),
    ("(n = 1", 7, ") is missing at the end", None),
    ("n + 1 n", 7, "n is not expected here", None),
    ("1 < n < 3", 7, "< cannot follow another one without parentheses", "write (a = b) = c"),
    ("n == 1", 3, "== is not one of the functions that an expression may use", "docs/expressions.md has them all"),
    ("n = 'x'", 5, "a constant of type integer is a whole number within its range", None),
    ("n = status", 3, "= of integer and text is not one of the operators and functions that an expression may use", "docs/expressions.md has them all"),
    ("status < 'a'", 8, "< of texts depends on the database's collation", 'write COLLATE "C" behind a text: (x COLLATE "C")'),
    ("lower(status) = 'a'", 1, "lower of texts depends on the database's collation", 'write COLLATE "C" behind a text: (x COLLATE "C")'),
    ('status COLLATE "de_DE" < \'a\'', 16, 'of the collations only "C" is possible, which is the same on every server', 'write COLLATE "C"'),
    ("status ILIKE 'a%'", 8, "ILIKE depends on the database's collation", "write lower(x COLLATE \"C\") LIKE 'abc%', which changes ASCII letters only"),
    ("status LIKE note", 13, "LIKE needs a constant here", None),
    (r"status LIKE 'a\'", 13, "the pattern ends with a backslash that escapes nothing", None),
    ("status SIMILAR TO 'a'", 8, "SIMILAR TO is not possible", "write LIKE, or several of them with OR"),
    ("n IN (SELECT 1)", 7, "subqueries are not possible: an expression sees one row", None),
    ("EXISTS (SELECT 1)", 1, "subqueries are not possible: an expression sees one row", None),
    ("(SELECT 1) = 1", 2, "subqueries are not possible: an expression sees one row", None),
    ("ARRAY(SELECT 1)", 7, "subqueries are not possible: an expression sees one row", None),
    ("count(*) > 1", 1, "count(*) is an aggregate: an expression sees one row", None),
    ("sum(n) OVER () > 1", 1, "sum is a window function or an aggregate here: an expression sees one row", None),
    ("current_user = 'a'", 1, "current_user is not the same for everybody who asks, or at every time", "an expression may only depend on the row"),
    ("created_at < current_timestamp", 14, "current_timestamp is not the same for everybody who asks, or at every time", "an expression may only depend on the row"),
    ("n = $1", 5, "parameters are not possible in an expression", "write the value itself"),
    ("n = 1; drop table t", 6, "this is one expression, not a statement", "leave the semicolon out"),
    ("n = 1 -- always", 7, "comments are not possible in an expression", None),
    ("n = 1 /* x */", 7, "comments are not possible in an expression", None),
    (r"status = E'\n'", 10, "only plain quotes are possible around a text", "write 'it''s' without a letter before the first quote"),
    ("status = $$a$$", 10, "only plain quotes are possible around a text", "write 'text'"),
    ("status = 'a", 10, "the quotes that begin here do not end", None),
    ("n = 1_000", 5, "a number is followed by a letter", "write it with decimal digits, as 1000, 1.5 or 1e6"),
    ("o.n = 1", 1, "an expression sees one row's columns", "write n alone"),
    ("my.function(n)", 1, "functions of the database's own are not possible", "use Postgres's own functions"),
    ("created_at::text", 11, "a cast from timestamptz to text depends on the session's settings", "of a timestamptz write AT TIME ZONE 'UTC' first; for parts of a date extract(…)"),
    ("created_at::date", 11, "a cast from timestamptz to date depends on the session's settings", "of a timestamptz write AT TIME ZONE 'UTC' first; for parts of a date extract(…)"),
    ("day = 'today'", 7, "a date is written '2024-12-31', or is 'infinity' or '-infinity'", None),
    ("created_at > '2024-01-01'", 14, "a timestamptz is written '2024-12-31 23:59:59+00', with its offset from UTC", None),
    ("kind = 'sad'", 6, "= of mood and a constant is not possible: mood is a type of the database's own", "cast it, as in x::text = 'a'"),
    ("array_position(tags, 'a')", 1, "array_position takes an array that is written out", "write array_position(ARRAY['new', 'paid'], status)"),
    ("'a' = ANY (tags)", 5, "ANY and ALL take an array that is written out", "write x = ANY (ARRAY['a', 'b']) or x IN ('a', 'b')"),
    ("(n, id) = (1, 2)", 1, "row values are not possible", "compare column by column"),
    ("n::interval", 2, "casts to interval are not possible", None),
    ("tags", 1, "the result is text[], which an expression only compares", "write x::text, or name the column itself"),
    ("round(f, 2)", 1, "round of double precision and integer is not one of the operators and functions that an expression may use", "docs/expressions.md has them all"),
    ("round(price, n)", 14, "round needs a constant here", None),
    ("round(price, 5000)", 14, "the number of digits has to be from -1000 to 1000", None),
    ("CASE WHEN live THEN 1 ELSE 'x' END", 28, "a constant of type integer is a whole number within its range", None),
    ("CASE WHEN live THEN n ELSE day END", 1, "date and integer do not meet in one type", "cast one of them"),
    ("n AND live", 1, "AND takes booleans, and this is an integer", None),
    ("n IS NULL IS NULL", 11, "IS cannot follow another one without parentheses", "write (a = b) = c"),
    ("live\n  AND upperr(status COLLATE \"C\") = 'A'", (2, 7), "upperr is not one of the functions that an expression may use", "do you mean upper?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "message", "hint"), REFUSALS, ids=[text[:40] for text, *_ in REFUSALS])
def test_a_refusal_names_the_place_and_what_to_write(
    text: str, column: int | tuple[int, int], message: str, hint: str | None
) -> None:
    found = refusal(text)
    line, column = column if isinstance(column, tuple) else (1, column)
    assert str(found) == f"line {line}, column {column}: {message}"
    assert found.place == (line, column)
    if hint is not None:
        assert found.hint == hint


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_each_function_that_is_refused_by_name_says_why_and_what_instead(name: str) -> None:
    why, instead = REFUSED[name]
    found = refusal(f"{name}(n)" if name[0].isalpha() else f"n {name} n")
    assert str(found).endswith(f"{name} is not possible: {why}")
    assert found.hint == instead
    assert name not in ENTRIES


def test_a_condition_has_to_be_boolean() -> None:
    assert str(refusal("n + 1", BOOL)) == "line 1, column 3: a condition is boolean, and this is integer"


def test_what_is_too_long_or_too_deep_is_refused() -> None:
    assert "longer than" in str(refusal("'" + "x" * 20_000 + "'"))
    assert "levels deep" in str(refusal("(" * 400 + "n" + ")" * 400))
    assert "levels deep" in str(refusal("+".join(["n"] * 400)))
    assert "levels deep" in str(refusal("not " * 500 + "live"))
    assert "words and signs" in str(refusal("+".join(["n"] * 2000)))


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def values(text: str, kinds: dict[str, PgType], rows: pa.RecordBatch) -> list[object]:
    return compile(text, kinds).evaluate(rows).values.to_pylist()


def test_a_row_fails_alone_and_is_never_silently_null() -> None:
    rows = batch(a=pa.array([6, None, 6, -(2**31)], pa.int32()), b=pa.array([3, 0, 0, -1], pa.int32()))
    result = compile("a / b", {"a": INT4, "b": INT4}).evaluate(rows)
    assert result.values.to_pylist() == [2, None, None, None]
    assert result.failed.to_pylist() == [None, None, "22012", "22003"]
    assert set(MEANINGS) >= {"22012", "22003"}


def test_what_is_not_chosen_does_not_fail() -> None:
    kinds = {"a": INT4, "b": INT4}
    rows = batch(a=pa.array([6, 6, None], pa.int32()), b=pa.array([3, 0, 0], pa.int32()))
    for text, expected in {
        "b <> 0 AND a / b > 1": [True, False, False],
        "b = 0 OR a / b > 1": [True, True, True],
        "CASE WHEN b <> 0 THEN a / b END": [2, None, None],
        "coalesce(b, a / 0)": [3, 0, 0],
    }.items():
        result = compile(text, kinds).evaluate(rows)
        assert (result.values.to_pylist(), result.failed) == (expected, None), text
    assert compile("a / b > 1 AND b <> 0", kinds).evaluate(rows).failed.to_pylist() == [None, "22012", None]


def test_exact_text_beside_a_column_is_its_value_and_comes_out_again() -> None:
    exact = pa.array([[("day", "infinity")], [("day", "0044-03-15 BC")], [("price", "NaN")], None], EXACT_TYPE)
    rows = batch(
        **{EXACT: exact, "day": pa.array([None, None, 0, None], pa.date32()), "price": pa.array([None] * 4, pa.decimal128(12, 2))}
    )
    kinds = {"day": DATE, "price": PgType("numeric", (12, 2))}
    result = compile("day + 1", kinds).evaluate(rows)
    assert result.exact.to_pylist() == ["infinity", "0044-03-16 BC", None, None]
    assert result.values.cast(pa.int32()).to_pylist() == [None, None, 1, None]
    assert values("price > 5", kinds, rows) == [None, None, True, None]
    assert values("price IS NULL", kinds, rows) == [True, True, False, True]
    kept = compile("price::numeric(12,2)", kinds).evaluate(rows)
    assert kept.exact.to_pylist() == [None, None, "NaN", None]


def test_an_empty_batch_and_an_expression_without_columns_have_their_rows() -> None:
    empty = batch(n=pa.array([], pa.int32()))
    for text in ("n + 1", "n > 1 AND n < 5", "round(n, 2)", "1 / 0"):
        result = compile(text, {"n": INT4}).evaluate(empty)
        assert (len(result.values), result.failed) == (0, None), text
    three = batch(n=pa.array([1, 2, 3], pa.int32()))
    assert values("true", {}, three) == [True] * 3
    assert values("1.10 + 1", {}, three) == ["2.10"] * 3
    assert compile("1 / 0", {}).evaluate(three).failed.to_pylist() == ["22012"] * 3


def test_a_constant_is_never_read_as_sql_of_the_engine() -> None:
    rows = batch(status=pa.array(["it's {v} {0} v0", "x"]))
    kinds = {"status": TEXT}
    assert values("status = 'it''s {v} {0} v0'", kinds, rows) == [True, False]
    assert values("replace(status, '{v}', ''' || status || ''')", kinds, rows) == ["it's ' || status || ' {0} v0", "x"]
    assert values("split_part(status, '{v}', 2)", kinds, rows) == [" {0} v0", ""]


def test_odd_names_of_columns_are_columns() -> None:
    rows = pa.RecordBatch.from_pydict({'a "b"; drop': [1], "C0": [2], "rows": [3], "select": [4], "ä": [5]})
    kinds = dict.fromkeys(rows.schema.names, INT8)
    assert values('"a ""b""; drop" + "C0" + rows + "select" + ä', kinds, rows) == [15]
    assert "c0 does not exist" in str(refusal("C0 = 1"))


def test_an_expression_is_pickled_and_used_by_several_threads() -> None:
    expression: Expression = pickle.loads(pickle.dumps(compile("n * 2 + 1", {"n": INT4}, INT4)))
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = expression.evaluate(batch(n=pa.array([number] * 100, pa.int32()))).values.to_pylist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number * 2 + 1] * 100 for number in range(4)}
    assert str(pickle.loads(pickle.dumps(refusal("x.y = 1")))) == str(refusal("x.y = 1"))


def test_every_class_of_errors_has_a_meaning() -> None:
    states = {state for entries in (*ENTRIES.values(), CASTS) for entry in entries for _, state in entry.errors}
    assert states <= set(MEANINGS)


def test_values_of_strangers_neither_hang_nor_grow_without_limit() -> None:
    rows = batch(status=pa.array(["a" * 200_000, "a" * 200_000]))
    kinds = {"status": TEXT}
    assert values("status LIKE '%a%a%a%a%a%a_a%a%b'", kinds, rows) == [False, False]
    grown = compile(f"replace(replace(status, 'a', '{'b' * 300}'), 'b', '{'c' * 300}')", kinds).evaluate(rows)
    assert grown.failed.to_pylist() == ["54000", "54000"]


def test_a_text_that_is_no_document_ends_the_scan() -> None:
    broken = [
        "[}",
        "[}}",
        '{"a',
        '{"a"',
        '{"a":',
        '{"a":}',
        '"',
        '"\\',
        "",
        "[",
        "[[",
        "[1",
        "{",
        ",",
        "[" * 100_000,
        '{"a":' * 50_000,
        '["\\"',
        '{"a": "\\ud800"}',
    ]
    rows = batch(doc=pa.array(broken))
    for text in ("doc->'a'", "doc->>'a'", "doc->0", "doc->-1", "doc->>5", "doc->'a'->'a'->>0"):
        assert len(compile(text, {"doc": JSONB}).evaluate(rows).values) == len(broken), text
    assert compile("doc->>'a'", {"doc": JSONB}).evaluate(rows).failed.to_pylist()[-1] == "0A000"


def test_the_page_is_what_the_whitelist_says() -> None:
    assert expressions.PAGE.read_text(encoding="utf-8") == written(expressions.PAGE, expressions.parts()), (
        "run .venv/bin/python -m tests.documents expressions"
    )


def test_a_child_that_another_thread_starts_is_not_harmed() -> None:
    """A function that runs in the child before its program does makes Python clear away what the parent's other threads had."""
    compile("n + 1", COLUMNS, None).evaluate(pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int32())}))
    with ThreadPoolExecutor(1) as another:
        child = another.submit(lambda: subprocess.run(["true"], preexec_fn=lambda: None, check=False)).result(60)
    assert child.returncode == 0
