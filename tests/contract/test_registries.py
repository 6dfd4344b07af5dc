"""What a schema registry answers: the twin that tests use, and a real one (`make faults`)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
import urllib3

from cdc.embedded.kafka import Kafka
from cdc.embedded.registry import SchemaRegistry
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from tests.contract.rows import ORDERS, batch, order, schema
from tests.integration.test_event_messages import Stage
from tests.integration.test_event_schemas import WIDER
from tests.registries import RegistryTwin


@pytest.fixture(scope="module", params=["twin", pytest.param("real", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, server_folder: Path) -> Iterator[str]:
    if request.param == "twin":
        with RegistryTwin() as twin:
            yield twin.url
        return
    real = SchemaRegistry(server_folder / "registry")
    real.start()
    try:
        assert _ask(real.url, "PUT", "/config", {"compatibility": "BACKWARD"})[0] == 200, "which others have from the start"
        yield real.url
    finally:
        real.stop()


def _ask(url: str, method: str, path: str, given: Any = None) -> tuple[int, Any]:
    answer = urllib3.request(method, url + path, json=given)
    return answer.status, answer.json()


def _register(url: str, subject: str, given: Any) -> tuple[int, Any]:
    status, found = _ask(url, "POST", f"/subjects/{subject}/versions", {"schema": json.dumps(given)})
    return status, found["id"] if status == 200 else found["error_code"]


def _record(kind: str, *more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}, *more]}


def test_a_schema_has_one_id_and_is_read_by_it(url: str) -> None:
    (status, string), (_, of_bytes) = _register(url, "a%2Fb-key", "string"), _register(url, "a%2Fb-value", "bytes")
    assert status == 200
    assert 0 < string != of_bytes > 0
    assert _register(url, "a%2Fb-key", "string") == _register(url, "other-key", "string") == (200, string)
    status, found = _ask(url, "GET", f"/schemas/ids/{of_bytes}")
    assert (status, json.loads(found["schema"])) == (200, "bytes")
    assert _ask(url, "GET", "/subjects/a%2Fb-key/versions") == (200, [1])
    assert {"a/b-key", "a/b-value", "other-key"} <= set(_ask(url, "GET", "/subjects")[1])


def test_what_nobody_has_and_what_is_no_schema(url: str) -> None:
    for path, code in (("/schemas/ids/987654321", 40403), ("/subjects/nobody/versions", 40401)):
        status, found = _ask(url, "GET", path)
        assert (status, found["error_code"]) == (404, code)
    assert _register(url, "nonsense", {"type": "nonsense"}) == (422, 42201)


def test_a_version_that_cannot_read_the_one_before_is_refused_until_that_is_allowed(url: str) -> None:
    assert _register(url, "d", _record("long"))[0] == 200
    assert _register(url, "d", _record("int")) == (409, 409)
    assert _register(url, "d", _record("long", {"name": "b", "type": "string"})) == (409, 409)
    assert _register(url, "d", _record("long", {"name": "b", "type": ["null", "string"], "default": None}))[0] == 200
    assert _ask(url, "PUT", "/config/d", {"compatibility": "NONE"})[0] == 200
    assert _register(url, "d", _record("int"))[0] == 200
    assert _ask(url, "GET", "/subjects/d/versions") == (200, [1, 2, 3])


def test_events_are_read_with_what_is_registered(url: str, kafka: Kafka, tmp_path: Path) -> None:
    """By a reader that knows the registry, and nothing of us."""

    def read(message: bytes | None) -> Any:
        if message is None:
            return None
        assert message[0] == 0
        found = _ask(url, "GET", f"/schemas/ids/{int.from_bytes(message[1:5], 'big')}")[1]
        given = io.BytesIO(message[5:])
        value = fastavro.schemaless_reader(given, json.loads(found["schema"]), None)
        assert not given.read()
        return value

    stage = Stage(kafka, tmp_path)
    rows = [(Op.INSERT, 1, order(1)), (Op.UPDATE, 2, order(1, "paid")), (Op.DELETE, 3, {"id": "1"})]
    stage.put(batch(ORDERS, rows), schema(WIDER, 4, Kind.ALTERED), batch(WIDER, [(Op.INSERT, 5, order(2) | {"place": "Ulm"})]))
    followed = stage.follow(body="debezium", format="avro", registry_url=url, timeout_s=20)
    assert followed.applied == stage.log.head
    found = stage.messages("public.orders")
    values = [read(one.value()) for one in found]
    assert [one and (one["op"], one["after"] and one["after"].get("place", "none")) for one in values] == [
        ("c", "none"), ("u", "none"), ("d", None), None, ("c", "Ulm"),
    ]  # fmt: skip
    assert [read(one.key()) for one in found] == [{"id": 1}] * 4 + [{"id": 2}]
