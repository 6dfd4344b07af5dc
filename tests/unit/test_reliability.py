"""docs/reliability.md says what the tests say."""

from __future__ import annotations

from tests.cases.elsewhere import ELSEWHERE
from tests.cases.entries import ALONE, REFUSALS, TOGETHER
from tests.cases.table import PAGE, ROOT, written


def test_the_page_is_not_stale() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "make reliability"


def test_every_case_has_a_name_of_its_own() -> None:
    everything = (*TOGETHER, *ALONE, *REFUSALS)
    schemas = [case.schema for case in everything]
    assert len(everything) >= 150
    assert len(set(schemas)) == len(schemas)
    assert all(len(schema) <= 50 for schema in schemas)


def test_the_tests_that_are_named_exist() -> None:
    assert [where for _, _, where in ELSEWHERE if not (ROOT / where).is_file()] == []
