"""The options of ``[stores.NAME]`` with ``kind = "kafka"``."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.settings.refusals import is_loopback
from sinks.events.options import EventOptions

PLACES: Final = ("topic", "schema", "table")
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What the name of a topic may be."""
_SERVERS: Final = re.compile(r"[^\s,/@]+:\d{1,5}(,[^\s,/@]+:\d{1,5})*")


def is_legal(topic: str) -> bool:
    return _LEGAL.fullmatch(topic) is not None and topic not in (".", "..")


class BrokerOptions(EventOptions):
    """How the brokers are reached, and who we are there."""

    servers: str
    """The brokers to begin with: `host:port`, several with commas between them."""
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    """As Kafka's clients call it."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """How the account proves itself."""
    sasl_username: str | None = None
    """The account's name."""
    sasl_password: SecretStr | None = None
    """The account's password."""
    ca_certs: Path | None = None
    """PEM: the authorities that count instead of the system's."""
    client_cert: Path | None = None
    """PEM: our certificate, where the brokers ask for one."""
    client_key: Path | None = None
    """PEM: its key."""
    client_key_password: SecretStr | None = None
    """Of the key, where it has one."""
    timeout_s: float = Field(30.0, gt=0)
    """How long one answer of the brokers may take."""

    @field_validator("servers")
    @classmethod
    def _are_addresses(cls, servers: str) -> str:
        if not _SERVERS.fullmatch(servers):
            raise ValueError('is not a list of brokers such as "kafka-1.internal:9092,kafka-2.internal:9092"')
        return servers

    @model_validator(mode="after")
    def _one_account(self) -> Self:
        asked = self.security_protocol.startswith("sasl_")
        given = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if asked and None in given:
            raise ValueError(
                f'security_protocol = "{self.security_protocol}" needs sasl_mechanism, sasl_username and sasl_password'
            )
        if not asked and given != (None, None, None):
            raise ValueError(
                f'security_protocol = "{self.security_protocol}" takes no sasl_mechanism, sasl_username or sasl_password'
            )
        files = (self.ca_certs, self.client_cert, self.client_key)
        if self.security_protocol in ("plaintext", "sasl_plaintext") and files != (None, None, None):
            raise ValueError(
                f'security_protocol = "{self.security_protocol}" is without TLS: it takes no ca_certs, client_cert or client_key'
            )
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together")
        return self


class RegistryOptions(BrokerOptions):
    """How values are written, and how the schema registry is reached."""

    format: Literal["json", "json-schema", "avro"] = "json"
    """How keys and values are written with `body = "debezium"`: `json` has no schema; `json-schema` is what Connect's JSON converter writes with `schemas.enable=true`;
    `avro` is Avro in the wire format of a schema registry, which keeps the schemas."""
    registry_url: str | None = None
    """Of `format = "avro"`: the schema registry, such as `https://registry.internal:8081`."""
    registry_username: str | None = None
    """The account's name there, where it asks for one."""
    registry_password: SecretStr | None = None
    """The account's password there."""
    registry_ca_certs: Path | None = None
    """PEM: the authorities that count for it instead of the system's."""

    @field_validator("registry_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and not _is_registry(url):
            raise ValueError('is not an address such as "https://registry.internal:8081" (an account stands in registry_username)')
        return url

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        if self.format != "json" and self.body != "debezium":
            raise ValueError(f'format = "{self.format}" needs body = "debezium"')
        if (self.format == "avro") != (self.registry_url is not None):
            raise ValueError('format = "avro" and registry_url belong together')
        if (self.registry_username is None) != (self.registry_password is None):
            raise ValueError("registry_username and registry_password belong together")
        address = urlsplit(self.registry_url or "")
        if self.registry_ca_certs is not None and address.scheme != "https":
            raise ValueError("registry_ca_certs needs a registry_url of https")
        if self.registry_password is not None and address.scheme == "http" and not is_loopback(address.hostname or ""):
            raise ValueError("registry_url is http, so anybody on the way may read registry_password: use https")
        return self


def _is_registry(url: str) -> bool:
    try:
        given = urlsplit(url)
        port = given.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and not set(" ?#@\\") & set(url)
    return given.scheme in ("http", "https") and bool(given.hostname) and port != 0 and plain


class Options(RegistryOptions):
    """The options that only Kafka has."""

    topic: str = Field("{topic}", min_length=1)
    """The name in Kafka of a topic; `{topic}`, `{schema}` and `{table}` are the log's. `"outbox.event.{table}"` is Debezium's name for what an outbox brings."""
    create: bool = False
    """Whether topics that Kafka does not have are created. Otherwise the store waits until somebody does."""
    partitions: int = Field(1, ge=1)
    """Of topics that are created. Events of one key are in one partition, and in order there; with another number they would be in another."""
    replication: int | None = Field(None, ge=1)
    """Copies of topics that are created. Left out: as the brokers say."""
    tombstones: bool | None = None
    """Whether a row's DELETE is followed by a message with its key and no value, by which a compacted topic forgets the key. Left out: if `body = "debezium"`, as
    Debezium does."""
    ledger: str = "__headwater.{store}"
    """The compacted topic in which the store notes how far it is, and the transactional id that it writes with."""
    compression: Literal["none", "gzip", "lz4", "snappy", "zstd"] = "lz4"
    """How batches of messages are compressed."""
    message_bytes_max: int = Field(1_000_000, ge=1000, le=1_000_000_000)
    """The longest message; the topics' `max.message.bytes` has to allow as much."""

    @property
    def writes_tombstones(self) -> bool:
        return self.body == "debezium" if self.tombstones is None else self.tombstones

    def topic_of(self, topic: str) -> str:
        """The name in Kafka of this topic."""
        schema, _, table = topic.partition(".")
        return self.topic.format(topic=topic, schema=schema, table=table)

    def ledger_of(self, store: str) -> str:
        return self.ledger.format(store=store)

    @field_validator("topic")
    @classmethod
    def _is_a_template(cls, topic: str) -> str:
        if not is_legal(_filled(topic, PLACES)):
            raise ValueError(
                f"is not a topic's name (letters, digits, '.', '_', '-') in which {', '.join(f'{{{one}}}' for one in PLACES)} may stand"
            )
        return topic

    @field_validator("ledger")
    @classmethod
    def _is_a_ledgers_name(cls, ledger: str) -> str:
        if not is_legal(_filled(ledger, ("store",))):
            raise ValueError("is not a topic's name (letters, digits, '.', '_', '-') in which {store} may stand")
        return ledger


def _filled(template: str, places: tuple[str, ...]) -> str:
    """The template with an x in each place; empty where it is none."""
    try:
        named = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        return template.format(**dict.fromkeys(places, "x")) if named <= set(places) else ""
    except (ValueError, KeyError, IndexError, AttributeError):
        return ""
