"""The options of ``[stores.NAME]`` with ``kind = "sql"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.settings.tableoptions import StoreTables, TableOptions
from sinks.sql.names import TEMPLATE
from sinks.sql.owncolumns import OwnColumns

MB: Final = 2**20
_SCHEMES: Final = ("postgresql://", "postgres://")
_FILE: Final = "duckdb://"


class SqlTable(TableOptions):
    """Options of a table that only a SQL database has."""

    deleted: str | None = Field(None, min_length=1, max_length=63)
    """As of the store, for these tables."""
    loaded_at: str | None = Field(None, min_length=1, max_length=63)
    """As of the store, for these tables."""
    history: bool | str = False
    """Whether every version of the rows is kept, too, in the table `NAME_history` beside the current one; or that table's name
    ([warehouses.md](warehouses.md#every-version-of-a-row)). The log has to keep the table's changes (`cleanup = "keep"`)."""

    @field_validator("history")
    @classmethod
    def _names_a_table(cls, history: bool | str) -> bool | str:
        if history == "":
            raise ValueError('is empty; write true, or a name such as "orders_history"')
        return history


class SqlTables(StoreTables):
    """``tables`` of a SQL database."""

    __pydantic_extra__: dict[str, SqlTable] = Field(init=False)  # type: ignore[assignment]  # nobody adds to it


class Options(StoreOptions):
    """The options that only a SQL database has."""

    held: SqlTables = Field(SqlTables(), alias="tables")
    """As in every store."""

    url: SecretStr
    """`postgresql://user@host:port/database`, with libpq's parameters behind `?`, such as `sslmode=verify-full`. It may hold the password. Or a
    DuckDB file on this machine: `duckdb:///data/reports.duckdb`."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    namespace: str = TEMPLATE
    """The schema in which a table stands there; `{schema}` is its schema in the source. `"copy_{schema}"` puts `public.orders` at
    `copy_public.orders`."""
    deleted: str | None = Field(None, min_length=1, max_length=63)
    """A column that the tables get beside the source's: a row that is deleted, or goes with a TRUNCATE, stays there, and this is true
    ([warehouses.md](warehouses.md#keep-deleted-rows)). Left out: deleted rows go."""
    loaded_at: str | None = Field(None, min_length=1, max_length=63)
    """A column that the tables get beside the source's: when the row was written here. Left out: there is none."""
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
        found = OwnColumns(self.deleted, self.loaded_at)
        for pattern, said in self.held.options.items():
            if isinstance(said, SqlTable) and matches((pattern,), topic):
                found = OwnColumns(said.deleted or found.deleted, said.loaded_at or found.loaded_at)
        return found

    def shaping_of(self, schema: TopicSchema) -> Mapping[str, str]:
        """Without the column, rows that are deleted would be among the others."""
        deleted, history = self.own_columns(schema.topic).deleted, self.history_of(schema.topic)
        return ({} if deleted is None else {"deleted": deleted}) | ({} if not history else {"history": str(history)})

    def history_of(self, topic: str) -> bool | str:
        """The option ``history`` of the topic."""
        found: bool | str = False
        for pattern, said in self.held.options.items():
            if isinstance(said, SqlTable) and matches((pattern,), topic) and "history" in said.model_fields_set:
                found = said.history
        return found

    @property
    def kept_whole(self) -> Mapping[str, str]:
        return {pattern: "history" for pattern, said in self.held.options.items() if isinstance(said, SqlTable) and said.history}

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
