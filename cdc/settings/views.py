"""``[views.NAME]``: topics that are computed from other topics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pydantic import Field, field_validator

from cdc.settings.strict import Strict

VIEWS: Final = "views"
"""The first part of the name of every view's topic."""
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


def topics_of(names: Iterable[object]) -> list[str]:
    """The topics of these views."""
    return [f"{VIEWS}.{name}" for name in names]


def can_name_a_view(name: str) -> bool:
    """Whether a view can have the name: it is part of its topic's."""
    return _NAME.fullmatch(name) is not None


class View(Strict):
    sql: str
    """One SELECT over captured tables, and over other views as `views.NAME`: what the view shows, in Postgres's SQL ([views.md](views.md))."""
    key: tuple[str, ...]
    """The columns of the SELECT that tell its rows apart. They are never NULL."""
    batch_rows: int = Field(200_000, ge=2)
    """The most changes of its tables that one step takes, unless one transaction has more."""
    batch_bytes: int = Field(64 * 2**20, ge=1)
    """The most bytes of them."""

    @field_validator("sql")
    @classmethod
    def _says_something(cls, sql: str) -> str:
        if not sql.strip():
            raise ValueError("is empty; write a SELECT")
        return sql

    @field_validator("key")
    @classmethod
    def _tells_rows_apart(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if not key:
            raise ValueError('is empty; name the columns that tell rows apart, such as ["id"]')
        for twice in (name for at, name in enumerate(key) if name in key[:at]):
            raise ValueError(f"names {twice} twice")
        return key
