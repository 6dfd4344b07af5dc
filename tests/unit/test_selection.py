"""Patterns are over schema and name, whose dots nothing marks."""

from __future__ import annotations

import pytest

from cdc.model.selection import literal, matches, named
from cdc.model.table import Table


def table(schema: str, name: str) -> Table:
    return Table(1, schema, name, ())


@pytest.mark.parametrize(
    ("patterns", "schema", "name", "selected"),
    [
        (("app.*",), "app", "orders", True),
        (("app.*",), "app.evil", "orders", False),
        (("app.*",), "app", "evil.orders", True),
        (("app.evil.*",), "app.evil", "orders", True),
        (("app.evil.*",), "app", "evil.orders", True),
        (("app.evil.*",), "app", "orders", False),
        (("*.orders",), "app", "orders", True),
        (("*.orders",), "app", "secret.orders", False),
        (("*.orders",), "app.evil", "orders", True),
        (("*",), "app.evil", "orders", True),
        (("*.*",), "app.evil", "orders", True),
        (("app.*", "!app.secret*"), "app", "secrets", False),
        (("app.*", "!app.secret*", "app.secret_not"), "app", "secret_not", True),
        (("*", "!app.*"), "app.evil", "orders", True),
        (("app?orders",), "app", "orders", True),
        (("a[pq]p.o*",), "aqp", "orders", True),
        (("app.orders",), "app", "Orders", False),
        ((), "app", "orders", False),
    ],
)
def test_a_table(patterns: tuple[str, ...], schema: str, name: str, selected: bool) -> None:
    assert matches(patterns, table(schema, name)) is selected


@pytest.mark.parametrize(
    ("patterns", "text", "selected"),
    [
        (("app.*",), "app.orders", True),
        (("app.*",), "app.evil.orders", True),  # or a table "evil.orders": nothing says which
        (("app.evil.*",), "app.evil.orders", True),
        (("other.*",), "app.evil.orders", False),
        (("*",), "orders", True),
        (("public.*",), "orders", False),
    ],
)
def test_a_text(patterns: tuple[str, ...], text: str, selected: bool) -> None:
    assert matches(patterns, text) is selected


@pytest.mark.parametrize("name", ["[/x]", "a*", "a?", "a[b", "a]b", "[!a]", "[[]", "plain"])
def test_a_name_may_hold_what_patterns_mean_something_by(name: str) -> None:
    assert matches((literal(f"app.{name}"),), table("app", name))
    assert not matches((literal(f"app.{name}"),), table("app", f"{name}x"))
    assert not matches((literal(f"app.{name}"),), table("app", "ab"))


def test_patterns_that_name_one_table() -> None:
    assert named(("a.b", "!a.c", "a.*", "a.[x]", "b.c")) == ["a.b", "b.c"]
