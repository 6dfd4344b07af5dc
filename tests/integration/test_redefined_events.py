"""A view's topic gets another key, or other types, before a store of events that asks how rows were before: those are of the present types, or NULL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.integration.test_event_streams import Stage
from tests.redefining import RedefinedTopic, Values

BEFORE: Final = pa.schema([("id", pa.int64()), ("at", pa.utf8())])
TEXTS: Final = ("7", "none", "2026-11-30", "12.5", "infinity", "t", None)
"""By key, from 0 on."""


@pytest.fixture
def stage(valkey: Any, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(valkey, tmp_path)
    yield made
    made.redis.close()


@pytest.mark.parametrize(
    ("kind", "new", "were"),
    [
        (pa.int64(), 7, {0: 7}),
        (pa.decimal128(12, 2), Decimal(8), {0: 7.0, 3: 12.5}),
        (pa.date32(), "2026-11-30", {2: "2026-11-30", 4: "infinity"}),
        (pa.bool_(), True, {5: True}),
        (pa.float64(), 1.5, {0: 7.0, 3: 12.5, 4: "Infinity"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "in one range"])
def test_the_row_before_is_of_the_present_type_or_null(
    stage: Stage, kind: pa.DataType, new: Any, were: dict[int, Any], together: bool
) -> None:
    topic, more = RedefinedTopic(stage.log), {"begin": "start", "stream": "all", "when": "op = 'delete' or old.at is not null"}
    topic.brings(BEFORE, ["id"], [{"id": number, "at": text} for number, text in enumerate(TEXTS)])
    if not together:
        stage.follow(**more)
    after = pa.schema([("id", pa.int64()), ("at", kind)])
    value = new if isinstance(new, Decimal) else pa.array([new]).cast(kind)[0].as_py()
    topic.brings(after, ["id"], [{"id": number, "at": value} for number in range(len(TEXTS))])
    topic.brings(after, ["id"], [{"id": 0, "at": None}], [{"id": 1}])
    follower = stage.follow(**more)
    assert follower.applied == stage.log.head, follower.status.error
    found = [json.loads(fields["body"]) for _, fields in stage.entries("all")]
    assert {one["after"]["id"]: one["before"]["at"] for one in found[:-2]} == were
    assert [(one["op"], one["before"]["at"]) for one in found[-2:]] == [("update", new), ("delete", new)]


@pytest.mark.parametrize(
    "key", [pa.schema([("id", pa.utf8()), ("at", pa.utf8())]), pa.schema([("at", pa.utf8()), ("id", pa.int64())])]
)
def test_under_another_key_nothing_was_before_the_rows(stage: Stage, key: pa.Schema) -> None:
    topic, more = RedefinedTopic(stage.log), {"begin": "start", "stream": "all", "when": "old.at is not null or changed(at)"}
    topic.brings(BEFORE, ["id"], [{"id": number, "at": f"p{number}"} for number in range(4)])
    rows: list[Values] = [{"id": "1", "at": "x"}] if key.field(0).name == "id" else [{"id": 1, "at": "p1"}]
    topic.brings(key, [key.field(0).name], rows)
    back: list[Values] = [{"id": 1, "at": "p1"}]
    topic.brings(BEFORE, ["id"], back)
    assert stage.follow(**more).applied == stage.log.head
    assert stage.entries("all") == []
    topic.brings(BEFORE, ["id"], [{"id": 1, "at": "p2"}])
    assert stage.follow(**more).applied == stage.log.head
    [(_, fields)] = stage.entries("all")
    assert json.loads(fields["body"])["before"] == back[0]
