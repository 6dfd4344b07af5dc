from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.labs import LABS, Lab

MARKS = {"opensearch": pytest.mark.opensearch, "warehouse": pytest.mark.spark, "sql-duckdb": pytest.mark.faults}
"""What a kind needs to run. DuckDB opens its file for each transaction, so the suite takes long over it: `make faults`, beside tests/integration/test_duckdb_store.py."""


@pytest.fixture(params=[pytest.param(name, marks=[mark for kind, mark in MARKS.items() if name.startswith(kind)]) for name in LABS])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    yield made
    made.close()
