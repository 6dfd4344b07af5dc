"""The options of ``[stores.NAME]`` with ``kind = "redis"``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from cdc.settings.models import StoreOptions
from sinks.cache.keytemplate import DEFAULT


class Options(StoreOptions):
    """The options that only a cache has."""

    renders = True
    plain_schemes: ClassVar[Mapping[str, str]] = {"redis": "rediss"}
    example = ("cache", 'url = "redis://127.0.0.1:6379/0"')

    url: SecretStr
    """`redis://` or `rediss://`, which is TLS, verified. It may hold user and password."""
    username: str | None = None
    """The user, where the URL has none."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    ca_certs: Path | None = None
    """PEM: the authorities that count instead of the system's."""
    key: str = DEFAULT
    """Makes the key's name from the row's columns. When the template changes, every key is written again under its new name. A second
    store on the same server that would write another's keys waits and says so."""
    value: Literal["json", "hash"] = "json"
    """One string of JSON per row, or a hash with one field per column."""
    timeout_s: float = Field(30.0, gt=0)
    """How long one answer of the server may take."""
    workers_from_rows: int = Field(0, ge=0)
    """As for every store. By default never: one chain of writes per table keeps the server's one thread busy."""

    @property
    def keys_apart(self) -> bool:
        return self.value == "json"  # a hash without a field does not exist

    @property
    def server_url(self) -> SecretStr:
        return self.url
