"""What of a table a range must find as its job has found it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cdc.model.facts import FactColumn, Facts, LeafTable
from snapshots.catalog import Look

ID = FactColumn(1, "id", 23, -1, "", "", False, "10")
V = FactColumn(2, "v", 25, -1, "", "", False, "10")
PARTED = Facts(7, "s", "t", True, "d", (ID, V), (1,), {8: LeafTable(80, True, "10"), 9: LeafTable(90, True, "10")}, {"e1": "a"})


def seen(facts: Facts | None, listed: str | None = None) -> tuple[str, str]:
    look = Look.of("1:1:", facts, listed)
    assert look.snapshot == "1:1:"
    return look.facts, look.files


@pytest.mark.parametrize(
    ("change", "facts", "files"),
    [
        (lambda facts: facts, False, False),
        (lambda facts: replace(facts, columns=(replace(ID, version="11"), replace(V, filled=True))), False, False),
        (lambda facts: replace(facts, leaves=dict(reversed(facts.leaves.items())), types=dict(facts.types)), False, False),
        (lambda facts: replace(facts, leaves={**facts.leaves, 8: LeafTable(80, False, "11")}), False, False),
        (lambda facts: replace(facts, leaves={**facts.leaves, 8: LeafTable(81, True, "10")}), False, True),
        (lambda facts: replace(facts, leaves={**facts.leaves, 10: LeafTable(10, True, "10")}), False, True),
        (lambda facts: facts.without(9), False, True),
        (lambda facts: replace(facts, name="u"), True, False),
        (lambda facts: replace(facts, schema="u"), True, False),
        (lambda facts: replace(facts, identity="f"), True, False),
        (lambda facts: replace(facts, index=(2,)), True, False),
        (lambda facts: replace(facts, columns=(ID,)), True, False),
        (lambda facts: replace(facts, columns=(ID, replace(V, name="w"))), True, False),
        (lambda facts: replace(facts, columns=(ID, replace(V, attnum=3))), True, False),
        (lambda facts: replace(facts, columns=(ID, replace(V, type_oid=1043))), True, False),
        (lambda facts: replace(facts, columns=(ID, replace(V, typmod=9))), True, False),
        (lambda facts: replace(facts, columns=(ID, replace(V, generated="s"))), True, False),
        (lambda facts: replace(facts, types={"e1": "b"}), True, False),
    ],
)
def test_a_job_is_given_up_for_what_changes_rows_or_their_places(
    change: Callable[[Facts], Facts], facts: bool, files: bool
) -> None:
    before, after = seen(PARTED), seen(change(PARTED))
    assert (after[0] != before[0], after[1] != before[1]) == (facts, files)


def test_what_publications_have_for_the_table_counts() -> None:
    assert seen(PARTED, "a list")[0] != seen(PARTED)[0]
    assert seen(PARTED, "a list")[1] == seen(PARTED)[1]


def test_a_table_that_does_not_exist_is_like_no_other() -> None:
    assert seen(None, "left over") == ("", "")
