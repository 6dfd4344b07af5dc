"""Listeners of a Kafka for whoever proves who he is: one with TLS and accounts, one with certificates on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdc.embedded.kafka import Kafka
from cdc.embedded.processes import free_port
from tests.integration.certificates import Authority

PLAIN_USER: Final = ("plain", "hunter2")
_LOGINS: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class SecureKafka:
    """``kafka``: listens in plain text as ever. ``accounts``, ``certificates``: addresses of the other two listeners. ``ca``: PEM; ``client``: a certificate and its key."""

    kafka: Kafka
    accounts: str
    certificates: str
    ca: Path
    client: tuple[Path, Path]


def secure_kafka(folder: Path) -> SecureKafka:
    """A broker over the folder, not started."""
    keys = folder.with_name(f"{folder.name}-keys")
    keys.mkdir(parents=True)
    authority = Authority()
    (keys / "ca.pem").write_bytes(authority.pem)
    pair = authority.server()
    (keys / "broker.pem").write_bytes(pair.key + pair.certificate)
    ports = {"ACCOUNTS": free_port(), "CERTIFICATES": free_port()}
    more = "".join(f",{name}://127.0.0.1:{port}" for name, port in ports.items())
    server = Kafka(folder)
    plain = f"CLIENTS://127.0.0.1:{server.port}"
    name, password = PLAIN_USER
    settings = {
        "listeners": f"{plain},CONTROLLER://127.0.0.1:{server.controller_port}{more}",
        "advertised.listeners": plain + more,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENTS:PLAINTEXT,ACCOUNTS:SASL_SSL,CERTIFICATES:SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.accounts.plain.sasl.jaas.config": f'{_LOGINS}.plain.PlainLoginModule required user_{name}="{password}";',
        "listener.name.accounts.scram-sha-256.sasl.jaas.config": f"{_LOGINS}.scram.ScramLoginModule required;",
        "listener.name.accounts.scram-sha-512.sasl.jaas.config": f"{_LOGINS}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(keys / "ca.pem"),
        "listener.name.certificates.ssl.client.auth": "required",
    }
    server.settings.update(settings)
    addresses = {listener: f"127.0.0.1:{port}" for listener, port in ports.items()}
    client = authority.server().write(keys, "client")
    return SecureKafka(server, addresses["ACCOUNTS"], addresses["CERTIFICATES"], keys / "ca.pem", client)
