from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.labs import LABS, Lab

MARKS = {"opensearch": pytest.mark.opensearch, "warehouse": pytest.mark.spark}


NOT_YET: dict[tuple[str, str], str] = {
    ("opensearch", "test_changes_that_the_store_passes_over_count_as_held"): "a reader takes the index for set back",
}
"""(lab, test) → what the store does not do yet. Empty is the aim; what passes has to go from here."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, rest = item.name.partition("[")
        lab = rest.partition("]")[0].split("-")
        for (kind, test), reason in NOT_YET.items():
            if item.path.parent == Path(__file__).parent and test == name and kind in lab:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(params=[pytest.param(name, marks=[mark for kind, mark in MARKS.items() if name.startswith(kind)]) for name in LABS])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    yield made
    made.close()
