"""A broker that lets in accounts only, and each only to what it may: what refuses is named, and the rights that the page lists are enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cdc.embedded.kafka import Kafka
from cdc.errors import StoreError
from cdc.model.batch import Op
from tests.contract.rows import ORDERS, batch, order
from tests.faults.points import EVERYTHING
from tests.integration.test_event_messages import Stage
from tests.logs import cut

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not EVERYTHING, reason="make faults")]
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ACCOUNTS = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": f'{_LOGIN} username="root" password="r00t" user_root="r00t" user_cdc="hunter2";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",
}
GIVEN = {
    (ResourceType.TOPIC, "t."): ("WRITE", "DESCRIBE", "CREATE"),
    (ResourceType.TOPIC, "__t."): ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE"),
    (ResourceType.TRANSACTIONAL_ID, "__t."): ("WRITE", "DESCRIBE"),
}
"""As docs/event-stores.md lists them."""


@pytest.fixture(scope="module")
def guarded(server_folder: Path) -> Iterator[Kafka]:
    server = Kafka(server_folder / "kafka-guarded", ACCOUNTS)
    server.start()
    yield server
    server.stop()


def account(name: str, password: str) -> dict[str, str]:
    return {
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "sasl_username": name,
        "sasl_password": password,
    }


def as_root(stage: Stage) -> None:
    stage.quiet |= {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "root",
        "sasl.password": "r00t",
    }


def test_accounts_and_their_rights(guarded: Kafka, tmp_path: Path) -> None:
    stage = Stage(guarded, tmp_path, "t")
    as_root(stage)
    rows = batch(ORDERS, [(Op.INSERT, 1, order(1))])
    stage.put(rows)
    with pytest.raises(StoreError, match=r"do not accept the account \(_AUTHENTICATION\)") as refused:
        stage.opened(1, **account("cdc", "wr0ng"), timeout_s=3)
    assert not refused.value.retryable
    assert "wr0ng" not in str(refused.value)
    with pytest.raises(StoreError, match=r"topic __t\.bus: the account may not do that") as refused:
        stage.opened(2, **account("cdc", "hunter2"))
    assert not refused.value.retryable
    admin = AdminClient(stage.quiet)
    for (kind, prefix), operations in GIVEN.items():
        for one in operations:
            allowed = AclOperation[one], AclPermissionType.ALLOW
            acl = AclBinding(kind, prefix, ResourcePatternType.PREFIXED, "User:cdc", "*", *allowed)
            admin.create_acls([acl])[acl].result(60)
    store = stage.opened(3, **account("cdc", "hunter2"))
    store.apply(rows)
    store.commit(cut(1))
    assert store.applied() == cut(1)
    store.close()
    assert stage.statuses() == [(1, "new")]
