"""The options of ``[stores.NAME]`` with ``kind = "webhook"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sinks.events.options import EventOptions
from sinks.events.webhook.address import ReceiverAddress, parsed
from sinks.events.webhook.retries import Retry
from sinks.events.webhook.signature import key_of

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = ("content-length", "transfer-encoding", "connection", "host", "expect", "te", "trailer", "upgrade")


class Options(EventOptions):
    """The options that only a webhook has."""

    plain_schemes: ClassVar[Mapping[str, str]] = {"http": "https"}

    url: SecretStr
    """Where events go, each as the body of a POST request. `{topic}`, `{type}`, `{op}` and `{key}` in the path or the query are the event's, percent-encoded: the
    receiver is always the same. Never shown beyond host and port."""
    secret: SecretStr | tuple[SecretStr, ...] = ()
    """By which the receiver knows that an event is ours: `whsec_` and base64, or any text. Several while one takes the place of another: each signs."""
    headers: Mapping[str, SecretStr] = {}
    """Further headers of each request, such as `Authorization`. Never shown."""
    plain_http: bool = False
    """Whether `url` may be http to another machine, on the way to which anybody may read along."""
    ca_certs: Path | None = None
    """PEM: the authorities that count instead of the system's."""
    batch: int = Field(1, ge=1, le=1000)
    """The most events of one request. More than 1 makes each body a JSON array, with one id and one signature."""
    in_flight: int = Field(32, ge=1, le=256)
    """The most requests at once."""
    timeout_s: float = Field(15.0, gt=0)
    """How long the receiver may take to accept a connection, and to answer."""
    retry: Retry = Retry()
    """What becomes of an event that the receiver has not taken."""
    state_dir: Path | None = None
    """The folder in which it stands how far events were delivered. Left out: `deliveries` in the log's folder. Lost, events come
    again from where everything had been taken."""

    @property
    def secrets(self) -> tuple[SecretStr, ...]:
        return (self.secret,) if isinstance(self.secret, SecretStr) else self.secret

    @property
    def address(self) -> ReceiverAddress:
        return parsed(self.url.get_secret_value(), plain=self.plain_http)

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        return {"url": self.url}

    @property
    def disk_path(self) -> Path | None:
        return self.state_dir

    def beside(self, log_dir: Path) -> Self:
        return self if self.state_dir is not None else self.model_copy(update={"state_dir": log_dir / "deliveries"})

    @field_validator("secret")
    @classmethod
    def _are_secrets(cls, secret: SecretStr | tuple[SecretStr, ...]) -> SecretStr | tuple[SecretStr, ...]:
        for one in (secret,) if isinstance(secret, SecretStr) else secret:
            key_of(one.get_secret_value())
        return secret

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, value in headers.items():
            text = value.get_secret_value()
            if not _NAME.fullmatch(name):
                raise ValueError("has a name that no header can have")
            if name.lower() in _OURS or name.lower().startswith("webhook-"):
                raise ValueError(f"{name} is written by Headwater itself")
            if not text.isascii() or not text.isprintable():
                raise ValueError(f"{name} holds characters that no header can hold")
        return headers

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        try:
            parsed(self.url.get_secret_value(), plain=self.plain_http)
        except ValueError as error:
            raise ValueError(f"url {error}") from None
        return self
