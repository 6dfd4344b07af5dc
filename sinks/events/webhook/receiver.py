"""One attempt over HTTP. No other file talks to the receiver; what it answers beside its status is neither kept nor shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError, ReadTimeoutError, SSLError

from cdc.version import VERSION
from sinks.events.webhook.answer import PlainConnection, SecureConnection
from sinks.events.webhook.deliveries import EventRequest
from sinks.events.webhook.options import Options
from sinks.events.webhook.signature import key_of, signed
from sinks.events.webhook.verdict import RequestFate, RequestVerdict, silent, verdict_of

logging.getLogger("urllib3").setLevel(logging.CRITICAL)  # at its lower levels it writes paths, which may hold a token

ANSWER_BYTES: Final = 64 * 1024
"""So much of an answer's body is read, so that the connection can be used again; beyond it is closed."""


class Receiver:
    """Thread-safe. Keeps its connections."""

    def __init__(self, options: Options, now: Callable[[], float] = time.time) -> None:
        """``now``: Unix time."""
        self._options = options
        self._now = now
        self._address = options.address
        own = {name.lower(): value.get_secret_value() for name, value in options.headers.items()}
        self._common = {"content-type": _content_type(options), "user-agent": f"headwater/{VERSION}"} | own
        self._pool = self._connected()

    def post(self, request: EventRequest) -> RequestVerdict:
        """One attempt. Never raises for what a receiver or a network may do."""
        body = body_of(request, several=self._options.batch > 1)
        try:
            keys = [key_of(one.get_secret_value()) for one in self._options.secrets]
        except ValueError as error:  # it stands in a file, which was written again
            return RequestVerdict(RequestFate.AGAIN, f"a secret {error}")
        own = dict(request.events[0].headers) if len(request.events) == 1 else {}
        headers = own | self._common | signed(request.id, self._now(), body, keys)
        try:
            answer = self._pool.urlopen(
                "POST",
                request.events[0].target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
            )
        except (HTTPError, OSError) as error:
            return silent(_why(error))
        except ValueError:
            return RequestVerdict(RequestFate.REFUSED, "no request can be made of it")
        found = verdict_of(answer.status, answer.headers.get("retry-after"), self._now())
        with suppress(HTTPError, OSError, ValueError):
            _let_go(answer)
        return found

    def close(self) -> None:
        self._pool.close()

    def _connected(self) -> urllib3.HTTPConnectionPool:
        made = self._made()
        made.ConnectionCls = SecureConnection if self._address.scheme == "https" else PlainConnection
        return made

    def _made(self) -> urllib3.HTTPConnectionPool:
        options = self._options
        given: dict[str, Any] = {
            "timeout": urllib3.Timeout(connect=options.timeout_s, read=options.timeout_s),
            "maxsize": options.in_flight,
            "block": False,
        }
        if self._address.scheme == "http":
            return urllib3.HTTPConnectionPool(self._address.host, self._address.port, **given)
        certificates = str(options.ca_certs) if options.ca_certs is not None else None
        return urllib3.HTTPSConnectionPool(
            self._address.host, self._address.port, **given, cert_reqs="CERT_REQUIRED", ca_certs=certificates
        )


def body_of(request: EventRequest, *, several: bool) -> bytes:
    """The bytes that are sent and signed: the event's own, or a JSON array where the options allow several."""
    if not several:
        return request.events[0].body
    return b"[" + b",".join(one.body or b"null" for one in request.events) + b"]"


def _content_type(options: Options) -> str:
    if options.body == "cloudevents":
        return "application/cloudevents-batch+json" if options.batch > 1 else "application/cloudevents+json"
    return "application/json"


def _let_go(answer: urllib3.BaseHTTPResponse) -> None:
    """Gives the connection back where little is left to read, else closes it."""
    answer.read(ANSWER_BYTES, decode_content=False)
    if answer.read(1, decode_content=False):
        answer.close()
    answer.release_conn()


def _why(error: Exception) -> str:
    """In words that quote nothing: a library's own may hold the URL."""
    match error:
        case ConnectTimeoutError():
            return "no connection in time"
        case ReadTimeoutError():
            return "timeout"
        case SSLError():
            return "TLS failed"
        case NameResolutionError():
            return "its name is not known"
        case NewConnectionError():
            return "no connection"
        case _:
            return "the connection broke"
