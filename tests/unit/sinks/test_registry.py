"""The client of a schema registry, against the twin (``tests.registries``): what it registers, and what its errors say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from cdc.errors import StoreError
from cdc.model.pgtypes import INT4, INT8, NUMERIC, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.events.avroschema import envelope_schema, plain_schema
from sinks.events.flatrows import flat_form
from sinks.events.kafka.registry import AGAIN_S, Registry
from sinks.render.jsonrows import Style
from tests.contract.rows import numeric
from tests.integration.certificates import Authority
from tests.registries import RegistryTwin
from tests.unit.sinks.test_kafka_options import AVRO, options

STRING = plain_schema("string")


@pytest.fixture
def twin() -> Iterator[RegistryTwin]:
    with RegistryTwin() as made:
        yield made


def client(twin: RegistryTwin, **more: Any) -> Registry:
    return Registry("bus", options(**AVRO | {"registry_url": twin.url, "timeout_s": 2} | more))


def envelope(*columns: tuple[str, int, int]) -> str:
    table = Table(
        1, "public", "t", (Column("id", INT4, -1, "int4", key=True), *(Column(name, kind, mod, "") for name, kind, mod in columns))
    )
    return envelope_schema("public.t", flat_form(TopicSchema.of(table), Style(), connect=False).fields)


def test_a_schema_is_registered_once_and_found_by_its_id(twin: RegistryTwin) -> None:
    registry = client(twin, registry_url=twin.url + "/")
    assert [registry.schema_id("a/b-key", STRING) for _ in range(2)] == [1, 1]
    assert registry.schema_id("c-value", STRING) == 1
    assert registry.schema_id("c-key", plain_schema("bytes")) == 2
    assert twin.posts == 3
    assert client(twin).schema_id("c-key", plain_schema("bytes")) == 2
    assert twin.subjects == {"a/b-key": [1], "c-value": [1], "c-key": [2]}
    answer = urllib3.request("GET", f"{twin.url}/schemas/ids/2")
    assert answer.json() == {"schema": '"bytes"'}
    assert urllib3.request("GET", f"{twin.url}/schemas/ids/9").json()["error_code"] == 40403
    registry.close()


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        ((), (("a", TEXT, -1),), True),
        ((("a", TEXT, -1),), (), True),
        ((("a", INT4, -1),), (("a", INT8, -1),), True),
        ((("a", INT8, -1),), (("a", INT4, -1),), False),
        ((("a", TEXT, -1),), (("a", INT4, -1),), False),
        ((("n", NUMERIC, numeric(5, 2)),), (("n", NUMERIC, numeric(6, 2)),), False),
    ],
)
def test_what_readers_cannot_read_is_refused_by_name(twin: RegistryTwin, before: Any, after: Any, taken: bool) -> None:
    registry = client(twin)
    registry.schema_id("public.t-value", envelope(*before))
    if taken:
        assert registry.schema_id("public.t-value", envelope(*after)) == 2
        return
    with pytest.raises(StoreError, match=r"the schema of public\.t-value as incompatible with the versions before it") as refused:
        registry.schema_id("public.t-value", envelope(*after))
    assert not refused.value.retryable
    assert "compatibility" in str(refused.value.hint)
    twin.compatibility["public.t-value"] = "NONE"
    assert registry.schema_id("public.t-value", envelope(*after)) == 2


@pytest.mark.parametrize(
    ("status", "retryable", "said"),
    [
        (500, True, "cannot answer"),
        (503, True, "cannot answer"),
        (429, True, "cannot answer"),
        (422, False, "does not take the schema"),
        (404, False, "is not a schema registry"),
        (302, False, "is not a schema registry"),
        (403, False, "does not accept the account"),
    ],
)
def test_answers_are_told_apart(twin: RegistryTwin, status: int, retryable: bool, said: str) -> None:
    registry = client(twin)
    twin.fail = [status]
    with pytest.raises(StoreError, match=said) as refused:
        registry.schema_id("a", STRING)
    assert refused.value.retryable is retryable
    assert registry.schema_id("a", STRING) == 1


def test_a_registry_that_is_not_there_is_waited_for(twin: RegistryTwin) -> None:
    with pytest.raises(StoreError, match="it does not answer") as refused:
        client(twin, registry_url="http://127.0.0.1:1").schema_id("a", STRING)
    assert refused.value.retryable


def test_the_account_is_sent_and_never_shown() -> None:
    account = {"registry_username": "cdc", "registry_password": "hunter2"}
    with RegistryTwin(("cdc", "hunter2")) as twin:
        assert client(twin, **account).schema_id("a", STRING) == 1
        with pytest.raises(StoreError, match="does not accept the account") as refused:
            client(twin, **account | {"registry_password": "wr0ng"}).schema_id("b", STRING)
    assert not refused.value.retryable
    assert "registry_password in cdc.toml" in str(refused.value.hint)
    assert "wr0ng" not in f"{refused.value} {refused.value.hint} {refused.value.__cause__}"


def test_an_account_may_have_any_letters() -> None:
    with RegistryTwin(("çdc", "pä€")) as twin:
        assert client(twin, registry_username="çdc", registry_password="pä€").schema_id("a", STRING) == 1


def test_a_registry_that_was_restored_is_asked_again_by_a_store_that_is_opened_again(twin: RegistryTwin) -> None:
    registry = client(twin)
    assert registry.schema_id("a", STRING) == 1
    twin.schemas[:], twin.subjects = ['"int"'], {"b": [1]}
    registry.close()
    assert registry.schema_id("a", STRING) == 2


def test_a_registry_that_was_restored_is_asked_again_after_a_while(twin: RegistryTwin) -> None:
    now = [0.0]
    registry = Registry("bus", options(**AVRO | {"registry_url": twin.url, "timeout_s": 2}), lambda: now[0])
    assert registry.schema_id("a", STRING) == 1
    twin.schemas[:], twin.subjects = ['"int"'], {"b": [1]}
    now[0] = AGAIN_S - 1
    assert registry.schema_id("a", STRING) == 1
    now[0] = AGAIN_S
    twin.fail = [503]
    assert [registry.schema_id("a", STRING) for _ in range(2)] == [1, 1], "what is known is enough while it does not answer"
    now[0] = 2 * AGAIN_S
    assert registry.schema_id("a", STRING) == 2
    now[0] = 3 * AGAIN_S
    twin.fail = [409]
    with pytest.raises(StoreError, match="as incompatible"):
        registry.schema_id("a", STRING)


def test_tls_and_an_authority_of_ones_own(tmp_path: Path) -> None:
    authority = Authority()
    known, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    known.write_bytes(authority.pem)
    other.write_bytes(Authority("Another").pem)
    with RegistryTwin(certificate=authority.server().write(tmp_path, "registry")) as twin:
        assert client(twin, registry_ca_certs=known).schema_id("a", STRING) == 1
        with pytest.raises(StoreError, match="TLS fails") as refused:
            client(twin, registry_ca_certs=other).schema_id("b", STRING)
        assert not refused.value.retryable
        assert "registry_ca_certs in cdc.toml" in str(refused.value.hint)


def test_an_answer_without_an_id_is_refused(twin: RegistryTwin, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ({}, {"id": "1"}, {"id": True}, {"id": -1}, {"id": 2**32}, [], None):
        monkeypatch.setattr(twin, "_found", lambda *_, found=found: found)
        with pytest.raises(StoreError, match="without the id of a schema") as refused:
            client(twin).schema_id(json.dumps(found), STRING)
        assert not refused.value.retryable
