"""Kafka's client: what it is configured with, and its errors in our words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ConfigError, StoreError
from sinks.events.kafka.options import Options

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_START: Final = "start them, or correct `servers` in cdc.toml"
_WAIT: Final = "wait until the cluster has settled"
_RIGHTS: Final = (
    "the account needs: on the topics Write and Describe (Create, where they are to be created), on the ledger also Read and "
    "DescribeConfigs, and on the transactional id, which is called like the ledger, Write and Describe"
)
_MAKE: Final = "create it, or set `create = true`; it is looked for again"
_ACCOUNT: Final = "correct sasl_mechanism, sasl_username and sasl_password in cdc.toml"

# The error's name → (whether waiting helps, what is wrong, what to do).
_MEANINGS: Final[Mapping[str, tuple[bool, str, str]]] = {
    "_ALL_BROKERS_DOWN": (True, "no broker answers", _START),
    "_TRANSPORT": (True, "no broker answers", _START),
    "_RESOLVE": (True, "no broker answers", _START),
    "_TIMED_OUT": (True, "no broker answers in time", _START),
    "_TIMED_OUT_QUEUE": (True, "no broker answers in time", _START),
    "_MSG_TIMED_OUT": (True, "no broker answers in time", _START),
    "REQUEST_TIMED_OUT": (True, "no broker answers in time", _START),
    "BROKER_NOT_AVAILABLE": (True, "a broker is not available", _WAIT),
    "LEADER_NOT_AVAILABLE": (True, "a partition has no leader", _WAIT),
    "COORDINATOR_NOT_AVAILABLE": (True, "there is no coordinator of transactions", _WAIT),
    "COORDINATOR_LOAD_IN_PROGRESS": (True, "there is no coordinator of transactions yet", _WAIT),
    "CONCURRENT_TRANSACTIONS": (True, "the transaction before is still being ended", _WAIT),
    "NOT_ENOUGH_REPLICAS": (True, "fewer copies are in sync than min.insync.replicas asks for", "bring the other brokers back"),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (
        True,
        "fewer copies are in sync than min.insync.replicas asks for",
        "bring the other brokers back",
    ),
    "_AUTHENTICATION": (False, "the brokers do not accept the account", _ACCOUNT),
    "SASL_AUTHENTICATION_FAILED": (False, "the brokers do not accept the account", _ACCOUNT),
    "UNSUPPORTED_SASL_MECHANISM": (False, "the brokers do not know the sasl_mechanism", _ACCOUNT),
    "_SSL": (False, "TLS with the brokers fails", "correct security_protocol, ca_certs, client_cert and client_key in cdc.toml"),
    "_INVALID_ARG": (
        False,
        "a file that TLS needs cannot be read",
        "correct ca_certs, client_cert, client_key and client_key_password in cdc.toml",
    ),
    "TOPIC_AUTHORIZATION_FAILED": (False, "the account may not do that with the topic", _RIGHTS),
    "CLUSTER_AUTHORIZATION_FAILED": (False, "the account may not do that with the cluster", _RIGHTS),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (False, "the account may not use the transactional id", _RIGHTS),
    "UNKNOWN_TOPIC_OR_PART": (True, "the topic does not exist", _MAKE),
    "_UNKNOWN_TOPIC": (True, "the topic does not exist", _MAKE),
    "_UNKNOWN_PARTITION": (True, "the partition does not exist", _MAKE),
    "TOPIC_EXCEPTION": (False, "that is not a name for a topic", "correct `topic` in cdc.toml"),
    "MSG_SIZE_TOO_LARGE": (
        True,
        "an event, or a batch of events, is longer than the topic takes",
        "they are sent again in smaller batches, and one that is too long by itself becomes a dead letter: cdc dlq ls. The topic's max.message.bytes says how long it may be",
    ),
    "INVALID_RECORD": (
        False,
        "the topic is compacted, and an event has no key (a TRUNCATE has none)",
        "let the topic's cleanup.policy be delete, or leave the table out",
    ),
    "INVALID_REPLICATION_FACTOR": (False, "there are not so many brokers", "lower `replication`"),
}
_SETTLING: Final = frozenset(
    (
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INCONSISTENT_TOPIC_ID",
        "INVALID_FETCH_SESSION_EPOCH",
        "INVALID_MSG",
        "KAFKA_STORAGE_ERROR",
        "LISTENER_NOT_FOUND",
        "NETWORK_EXCEPTION",
        "NOT_CONTROLLER",
        "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "REBOOTSTRAP_REQUIRED",
        "REPLICA_NOT_AVAILABLE",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "UNSTABLE_OFFSET_COMMIT",
        "_DESTROY_BROKER",
        "_WAIT_CACHE",
        "_WAIT_COORD",
    )
)
"""The errors of brokers that start, end or change places, which Kafka's protocol calls retriable. The client says so of hardly any: it is only of a producer's
transactions that it does."""
_BEGUN_AGAIN: Final[Mapping[str, str]] = {
    "INVALID_PRODUCER_ID_MAPPING": "the brokers have forgotten the transactional id (transactional.id.expiration.ms)",
    "UNKNOWN_PRODUCER_ID": "the brokers have forgotten the producer",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "the brokers lack what was sent before",
    "INVALID_TXN_STATE": "the brokers have ended the transaction",
    "TRANSACTION_ABORTABLE": "the brokers want the transaction to be aborted",
    "_PURGE_QUEUE": "the transaction was given up",
    "_PURGE_INFLIGHT": "the transaction was given up",
}
"""The errors that end a producer, and of which the next one knows nothing: the store is opened again."""
FENCED: Final = frozenset(("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "FENCED_INSTANCE_ID"))
"""The names of the errors by which a writer learns that another has taken over."""
_CAUSES: Final = frozenset(("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_SSL", "_RESOLVE"))
"""What the client reports beside, while whoever waits only sees that nobody answers."""

_TLS_ALERT: Final = "SSL alert"
"""Stands in the client's text of a connection that the broker has refused for TLS's sake, and not in that of one that merely broke. Nothing of the text is passed on."""

_UNHEARD: Final = logging.Logger("kafka")
"""Hears the client's own log, and passes nothing on: what matters is raised."""
_UNHEARD.addHandler(logging.NullHandler())


def require_client(store: str) -> None:
    """Raises ConfigError where Kafka's client is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"store {store} of kind kafka needs Kafka's client, which is not installed",
            hint="make setup installs it; elsewhere: pip install '.[kafka]' in Headwater's folder",
        ) from None


class TakenOver(Exception):
    """Another writer has taken over."""


class Brokers:
    """The way to the brokers of one store. Clients are made with ``settings``; what they raise inside ``errors`` becomes a StoreError."""

    def __init__(self, store: str, options: Options) -> None:
        self.store = store
        self.options = options
        self._cause: str | None = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """For a client of any kind."""
        options = self.options
        self._cause = None
        found: dict[str, Any] = {
            "bootstrap.servers": options.servers,
            "client.id": f"headwater-{self.store}",
            "security.protocol": options.security_protocol,
            "logger": _UNHEARD,
            "error_cb": self._reported,
            "socket.timeout.ms": max(int(options.timeout_s * 1000), 1000),
            "reconnect.backoff.max.ms": 1000,
            "allow.auto.create.topics": False,
        }
        given = {
            "sasl.mechanism": options.sasl_mechanism,
            "sasl.username": options.sasl_username,
            "sasl.password": options.sasl_password and options.sasl_password.get_secret_value(),
            "ssl.ca.location": options.ca_certs and str(options.ca_certs),
            "ssl.certificate.location": options.client_cert and str(options.client_cert),
            "ssl.key.location": options.client_key and str(options.client_key),
            "ssl.key.password": options.client_key_password and options.client_key_password.get_secret_value(),
        }
        return found | {name: value for name, value in given.items() if value is not None} | more

    @contextmanager
    def errors(self, where: str = "", listen: Callable[[], object] = lambda: None) -> Iterator[None]:
        """``where``: the topic that is being spoken of. ``listen``: has the client say what it has to report beside. Raises TakenOver, StoreError."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            found = error.args[0]
            try:
                listen()
            except KafkaException as worse:
                found = worse.args[0]
            raise self.refused(found, where) from None

    def refused(self, error: KafkaError, where: str = "") -> Exception:
        """Gives the error's meaning: TakenOver, or a StoreError. The client's own text may quote what was sent, so only the error's name is passed on."""
        name = error.name()
        if name in FENCED:
            return TakenOver()
        if self._cause is not None and self._meaning(name, error)[0]:
            name = self._cause
        at = f"topic {where}: " if where else ""
        retryable, what, hint = self._meaning(name, error)
        return StoreError(f"store {self.store}: {at}{what} ({name})", retryable=retryable, hint=hint)

    @staticmethod
    def _meaning(name: str, error: KafkaError) -> tuple[bool, str, str]:
        if name in _MEANINGS:
            return _MEANINGS[name]
        if name in _SETTLING:
            return True, "the cluster is changing", _WAIT
        if name in _BEGUN_AGAIN:
            return True, _BEGUN_AGAIN[name], "the store is opened again"
        passes = error.retriable() or error.txn_requires_abort()
        return passes, "the brokers refuse what is asked", "see their logs"

    def _reported(self, error: KafkaError) -> None:
        if error.name() in _CAUSES:
            self._cause = error.name()
        elif error.name() == "_TRANSPORT" and _TLS_ALERT in error.str():
            self._cause = "_SSL"  # as brokers say when they ask for a certificate and get none
