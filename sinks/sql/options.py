"""The options of ``[stores.NAME]`` with ``kind = "sql"``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from pydantic import Field, SecretStr, field_validator, model_validator

from sinks.keptrows import KeptOptions
from sinks.sql.names import TEMPLATE
from sinks.sql.owncolumns import OwnColumns

MB: Final = 2**20
_SCHEMES: Final = ("postgresql://", "postgres://")
_FILE: Final = "duckdb://"


class Options(KeptOptions):
    """The options that only a SQL database has."""

    url: SecretStr
    """`postgresql://user@host:port/database`, with libpq's parameters behind `?`, such as `sslmode=verify-full`. It may hold the password. Or a
    DuckDB file on this machine: `duckdb:///data/reports.duckdb`."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    namespace: str = TEMPLATE
    """The schema in which a table stands there; `{schema}` is its schema in the source. `"copy_{schema}"` puts `public.orders` at
    `copy_public.orders`."""
    timeout_s: float = Field(30.0, gt=0)
    """How long connecting, and waiting for a lock, may take. A writer that stands still in the middle of a commit loses its connection after as long."""
    dead_share_max: float = Field(0.1, ge=0, le=1)
    """A commit of which a table refuses a larger share of its rows, not counting what `cdc dlq drop` has accepted, stops the store."""
    staged_bytes: int = Field(256 * MB, ge=1)
    """Changes that wait for the commit, in memory; beyond this they go to a temporary file."""

    @field_validator("url", mode="before")
    @classmethod
    def _is_an_address(cls, url: Any) -> Any:
        text = url.get_secret_value() if isinstance(url, SecretStr) else url
        if isinstance(text, str) and not text.startswith((*_SCHEMES, f"{_FILE}/")):
            raise ValueError(
                'is not an address such as "postgresql://user@host:5432/database" or "duckdb:///data/reports.duckdb"'
            )  # never shown: it may hold a password
        return url

    @model_validator(mode="after")
    def _a_file_has_no_password(self) -> Self:
        if self.file is not None and self.password is not None:
            raise ValueError("password: a DuckDB file has none; leave it out")
        return self

    def own_columns(self, topic: str) -> OwnColumns:
        """The columns that the topic's table has beside the source's."""
        return OwnColumns(self.deleted_of(topic), self.loaded_at_of(topic))

    @property
    def file(self) -> Path | None:
        """The file of a DuckDB database; None for a server."""
        url = self.url.get_secret_value()
        return Path("/" + unquote(url.removeprefix(_FILE)).lstrip("/")) if url.startswith(_FILE) else None

    @property
    def disk_path(self) -> Path | None:
        return None if self.file is None else self.file.parent

    @field_validator("namespace")
    @classmethod
    def _is_a_template(cls, namespace: str) -> str:
        plain = namespace.replace(TEMPLATE, "")
        if not namespace or re.search(r"[{}\x00]", plain) or namespace.startswith("pg_"):
            raise ValueError(f"is not a schema's name, in which {TEMPLATE} may stand for the table's own")
        return namespace
