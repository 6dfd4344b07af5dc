"""Which tables can be captured, by their definition alone; that Postgres agrees is in tests/integration/source/test_identities.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.model.facts import STORED, FactColumn, Facts, LeafTable, Publishing
from cdc.model.table import Column, Table
from cdc.source.capturable import Definition, define, identity_problem

TABLE = Table(1, "public", "t", (Column("a", 23, key=True), Column("v", 25)))
PLAIN = Definition(TABLE, has_primary_key=True, deferrable_key=False)
GENERATED = replace(PLAIN, stored=True, left_out=("b",), generated=True)


def test_a_plain_key_is_fine() -> None:
    assert identity_problem(PLAIN) is None


@pytest.mark.parametrize("identity", ["d", "i", "f"])
def test_a_key_of_which_a_generated_column_is_not_published_is_refused(identity: str) -> None:
    """Postgres takes such a table into a publication, and then refuses the application's updates."""
    given = replace(GENERATED, table=replace(TABLE, identity=identity))
    problem = identity_problem(given)
    assert problem is not None
    assert "generated column" in problem[0]
    assert identity_problem(given, computed=True) is None


def test_a_key_that_a_column_list_leaves_out_is_refused() -> None:
    problem = identity_problem(replace(PLAIN, left_out=("b",), listed=True), computed=True)
    assert problem is not None
    assert "that the publication leaves out (b)" in problem[0]


@pytest.mark.parametrize(("version", "publish"), [(150000, False), (180000, True)])
def test_the_catalog_says_that_a_key_has_a_generated_column(version: int, publish: bool) -> None:
    columns = (FactColumn(1, "a", 23, -1, "", "", True, "10"), FactColumn(2, "b", 23, -1, "", STORED, True, "10"))
    facts = Facts(7, "public", "t", False, "d", columns, (1, 2), {7: LeafTable(70, True)}, {}, Publishing(True))
    problem = identity_problem(define(facts, True, version))
    assert problem is not None
    assert "has a primary key with a generated column that is not published (b)" in problem[0]
    assert ("publish_generated_columns" in problem[1]) is publish
    assert identity_problem(define(replace(facts, publishing=Publishing(True, stored=True)), True, version), computed=True) is None
