from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.labs import LABS, Lab

MARKS = {
    "opensearch": pytest.mark.opensearch,
    "warehouse": pytest.mark.spark,
    "warehouse-": pytest.mark.slow,  # the same sink over other catalogs: tests/integration/spark/test_warehouse_catalogs.py is among the others
    "sql-duckdb": pytest.mark.slow,  # it opens its file for each transaction, so the suite takes long over it; beside tests/integration/test_duckdb_store.py
}
"""What a kind needs to run."""


@pytest.fixture(params=[pytest.param(name, marks=[mark for kind, mark in MARKS.items() if name.startswith(kind)]) for name in LABS])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    yield made
    made.close()
