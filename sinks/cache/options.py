"""The options of ``[stores.NAME]`` with ``kind = "redis"``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from cdc.settings.models import StoreOptions
from sinks.cache.keytemplate import DEFAULT


class Options(StoreOptions):
    """``url`` may hold user and password; ``rediss://`` is TLS, verified against ``ca_certs`` or the system's authorities."""

    renders = True
    plain_schemes: ClassVar[Mapping[str, str]] = {"redis": "rediss"}
    example = ("cache", 'url = "redis://127.0.0.1:6379/0"')

    url: SecretStr
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    key: str = DEFAULT
    value: Literal["json", "hash"] = "json"
    timeout_s: float = Field(30.0, gt=0)
    workers_from_rows: int = Field(0, ge=0)
    """Never: one chain of writes per table keeps the server's one thread busy."""

    @property
    def server_url(self) -> SecretStr:
        return self.url
