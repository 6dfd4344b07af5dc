from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.labs import LABS, Lab

MARKS = {
    "opensearch": pytest.mark.opensearch,
    "warehouse": pytest.mark.spark,
    "warehouse-": pytest.mark.faults,
}


@pytest.fixture(params=[pytest.param(name, marks=[mark for kind, mark in MARKS.items() if name.startswith(kind)]) for name in LABS])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    yield made
    made.close()
