"""The schema that a warehouse's table keeps, read back as it was written or refused by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import StoreError
from cdc.log.memory import MemoryLog
from cdc.model.position import ZERO_CUT
from cdc.model.topic import TopicSchema
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.marks import TABLE_KEY
from sinks.warehouse.options import MB, Options
from sinks.warehouse.place import TablePlace
from sinks.warehouse.storage import LOCAL
from tests.contract.rows import ORDERS, TYPES


def place(folder: Path, **properties: str) -> TablePlace:
    table: Any = SimpleNamespace(
        name="public.orders",
        location=folder,
        place=str(folder),
        storage=LOCAL,
        fields=(),
        properties=properties,
        mark=MemoryLog().lineage.mark(ZERO_CUT),
    )
    return TablePlace(table, Options.model_validate({"kind": "iceberg", "path": str(folder)}), KeyCache(MB))


@pytest.mark.parametrize("table", [ORDERS, TYPES], ids=lambda table: table.name)
def test_it_is_read_as_it_was_written(tmp_path: Path, table: Any) -> None:
    schema = TopicSchema.of(table)
    assert place(tmp_path, **{TABLE_KEY: schema.to_json()}).known() is schema
    assert place(tmp_path).known() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"namespace":"a","name":"b","fields":[{}]}'])
def test_what_is_not_one_is_refused_with_the_command_that_helps(tmp_path: Path, text: str) -> None:
    with pytest.raises(StoreError, match=r"headwater\.table of the warehouse's table public\.orders is damaged") as refused:
        place(tmp_path, **{TABLE_KEY: text}).known()
    assert not refused.value.retryable
    assert "--rebuild" in (refused.value.hint or "")
