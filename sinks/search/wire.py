"""Requests to the cluster through opensearch-py's transport (TLS, authentication); its errors become ours. No other file talks to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

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
from cdc.settings.secretfile import SecretFile
from cdc.settings.strict import Strict
from sinks.render.jsontext import parse
from sinks.retry import down, search_error
from sinks.search.reasons import error_of, reason_of

# At their lower levels these write whole requests, thus rows.
for _logger in ("opensearch", "opensearchpy.trace"):
    logging.getLogger(_logger).setLevel(logging.CRITICAL)


class Address(Strict):
    """How to reach the cluster."""

    url: SecretStr
    """Of the cluster. It may hold user and password; https is verified."""
    username: str | None = None
    """The user, where the URL has none."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    ca_certs: Path | None = None
    """PEM: the authorities that count instead of the usual ones."""
    timeout_s: float = Field(60.0, gt=0)
    """How long one answer of the cluster may take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The cluster's answer to one request. ``status``: of HTTP."""

    status: int
    body: Any
    """Parsed JSON; numbers with a fraction are text. Of a scroll the answer's bytes. For a status of 400 and more the cluster's error, which may quote rows."""

    @property
    def error_type(self) -> str:
        """Such as ``version_conflict_engine_exception``; empty where there is none."""
        error = error_of(self.body)
        return str(error.get("type", "")) if isinstance(error, dict) else ""


class _ExactJson(JSONSerializer):  # type: ignore[misc]
    def loads(self, s: str) -> Any:
        if s.startswith('{"errors":false,'):  # a bulk request of which every item was taken: nothing else to know
            return {"errors": False}
        if s.startswith('{"_scroll_id":'):  # a page of rows, which ``sinks.search.pages`` reads as it is
            return s.encode("utf-8", "surrogatepass")
        try:
            return parse(s)
        except ValueError as error:
            raise SerializationError("not JSON", type(error).__name__) from None


def _split(store: str, url: str) -> SplitResult:
    with suppress(ValueError):  # its words may quote what stands in the URL, which may hold a password
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ConfigError(f"stores.{store}.url is not an OpenSearch address", hint="for example https://search.internal:9200")


class Cluster:
    """Thread-safe."""

    def __init__(self, store: str, address: Address) -> None:
        self.store = store
        parts = _split(store, address.url.get_secret_value())
        self.where = f"{parts.hostname}:{parts.port or 443 if parts.scheme == 'https' else parts.port or 80}"
        self._address = address
        self._host = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._login = _login(address)
        self._client = self._connected(self._login)
        self._former: list[OpenSearch] = []
        """Clients with credentials that were rotated; a request may still be under way in one."""
        self._renewing = Lock()

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
        client = self._client
        perform = {"params": dict(params or {}), "body": body, "headers": headers, "timeout": timeout_s}
        answer = self._perform(client, method, path, perform)
        if answer.status == 401 and (renewed := self._renewed(client)) is not None:
            answer = self._perform(renewed, method, path, perform)
        return answer

    def _perform(self, client: OpenSearch, method: str, path: str, given: dict[str, Any]) -> Answer:
        try:
            found = client.transport.perform_request(method, path, **given)
        except AuthenticationException:
            return Answer(401, None)
        except ConnectionError as error:
            raise down(self.store, self.where, type(error).__name__) from None
        except TransportError as error:
            if not isinstance(error.status_code, int):
                raise down(self.store, self.where, type(error).__name__) from None
            return Answer(error.status_code, error.info)
        except SerializationError:
            raise down(self.store, self.where, "an answer that is not JSON") from None
        return Answer(200, found)

    def ask(self, doing: str, method: str, path: str, body: Any = None, **given: Any) -> Any:
        """The answer's JSON; any status of 400 and more raises StoreError."""
        answer = self.send(method, path, body, **given)
        if answer.status >= 400:
            raise self.error(doing, answer)
        return answer.body

    def error(self, doing: str, answer: Answer) -> StoreError:
        rotating = isinstance(self._address.url, SecretFile) or isinstance(self._address.password, SecretFile)
        return search_error(self.store, doing, answer.status, answer.error_type, reason_of(answer.body), rotating=rotating)

    def close(self) -> None:
        for client in (self._client, *self._former):
            client.close()

    def _renewed(self, refused: OpenSearch) -> OpenSearch | None:
        """Another client when the credentials that this one has are no longer those that their files hold."""
        with self._renewing:
            if self._client is refused:
                if (login := _login(self._address)) == self._login:
                    return None
                self._former.append(refused)
                self._client, self._login = self._connected(login), login
            return self._client

    def _connected(self, login: tuple[str, str] | None) -> OpenSearch:
        given: dict[str, Any] = {} if login is None else {"http_auth": login}
        if self._address.ca_certs is not None:
            given["ca_certs"] = str(self._address.ca_certs)
        try:
            return OpenSearch(
                hosts=[self._host],
                serializer=_ExactJson(),
                timeout=self._address.timeout_s,
                max_retries=0,  # trying again is decided in sinks.retry
                pool_maxsize=4,
                **given,
            )
        except ImproperlyConfigured:
            raise ConfigError(f"stores.{self.store}: TLS cannot be set up", hint="check `ca_certs`") from None


def _login(address: Address) -> tuple[str, str] | None:
    """User and password as they are now; what the URL says counts first."""
    parts = urlsplit(address.url.get_secret_value())
    if parts.username is not None:
        return unquote(parts.username), unquote(parts.password or "")
    if address.username is not None:
        return address.username, address.password.get_secret_value() if address.password else ""
    return None
