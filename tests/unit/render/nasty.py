"""Values that have broken decoders, as Postgres prints them; by the type's name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

TEXTS: Final = (
    *(
        "",
        " ",
        "NULL",
        "null",
        "t",
        "1.10",
        "a,b",
        "{}",
        "{1,2}",
        "(1,)",
        "[1,2)",
        '"',
        "\\",
        "\\\\",
        '\\"',
        "'",
        "=>",
        "a=>b",
        ";",
    ),
    *("line\nfeed", "tab\t", "\r", "\x01\x1f\x7f", "é漢😀", "e\u0301", "\u2028", "\uffff", "%s {id} $1", "null,", "x" * 300),
)
NUMBERS: Final = (
    *("0", "-1", "1.10", "0.00", "-0.05", "100", "12345678901234567890.123", "0.30000000000000004", "9007199254740993", "NaN"),
    *("Infinity", "-Infinity", "0.00000000000000000001", "9" * 39, "1" + "0" * 400, "9" * 999, "1" * 1001, "0." + "1" * 1000, "1.5" + "0" * 40),
)  # fmt: skip
FLOATS: Final = (
    "0",
    "-0",
    "1",
    "0.1",
    "1e+20",
    "5e-324",
    "-1.7976931348623157e+308",
    "0.30000000000000004",
    "1e-05",
    "NaN",
    "-Infinity",
)
MOMENTS: Final = (
    *("2024-02-29 06:30:00+00", "2024-02-29 06:30:00.123456+00", "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
    *("infinity", "-infinity", "0001-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "10000-01-01 00:00:00+00"),
)
INTERVALS: Final = (
    *("00:00:00", "1 mon", "-1 days", "1 year 2 mons -3 days +04:05:06.789", "-178000000 years", "-00:00:00.000001", "100:00:00"),
    *("-1 years -2 mons +3 days -04:05:06", "infinity", "1 day 00:00:01", "-04:05:00"),
)
DOCUMENTS: Final = (
    *('{"a":1,"a":2}', ' { "z" : 1 ,\n "a" : [ ] } ', "null", '"\\ud83d"', '"\\u0000"', "1e400", "-0", "-0.0", '{"\\ud83d":1}', "[[[]]]"),
    *('{"a":1.10, "b":12345678901234567890.123}', '{"":{"":null}}', '{"a.b":1,"a":{"b":2}}', '{"\\u0061":1,"a":2}', "[1, 1E5, 2e-400]"),
    *('"a \\" , : { } [ ] \\\\"', "[" * 100 + "]" * 100, "[" * 101 + "]" * 101, '{"' + "k" * 33_000 + '":1}', '{"a":"' + "x" * 40_000 + '"}'),
    "{" + ",".join(f'"k{i}": {i}' for i in range(40)) + "}",
    "{" + ",".join(f'"k{i % 39}": {i}' for i in range(40)) + "}",
    '{"a": [1, {"b": [true, false, null, "x"]}], "c": {}}',
)  # fmt: skip
NO_DOCUMENTS: Final = (
    *(
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "[,1]",
        "{a:1}",
        '{"a" 1}',
        '{"a":}',
        '{"a":1,}',
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "nul",
        "nulll",
        "tru",
        "NaN",
    ),
    *(
        "Infinity",
        "1 2",
        '"a',
        '"\\x"',
        '"\\u12"',
        '"a\tb"',
        "[1}",
        '{"a":1]',
        "'a'",
        '{"a":1} x',
        "--1",
        "-",
        "[1 2]",
        '{"a":1 "b":2}',
        "]",
    ),
)


def json_text(rng: random.Random, depth: int = 0) -> str:
    """A random document, spaced out and numbered oddly; names may come twice."""
    pick = rng.random()
    space = rng.choice(["", "", " ", "\n\t"])
    if depth > 4 or pick < 0.5:
        number = f"{rng.choice(['-', ''])}{rng.randrange(10 ** rng.randrange(1, 25))}{rng.choice(['', '.' + str(rng.randrange(10**9)), 'e5', 'E-7'])}"
        return space + rng.choice([number, json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5), "true", "false", "null"])
    if pick < 0.75:
        return "[" + ",".join(json_text(rng, depth + 1) for _ in range(rng.randrange(4))) + space + "]"
    names = [json.dumps(rng.choice(TEXTS[:20]), ensure_ascii=rng.random() < 0.5) for _ in range(rng.randrange(4))]
    return "{" + ",".join(f"{space}{name}{space}:{json_text(rng, depth + 1)}" for name in names) + "}"


def array_text(rng: random.Random, element: Callable[[], str], dimensions: int | None = None) -> str:
    """An array as Postgres prints it, rectangular; ``element`` gives the elements' own text."""
    dimensions = rng.choice([1, 1, 1, 2, 3]) if dimensions is None else dimensions
    sizes = [rng.randrange(1, 4) for _ in range(dimensions)]

    def printed(level: int) -> str:
        if level == dimensions:
            return "NULL" if rng.random() < 0.2 else array_element(element())
        return "{" + ",".join(printed(level + 1) for _ in range(sizes[level])) + "}"

    whole = printed(0) if rng.random() < 0.9 else "{}"
    return "".join(f"[2:{size + 1}]" for size in sizes) + "=" + whole if whole != "{}" and rng.random() < 0.1 else whole


def array_element(text: str) -> str:
    """As array_out quotes it."""
    if text == "" or text.upper() == "NULL" or any(c in text for c in '{},"\\ \t\n\r\v\f'):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
