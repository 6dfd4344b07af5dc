"""What a dead letter of a search store says of rows that were made to say more: nothing but the column, whatever the cluster quotes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdc.model.batch import Op
from cdc.model.pgtypes import INT8, JSONB
from cdc.model.table import Column, Table
from sinks.deadletters import box_of
from tests.contract.labs import LABS, Lab
from tests.integration.test_search_places import Index, visit

pytestmark = pytest.mark.opensearch

CANARY = "canary\x01\x1b[31m\r\n]: [x"
NOTED = Table(
    17100, "public", "visits", (Column("id", INT8, -1, "int8", key=True, attnum=1), Column("notes", JSONB, -1, "jsonb", attnum=2))
)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["opensearch"](request.getfixturevalue)
    yield made
    made.close()


def reasons(index: Index) -> dict[str | None, str]:
    box = box_of(index.sink)
    assert box is not None
    for one in box.letters():
        assert "canary" not in one.to_json()
        assert len(one.to_json()) < 1000
    return {one.key: one.reason for one in box.letters()}


def test_a_row_of_40_mb_with_control_characters_is_set_aside_and_the_others_flow(lab: Lab) -> None:
    """The cluster has less memory than that for what is under way."""
    index = Index(lab, shards=1)
    large = CANARY * (40_000_000 // len(CANARY))
    index.append((Op.INSERT, visit(1, "a", 1)), (Op.INSERT, visit(2, CANARY, 1000, town=large)), (Op.INSERT, visit(3, "a", 3)))
    assert index.catch_up() == 1
    assert reasons(index) == {"2": "larger than the cluster's indexing pressure limit"}
    assert [one[3] for one in index.documents()] == [1, 3]
    index.append((Op.UPDATE, visit(2, CANARY, 2)))
    assert index.catch_up() == 0
    assert reasons(index) == {}
    assert [one[3] for one in index.documents()] == [1, 2, 3]


def test_a_key_of_the_rows_own_json_is_not_in_the_reason(lab: Lab) -> None:
    index = Index(lab, shards=1, mapping={"notes": {"type": "object"}})
    key = r"canary\u001b\n key"
    notes = [f'{{"a": {{"{key}": 1}}}}', f'{{"a": {{"{key}": "canary text"}}}}', f'{{"a": {{"{key}": 2}}}}']
    changes: list[Any] = [(Op.INSERT, {"id": str(number), "notes": text}) for number, text in enumerate(notes, 1)]
    index.append(*changes[:1], table=NOTED)
    index.catch_up()
    index.append(*changes[1:], table=NOTED)
    assert index.catch_up() == 1
    found = reasons(index)
    assert found.keys() == {"2"}
    assert found["2"].endswith(": notes"), found
