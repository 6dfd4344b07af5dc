"""Brokers that ask who one is, over TLS: accounts and certificates that they take, and what is said of those that they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from cdc.embedded.kafka import Kafka
from cdc.errors import StoreError
from cdc.model.batch import Op
from tests.contract.rows import ORDERS, batch, order
from tests.integration.certificates import Authority
from tests.integration.test_event_messages import Stage
from tests.logs import cut
from tests.securekafka import PLAIN_USER, SecureKafka

SECRET = "hunter2"
WRONG = "wr0ng-s3cret"


@pytest.fixture
def stage(kafka: Kafka, tmp_path: Path) -> Stage:
    made = Stage(kafka, tmp_path)
    made.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    return made


def account(secure: SecureKafka, mechanism: str, name: str, password: str = SECRET) -> dict[str, Any]:
    return {
        "servers": secure.accounts,
        "security_protocol": "sasl_ssl",
        "ca_certs": secure.ca,
        "sasl_mechanism": mechanism,
        "sasl_username": name,
        "sasl_password": password,
    }


def certificate(secure: SecureKafka) -> dict[str, Any]:
    own, key = secure.client
    return {
        "servers": secure.certificates,
        "security_protocol": "ssl",
        "ca_certs": secure.ca,
        "client_cert": own,
        "client_key": key,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_accounts_over_tls(stage: Stage, secured: SecureKafka, mechanism: str) -> None:
    name, _ = PLAIN_USER
    if mechanism != "PLAIN":
        name = mechanism.lower()
        kind = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)
        admin = AdminClient(stage.quiet)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, kind, SECRET.encode())])[name].result(60)
    assert stage.follow(**account(secured, mechanism, name)).applied == cut(1)
    assert json.loads(stage.messages("public.orders")[0].value() or b"")["after"]["id"] == 1
    if mechanism == "SCRAM-SHA-256":
        return  # the other two say what becomes of a wrong password
    with pytest.raises(StoreError, match="do not accept the account") as refused:
        stage.opened(2, **account(secured, mechanism, name, WRONG), timeout_s=3)
    _names(refused.value, "sasl_password")


def test_certificates_on_both_sides(stage: Stage, secured: SecureKafka) -> None:
    assert stage.follow(**certificate(secured)).applied == cut(1)
    without = {name: value for name, value in certificate(secured).items() if not name.startswith("client_")}
    with pytest.raises(StoreError, match="TLS with the brokers fails") as refused:
        stage.opened(2, **without, timeout_s=3)
    _names(refused.value, "client_cert")


def test_an_authority_that_is_not_known(stage: Stage, secured: SecureKafka, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Authority("Another").pem)
    with pytest.raises(StoreError, match="TLS with the brokers fails") as refused:
        stage.opened(1, **account(secured, "PLAIN", *PLAIN_USER) | {"ca_certs": other, "timeout_s": 3})
    _names(refused.value, "ca_certs")
    with pytest.raises(StoreError, match="cannot be read") as refused:
        stage.opened(1, **account(secured, "PLAIN", *PLAIN_USER) | {"ca_certs": tmp_path / "none.pem", "timeout_s": 3})
    _names(refused.value, "ca_certs")


def _names(error: StoreError, key: str) -> None:
    """It lasts, says which key to correct, and holds no secret."""
    assert not error.retryable
    assert key in str(error.hint)
    assert "in cdc.toml" in str(error.hint)
    said = f"{error} {error.hint} {error.__cause__}"
    assert SECRET not in said
    assert WRONG not in said
