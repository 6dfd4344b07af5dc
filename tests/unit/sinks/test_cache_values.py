"""What somebody else has put under a store's keys is read as something that is not ours, whatever it is."""

from __future__ import annotations

import json

import pytest

from cdc.model.topic import TopicSchema
from sinks.cache import ledger
from sinks.cache.erasure import ways_of
from sinks.cache.ledger import CacheLedger, Projection
from sinks.cache.values import Hash, Json
from sinks.render.choices import Choices
from sinks.render.meaning import parse
from tests.contract.rows import TYPES

SCHEMA = TopicSchema.of(TYPES)
NAMES = [column.name for column in SCHEMA.fields]
DEEP = (100, 800, 900, 950, 960, 970, 975, 980, 985, 990, 2000)
NESTED = ["[" * levels for levels in DEEP] + ["[" * n + "]" * n for n in DEEP] + ['{"a":' * n + "1" + "}" * n for n in DEEP]
ODD = [
    "1e99999999999999999999",
    "[-1e-99999999999999999999]",
    "1e400",
    "9" * 5000,
    '"\\ud800"',
    '{"\\ud800": 1}',
    "NaN",
    "Infinity",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_no_row_of_ours_has_is_compared_and_differs(name: str) -> None:
    """The audit then reports it as different, and goes on."""
    form = Json(Choices("", ()))
    documents = [f"{{{json.dumps(name)}:{text}}}".encode() for text in (*NESTED, *ODD)]
    found = form.read([text.encode() for text in NESTED] + documents)
    ours = [one for one in found if one is not None]
    assert len(ours) >= len(ODD)
    assert form.rows(ours, SCHEMA).num_rows == len(ours)
    hashed = Hash(Choices("", ())).read([{name.encode(): text.encode()} for text in (*NESTED, *ODD)])
    Hash(Choices("", ())).rows([one for one in hashed if one is not None], SCHEMA)


def test_json_that_is_nested_too_deep_is_not_json() -> None:
    with pytest.raises(ValueError):
        parse("[" * 100_000)


@pytest.mark.parametrize("field", ["projection", "former", "shape:public.types"])
def test_a_ledger_that_is_nested_too_deep_is_damaged(field: str) -> None:
    fields = ledger.beginning("log", "history", 1, Projection("{table}:{key}", "json")) | {field: "[" * 100_000}
    if field.startswith("shape:"):
        fields[field] = "1 " + fields[field]
    with pytest.raises(ValueError):
        CacheLedger.decode(fields)
    assert ways_of(fields) == []
