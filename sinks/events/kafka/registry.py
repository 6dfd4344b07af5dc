"""The client of a schema registry (Confluent's REST interface, which others speak, too): registers schemas and remembers their ids."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, SSLError

from cdc.errors import StoreError
from cdc.version import VERSION
from sinks.events.kafka.options import Options

logging.getLogger("urllib3").setLevel(logging.CRITICAL)  # at its lower levels it writes what it sends

_JSON: Final = "application/vnd.schemaregistry.v1+json"
_ANSWER_BYTES: Final = 64 * 1024
_BUSY: Final = 429
AGAIN_S: Final = 300.0
"""A schema is registered again after so long: a registry that was restored from a backup may have lost it, or given its id to another."""
_ACCOUNT: Final = "correct registry_username and registry_password in cdc.toml; the account has to register schemas of this subject"
_COMPATIBLE: Final = (
    "its readers could not read both: lower the subject's compatibility in the registry (PUT /config/SUBJECT), or undo the change of the table; "
    "then cdc resume STORE_REFUSES:follow-{store}"
)


class _KnownSchema(NamedTuple):
    id: int
    said_at: float


class Registry:
    """Not thread-safe. Keeps its connection. Its errors name the subject and quote nothing that was sent or answered."""

    def __init__(self, store: str, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._options, self._clock = store, options, clock
        self._ids: dict[tuple[str, str], _KnownSchema] = {}
        self._silent_at = float("-inf")
        self._pool: urllib3.HTTPConnectionPool | None = None

    def schema_id(self, subject: str, schema: str) -> int:
        """Registers the schema (JSON) under the subject, and again every ``AGAIN_S`` if the registry answers. Returns its id, > 0. Raises StoreError."""
        known, now = self._ids.get((subject, schema)), self._clock()
        if known is not None and now < max(known.said_at, self._silent_at) + AGAIN_S:
            return known.id
        try:
            found = self._registered(subject, schema)
        except StoreError as error:
            if known is None or not error.retryable:
                raise
            self._silent_at = now
            return known.id
        self._ids[subject, schema] = _KnownSchema(found, now)
        return found

    def close(self) -> None:
        """Forgets the ids as well: a registry that was restored from a backup may have given them to other schemas."""
        self._ids.clear()
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _registered(self, subject: str, schema: str) -> int:
        status, body = self._post(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        if status != 200:
            raise self._refused(subject, status)
        try:
            found = json.loads(body)["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**32:
            raise self._error("it answers without the id of a schema", retryable=False, hint="correct registry_url in cdc.toml")
        return found

    def _post(self, path: str, given: dict[str, Any]) -> tuple[int, bytes]:
        address = urlsplit(self._options.registry_url or "")
        headers = {"content-type": _JSON, "accept": _JSON, "user-agent": f"headwater/{VERSION}"} | self._account()
        try:
            answer = self._connected().urlopen(
                "POST",
                address.path.rstrip("/") + path,
                body=json.dumps(given).encode(),
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
            )
            body = answer.read(_ANSWER_BYTES, decode_content=False)
            answer.close()
        except (HTTPError, OSError) as error:
            if isinstance(error, SSLError) or (isinstance(error, MaxRetryError) and isinstance(error.reason, SSLError)):
                raise self._error(
                    "TLS fails", retryable=False, hint="correct registry_url and registry_ca_certs in cdc.toml"
                ) from None
            raise self._error("it does not answer", retryable=True, hint="start it, or correct registry_url in cdc.toml") from None
        return answer.status, body

    def _account(self) -> dict[str, str]:
        options = self._options
        if options.registry_username is None or options.registry_password is None:
            return {}
        account = f"{options.registry_username}:{options.registry_password.get_secret_value()}"
        return {"authorization": f"Basic {base64.b64encode(account.encode()).decode()}"}

    def _connected(self) -> urllib3.HTTPConnectionPool:
        if self._pool is None:
            options = self._options
            address = urlsplit(options.registry_url or "")
            host, timeout = address.hostname or "", urllib3.Timeout(options.timeout_s)
            if address.scheme == "http":
                self._pool = urllib3.HTTPConnectionPool(host, address.port, timeout=timeout)
            else:
                certificates = None if options.registry_ca_certs is None else str(options.registry_ca_certs)
                self._pool = urllib3.HTTPSConnectionPool(
                    host, address.port, timeout=timeout, cert_reqs="CERT_REQUIRED", ca_certs=certificates
                )
        return self._pool

    def _refused(self, subject: str, status: int) -> StoreError:
        match status:
            case 409:
                return self._error(
                    f"it refuses the schema of {subject} as incompatible with the versions before it (409)",
                    retryable=False,
                    hint=_COMPATIBLE.format(store=self._store),
                )
            case 401 | 403:
                return self._error(f"it does not accept the account for {subject} ({status})", retryable=False, hint=_ACCOUNT)
            case 422:
                hint = "see the registry's log; it has to know Avro's decimals and names"
                return self._error(f"it does not take the schema of {subject} (422)", retryable=False, hint=hint)
            case _ if status >= 500 or status == _BUSY:
                return self._error(f"it cannot answer for {subject} now ({status})", retryable=True, hint="see the registry's log")
            case _:
                hint = "correct registry_url in cdc.toml"
                return self._error(f"what answers is not a schema registry ({status})", retryable=False, hint=hint)

    def _error(self, what: str, *, retryable: bool, hint: str) -> StoreError:
        return StoreError(f"store {self._store}: the schema registry: {what}", retryable=retryable, hint=hint)
