"""Which definitions a capture process begins with: those of tables that nobody knows anything of yet."""

from __future__ import annotations

import pytest

from cdc.ingest.definitions import first_remembered
from cdc.model.facts import Facts
from tests.unit.capture.test_definitions import facts

ORDERS = facts(1, "orders", (1, "id", 20))
LATER = facts(2, "orders", (1, "id", 20))
"""Another table that has the name now."""


@pytest.mark.parametrize(
    ("published", "topics", "ended", "known", "remembered"),
    [
        ([ORDERS], [], [], [], [1]),
        ([ORDERS], [], [], [1], []),
        ([ORDERS], [ORDERS], [], [], []),
        ([ORDERS], [ORDERS], ["s.orders"], [], [1]),
        ([LATER], [ORDERS], [], [1], []),
        ([LATER], [ORDERS], ["s.orders"], [1], []),
    ],
    ids=["new", "kept", "facts lost", "its topic ended", "takes a name", "takes a name that is free"],
)
def test_first_remembered(
    published: list[Facts], topics: list[Facts], ended: list[str], known: list[int], remembered: list[int]
) -> None:
    tables = {one.qualified: one.table() for one in topics}
    assert first_remembered(published, tables, ended, known) == {one.oid: one for one in published if one.oid in remembered}
