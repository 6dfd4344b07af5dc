"""What somebody else has put under a store's keys is read as something that is not ours, whatever it is."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.cache import ledger
from sinks.cache.erasure import ways_of
from sinks.cache.keytemplate import bind
from sinks.cache.ledger import CacheLedger, Projection
from sinks.cache.values import Form, Hash, Json
from sinks.cache.wire import Refused
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


ROW = b'{"id":"1"}'
ANSWERED = {
    "json": b"*3\r\n$-1\r\n$%d\r\n%s\r\n$1\r\n7\r\n" % (len(ROW), ROW),
    "hash": b"-WRONGTYPE Operation against a key\r\n*2\r\n$2\r\nid\r\n$1\r\n1\r\n*0\r\n",
}
FORMS: dict[str, Form] = {"json": Json(Choices("", ())), "hash": Hash(Choices("", ()))}


@pytest.mark.parametrize("value", FORMS)
def test_answers_are_read_where_they_stand(value: str) -> None:
    """A key that holds something else than a row, or nothing by now, is no row of ours."""
    answers, ledger_answer = ANSWERED[value], b"*1\r\n$3\r\nlog\r\n"
    data = answers + answers + ledger_answer
    there, found, end = FORMS[value].columns(np.frombuffer(data, np.uint8), FORMS[value].counts(6, 3), SCHEMA)
    assert end == 2 * len(answers)
    plain = (there & ~found.left).tolist()
    assert plain == [False, True, False] * 2
    assert found.rows.column("id").filter(pa.array(plain)).to_pylist() == ["1"] * 2


def test_fields_are_found_in_any_order_and_among_others() -> None:
    """The answer says their lengths; one that only begins like a column's is another one."""
    fields = [(b"idx", b"9"), (b"id", b"12"), (b"x", b"")]
    items = b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for field in fields for text in field)
    rows = [b"*6\r\n" + items, b"*2\r\n$2\r\nid\r\n$2\r\n34\r\n"]
    there, found, end = FORMS["hash"].columns(np.frombuffer(b"".join(rows), np.uint8), (1, 1), SCHEMA)
    assert there.all()
    assert found.left.tolist() == [True, False]
    assert found.rows.column("id")[1].as_py() == "34"
    assert end == sum(map(len, rows))


@pytest.mark.parametrize("template", ["order:{id}", "order:{id}:end", "order:{key}"])
def test_a_name_is_a_rows_only_if_it_is_that_of_its_key(template: str) -> None:
    table = Table(1, "public", "t", (Column("id", 25, key=True),))
    schema = TopicSchema.of(table)
    keys = bind(template, schema)
    ids = ["1", "12", "", "a\\b", "a:b", "\\E", "ü" * 20]
    rows = pa.RecordBatch.from_arrays([pa.array(ids, pa.utf8())], names=["id"])
    names = keys.texts_of_keys(rows).to_array()
    assert all(keys.named(names, rows).to_pylist())
    for count in (len(ids), 2):  # texts that stand in a name as they are, and others
        own, some = names.slice(0, count), rows.slice(0, count)
        moved = pa.concat_arrays([own.slice(1), own.slice(0, 1)])
        assert not any(keys.named(moved, some).to_pylist())


@pytest.mark.parametrize("value", FORMS)
def test_a_server_that_refuses_to_say_what_keys_hold_is_not_taken_for_an_empty_one(value: str) -> None:
    refusal = b"-NOPERM this user has no permissions\r\n"
    data = ANSWERED[value] + refusal * (3 if value == "hash" else 1)
    with pytest.raises(Refused) as refused:
        FORMS[value].columns(np.frombuffer(data, np.uint8), FORMS[value].counts(6, 3), SCHEMA)
    assert refused.value.code == "NOPERM"


def test_a_text_that_is_not_utf_8_is_read_by_itself() -> None:
    documents = [b'{"id":"\xff"}', ROW]
    data = b"*2\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in documents)
    there, found, _ = FORMS["json"].columns(np.frombuffer(data, np.uint8), (2,), SCHEMA)
    assert there.all()
    assert found.left[0]
