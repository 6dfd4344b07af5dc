"""The options of ``[stores.NAME]`` with ``kind = "redis-stream"``."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field, SecretStr, field_validator

from sinks.events.options import EventOptions

PLACES: Final = ("topic", "schema", "table")
RESERVED: Final = "cdc:"


class Options(EventOptions):
    """The options that only streams of Redis have."""

    plain_schemes: ClassVar[Mapping[str, str]] = {"redis": "rediss"}

    url: SecretStr
    """`redis://host:port/number`, `rediss://` for TLS, `unix://path`. It may hold the password."""
    username: str | None = None
    """The account's name, where the URL has none."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    ca_certs: Path | None = None
    """PEM: the authorities that count instead of the system's."""
    stream: str = Field("{topic}", min_length=1)
    """The stream's key; `{topic}`, `{schema}` and `{table}` are the topic's. Without any of them all events go to one stream, in the order of their commits."""
    maxlen: int | None = Field(None, ge=1)
    """About so many of its last entries stay in a stream (`MAXLEN ~`). Left out: all of them, until somebody trims it."""
    timeout_s: float = Field(30.0, gt=0)
    """How long one answer of the server may take."""

    @field_validator("stream")
    @classmethod
    def _is_a_template(cls, stream: str) -> str:
        try:
            named = {name for _, name, _, _ in string.Formatter().parse(stream) if name is not None}
            stream.format(**dict.fromkeys(PLACES, "x"))
        except (ValueError, KeyError, IndexError, AttributeError):
            named = {""}
        if not named <= set(PLACES):
            raise ValueError(f"is not a key in which {', '.join(f'{{{one}}}' for one in PLACES)} may stand")
        if stream.startswith(RESERVED):
            raise ValueError(f'begins with "{RESERVED}", as our own keys do')
        return stream

    def stream_of(self, topic: str) -> str:
        """The key of the stream that this topic's events go to."""
        schema, _, table = topic.partition(".")
        return self.stream.format(topic=topic, schema=schema, table=table)

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        return {"url": self.url}
