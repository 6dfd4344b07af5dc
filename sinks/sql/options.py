"""The options of ``[stores.NAME]`` with ``kind = "sql"``."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import Field, SecretStr, field_validator

from cdc.settings.models import StoreOptions

MB: Final = 2**20
TEMPLATE: Final = "{schema}"
_SCHEMES: Final = ("postgresql://", "postgres://")


class Options(StoreOptions):
    """The options that only a SQL database has."""

    url: SecretStr
    """`postgresql://user@host:port/database`, with libpq's parameters behind `?`, such as `sslmode=verify-full`. It may hold the password."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    namespace: str = TEMPLATE
    """The schema in which a table stands there; `{schema}` is its schema in the source. `"copy_{schema}"` puts `public.orders` at
    `copy_public.orders`."""
    timeout_s: float = Field(30.0, gt=0)
    """How long connecting, and waiting for a lock, may take. A writer that stands still in the middle of a commit loses its connection after as long."""
    staged_bytes: int = Field(256 * MB, ge=1)
    """Changes that wait for the commit, in memory; beyond this they go to a temporary file."""

    @field_validator("url", mode="before")
    @classmethod
    def _is_an_address(cls, url: Any) -> Any:
        text = url.get_secret_value() if isinstance(url, SecretStr) else url
        if isinstance(text, str) and not text.startswith(_SCHEMES):
            raise ValueError(
                'is not an address such as "postgresql://user@host:5432/database"'
            )  # never shown: it may hold a password
        return url

    @field_validator("namespace")
    @classmethod
    def _is_a_template(cls, namespace: str) -> str:
        plain = namespace.replace(TEMPLATE, "")
        if not namespace or re.search(r"[{}\x00]", plain) or namespace.startswith("pg_"):
            raise ValueError(f"is not a schema's name, in which {TEMPLATE} may stand for the table's own")
        return namespace
