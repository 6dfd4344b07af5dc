from __future__ import annotations

import pytest

from cdc.model.table import Table
from cdc.settings.models import StoreOptions
from cdc.settings.storetables import mistaken, mistaken_views

TABLES = [Table(1, "public", "orders", ()), Table(2, "sales", "items", ()), "public.read_only_so_far"]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (("*",), []),
        (("public.*", "!public.orders"), []),
        (("public.orders", "public.read_only_so_far"), []),
        (("public.*", "later.*"), []),
        (("public.ordrs",), ["stores.s.tables: no table public.ordrs is captured → did you mean public.orders?"]),
        (("orders", "public.*"), ["no table orders is captured → did you mean public.orders?"]),
        (("*", "a.b", "c.d"), ["no table a.b is captured", "no table c.d is captured"]),
        (
            ("publc.*",),
            ["stores.s.tables selects no captured table (publc.*) → correct stores.s.tables; captured are: public.orders"],
        ),
        (("public.orders", "!public.*"), ["selects no captured table"]),
    ],
)
def test_patterns(patterns: tuple[str, ...], said: list[str]) -> None:
    found = [mistake.line() for mistake in mistaken({"s": StoreOptions(kind="memory", tables=patterns)}, TABLES)]
    assert len(found) == len(said)
    for line, part in zip(found, said, strict=True):
        assert part in line


def test_views() -> None:
    reads = {"good": ["public.orders", "views.sums"], "bad": ["public.ordrs"], "worse": ["sales.items", "x.y"]}
    found = [mistake.line() for mistake in mistaken_views(reads, [*TABLES, "views.sums"])]
    assert [line.partition(";")[0] for line in found] == [
        "views.bad: no table public.ordrs is captured → did you mean public.orders? Correct views.bad",
        "views.worse: no table x.y is captured → correct views.worse",
    ]


def test_a_table_that_is_read_and_in_the_log_is_named_once() -> None:
    [mistake] = mistaken_views({"v": ["x.y"]}, [*TABLES, "public.orders"])
    assert mistake.line().count("public.orders") == 1
