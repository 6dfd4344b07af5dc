"""Requests to the cluster through opensearch-py's transport (TLS, authentication); its errors become ours. No other file talks to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import JSONSerializer, OpenSearch
from opensearchpy.exceptions import (
    AuthenticationException,
    ConnectionError,
    ImproperlyConfigured,
    SerializationError,
    TransportError,
)
from pydantic import Field, SecretStr

from cdc.errors import ConfigError, StoreError
from cdc.settings import Strict
from sinks.jsontext import parse
from sinks.retry import down, search_error

# At their lower levels these write whole requests, thus rows.
for _logger in ("opensearch", "opensearchpy.trace"):
    logging.getLogger(_logger).setLevel(logging.CRITICAL)


class Address(Strict):
    """How to reach the cluster. ``url`` may hold user and password; https is verified against ``ca_certs`` or the usual authorities."""

    url: SecretStr
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    timeout_s: float = Field(60.0, gt=0)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    """Parsed JSON; numbers with a fraction are text. For a status of 400 and more the cluster's error, which may quote rows."""

    @property
    def error_type(self) -> str:
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("type", "")) if isinstance(error, dict) else ""


class _ExactJson(JSONSerializer):  # type: ignore[misc]
    def loads(self, s: str) -> Any:
        if s.startswith('{"errors":false,'):  # a bulk request of which every item was taken: nothing else to know
            return {"errors": False}
        try:
            return parse(s)
        except ValueError as error:
            raise SerializationError("not JSON", type(error).__name__) from None


class Cluster:
    """Thread-safe."""

    def __init__(self, store: str, address: Address) -> None:
        self.store = store
        parts = urlsplit(address.url.get_secret_value())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"stores.{store}.url is no OpenSearch address", hint="for example https://search.internal:9200")
        self.where = f"{parts.hostname}:{parts.port or 443 if parts.scheme == 'https' else parts.port or 80}"
        given: dict[str, Any] = {}
        if address.username is not None:
            password = address.password.get_secret_value() if address.password else ""
            given["http_auth"] = (address.username, password)
        if address.ca_certs is not None:
            given["ca_certs"] = str(address.ca_certs)
        try:
            self._client = OpenSearch(
                hosts=[address.url.get_secret_value()],
                serializer=_ExactJson(),
                timeout=address.timeout_s,
                max_retries=0,  # trying again is decided in sinks.retry
                pool_maxsize=4,
                **given,
            )
        except ImproperlyConfigured:
            raise ConfigError(f"stores.{store}: TLS cannot be set up", hint="check `ca_certs`") from None

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        ndjson: bool = False,
        timeout_s: float | None = None,
    ) -> Answer:
        """Any status is an answer; raises StoreError (retryable) when there is none."""
        headers = {"content-type": "application/x-ndjson"} if ndjson else None
        try:
            found = self._client.transport.perform_request(
                method, path, params=dict(params or {}), body=body, headers=headers, timeout=timeout_s
            )
        except AuthenticationException:
            return Answer(401, None)
        except ConnectionError as error:
            raise down(self.store, self.where, type(error).__name__) from None
        except TransportError as error:
            if not isinstance(error.status_code, int):
                raise down(self.store, self.where, type(error).__name__) from None
            return Answer(error.status_code, error.info)
        except SerializationError:
            raise down(self.store, self.where, "an answer that is no JSON") from None
        return Answer(200, found)

    def ask(self, doing: str, method: str, path: str, body: Any = None, **given: Any) -> Any:
        """The answer's JSON; any status of 400 and more raises StoreError."""
        answer = self.send(method, path, body, **given)
        if answer.status >= 400:
            raise self.error(doing, answer)
        return answer.body

    def error(self, doing: str, answer: Answer) -> StoreError:
        return search_error(self.store, doing, answer.status, answer.error_type)

    def close(self) -> None:
        self._client.close()
