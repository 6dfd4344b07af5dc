"""Keys and values with schemas on a real Kafka. The schema registry is the twin of ``tests.registries``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from cdc.embedded.kafka import Kafka
from cdc.errors import StopState
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.table import Column
from sinks.events.kafka import make
from tests.contract.rows import ORDERS, batch, order, schema
from tests.integration.test_event_messages import Stage
from tests.integration.test_event_streams import PLACED, placed
from tests.logs import cut
from tests.redefining import RedefinedTopic
from tests.registries import RegistryTwin

WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("place", TEXT, -1, "text")), epoch=ORDERS.epoch)


@pytest.fixture
def twin() -> Iterator[RegistryTwin]:
    with RegistryTwin() as made:
        yield made


@pytest.fixture
def stage(kafka: Kafka, tmp_path: Path) -> Stage:
    return Stage(kafka, tmp_path)


def avro(twin: RegistryTwin) -> dict[str, Any]:
    return {"body": "debezium", "format": "avro", "registry_url": twin.url, "timeout_s": 20}


def read(twin: RegistryTwin, message: bytes | None) -> Any:
    if message is None:
        return None
    assert message[0] == 0

    given = io.BytesIO(message[5:])
    found = fastavro.schemaless_reader(given, json.loads(twin.schemas[int.from_bytes(message[1:5], "big") - 1]), None)
    assert not given.read()
    return found


def test_an_altered_table_registers_a_new_version(stage: Stage, twin: RegistryTwin) -> None:
    rows = [(Op.INSERT, 1, order(1)), (Op.UPDATE, 2, order(1, "paid")), (Op.DELETE, 3, {"id": "1"})]
    stage.put(batch(ORDERS, rows), schema(WIDER, 4, Kind.ALTERED), batch(WIDER, [(Op.INSERT, 5, order(2) | {"place": "Ulm"})]))
    stage.put(batch(PLACED, [(Op.INSERT, 6, placed(7, '{"a":1}'))]))
    twin.fail = [503]
    assert stage.follow(**avro(twin)).applied == stage.log.head
    found = stage.messages("public.orders")
    values = [read(twin, one.value()) for one in found]
    assert [one and one["op"] for one in values] == ["c", "u", "d", None, "c"]
    assert values[0]["after"]["amount"] == Decimal(order(1)["amount"] or 0)
    assert values[1]["after"]["status"] == "paid"
    assert "place" not in values[0]["after"]
    assert values[4]["after"]["place"] == "Ulm"
    assert [read(twin, one.key()) for one in found] == [{"id": 1}] * 4 + [{"id": 2}]
    name = f"{stage.prefix}.public.orders"
    assert {subject: len(versions) for subject, versions in twin.subjects.items() if subject.startswith(name)} == {
        f"{name}-key": 1,
        f"{name}-value": 2,
    }
    [event] = stage.messages("outbox.order")
    assert (read(twin, event.key()), read(twin, event.value())) == ("7", '{"a":1}')


def test_a_change_that_readers_cannot_follow_stops_the_store(stage: Stage, twin: RegistryTwin) -> None:
    now = replace(
        ORDERS,
        columns=tuple(replace(one, type_oid=INT8, type_name="int8") if one.name == "note" else one for one in ORDERS.columns),
    )
    stage.put(
        batch(ORDERS, [(Op.INSERT, 1, order(1))]),
        schema(now, 2, Kind.ALTERED),
        batch(now, [(Op.INSERT, 3, order(2) | {"note": "7"})]),
    )
    status = stage.follow(**avro(twin)).status
    assert status.stop == StopState.STORE_REFUSES
    assert "-value as incompatible with the versions before it" in str(status.error)
    twin.compatibility[f"{stage.prefix}.public.orders-value"] = "NONE"
    assert stage.follow(**avro(twin)).applied == stage.log.head
    assert [read(twin, one.value())["after"]["note"] for one in stage.messages("public.orders")] == [order(1)["note"], 7]


def test_the_row_before_is_of_the_type_that_a_view_s_column_has_now(stage: Stage, twin: RegistryTwin) -> None:
    topic, more = RedefinedTopic(stage.log), {**avro(twin), "when": "changed(v)"}
    before, after = (pa.schema([("id", pa.int64()), ("v", kind)]) for kind in (pa.utf8(), pa.int64()))
    topic.brings(before, ["id"], [{"id": 1, "v": "7"}, {"id": 2, "v": "none"}])
    topic.brings(after, ["id"], [{"id": 1, "v": 8}, {"id": 2, "v": 8}])
    twin.compatibility[f"{stage.prefix}.views.v-value"] = "NONE"
    assert stage.follow(**more).applied == stage.log.head
    assert not make("bus", stage.options(**more)).letters()
    found = [read(twin, one.value()) for one in stage.messages("views.v")]
    assert [(one["before"]["v"], one["after"]["v"]) for one in found] == [(7, 8), (None, 8)]


def test_a_value_that_its_schema_cannot_hold_is_a_letter(stage: Stage, twin: RegistryTwin) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1) | {"amount": "NaN"}), (Op.INSERT, 2, order(2))]))
    assert stage.follow(**avro(twin)).applied == cut(2)
    assert [read(twin, one.value())["after"]["id"] for one in stage.messages("public.orders")] == [2]
    [letter] = make("bus", stage.options(**avro(twin))).letters()
    assert (letter.id, letter.reason) == ("public.orders@1", "its column amount has a value that is not a decimal of the format")


def test_json_with_its_schema_needs_no_registry(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.DELETE, 2, {"id": "1"})]))
    stage.put(batch(PLACED, [(Op.INSERT, 3, placed(7, '{"a":1}'))]))
    assert stage.follow(body="debezium", format="json-schema").applied == cut(3)
    found = stage.messages("public.orders")
    assert [json.loads(one.key() or b"")["payload"] for one in found] == [{"id": 1}] * 3
    values = [json.loads(one.value() or b"null") for one in found]
    assert values[0]["schema"]["name"] == f"{stage.prefix}.public.orders.Envelope"
    assert values[0]["payload"]["after"]["id"] == 1
    assert values[2] is None
    [event] = stage.messages("outbox.order")
    assert json.loads(event.value() or b"")["payload"] == '{"a":1}'


def test_a_preview_asks_nobody(stage: Stage, twin: RegistryTwin) -> None:
    [shown] = make("bus", stage.options(**avro(twin))).preview(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    assert json.loads(shown["body"])["after"]["id"] == 1
    assert json.loads(shown["key"]) == {"id": 1}
    assert twin.posts == 0
