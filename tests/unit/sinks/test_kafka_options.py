"""The options of stores of kind kafka, and what is made of them without a broker."""

from __future__ import annotations

import builtins
import re
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema
from sinks import make_sink
from sinks.events.kafka import Options
from sinks.events.kafka.client import Brokers
from tests.contract.rows import ORDERS, TYPES

SASL = {"security_protocol": "sasl_ssl", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "cdc", "sasl_password": "hunter2"}

AVRO = {"format": "avro", "body": "debezium", "registry_url": "http://127.0.0.1:1"}


def options(**more: Any) -> Options:
    return Options.model_validate({"kind": "kafka", "servers": "a.internal:9092,b.internal:9092"} | more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"servers": "a.internal"}, "is not a list of brokers"),
        ({"servers": "kafka://me:secret@a:1"}, "is not a list of brokers"),
        ({"topic": "{nothing}"}, "is not a topic's name"),
        ({"topic": "a b"}, "is not a topic's name"),
        ({"ledger": "{topic}"}, "is not a topic's name"),
        ({"security_protocol": "sasl_ssl"}, "needs sasl_mechanism"),
        ({"sasl_username": "cdc"}, "takes no sasl_mechanism"),
        ({"ca_certs": "/x"}, "without TLS"),
        ({"security_protocol": "ssl", "client_cert": "/x"}, "belong together"),
        ({"body": "avro"}, "body"),
        ({"format": "avro", "registry_url": "http://127.0.0.1:1"}, 'needs body = "debezium"'),
        ({"format": "json-schema", "body": "change"}, 'needs body = "debezium"'),
        (AVRO | {"registry_url": None}, "belong together"),
        ({"registry_url": "http://127.0.0.1:1"}, "belong together"),
        (AVRO | {"registry_url": "https://me:hunter2@a.internal"}, "is not an address"),
        (AVRO | {"registry_url": "kafka:9092"}, "is not an address"),
        (AVRO | {"registry_username": "cdc"}, "belong together"),
        (AVRO | {"registry_ca_certs": "/x"}, "needs a registry_url of https"),
        (AVRO | {"registry_url": "http://a.internal", "registry_username": "a", "registry_password": "b"}, "is http"),
        ({"workers_from_rows": 1}, "workers_from_rows"),
    ],
)
def test_what_it_cannot_do_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        options(**more)


def test_topics_are_named_by_templates() -> None:
    assert options(topic="outbox.event.{table}").topic_of("outbox.order") == "outbox.event.order"
    assert options().topic_of("public.orders") == "public.orders"
    assert options().ledger_of("bus") == "__headwater.bus"
    with pytest.raises(ConfigError, match="is not a name that Kafka knows"):
        make_sink("bus", options()).foresee([TopicSchema.of(ORDERS), TopicSchema.of(TYPES)])


def test_the_account_reaches_the_client_and_nothing_that_is_shown() -> None:
    made = options(**SASL)
    settings = Brokers("bus", made).settings()
    assert settings["sasl.password"] == "hunter2"
    assert settings["security.protocol"] == "sasl_ssl"
    assert "hunter2" not in repr(made)
    assert not [name for name, value in Brokers("bus", options()).settings().items() if name.startswith("sasl") or value is None]


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("confluent_kafka"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match="needs Kafka's client") as refused:
        make_sink("bus", options())
    assert refused.value.hint == "make setup installs it; elsewhere: pip install '.[kafka]' in Headwater's folder"
