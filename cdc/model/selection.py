"""Which tables a list of patterns selects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol


class Qualified(Protocol):
    """A name of two parts: a table has one, and a topic's schema."""

    @property
    def parts(self) -> tuple[str, str]:
        """Schema and name."""
        ...


def matches(patterns: Sequence[str], table: Qualified | str) -> bool:
    """Whether the table is selected: shell patterns, ``!pattern`` takes out, the last that matches decides.

    Schema and name are matched each by itself: ``app.*`` does not select what is in the schema "app.evil". Give the table where you have it:
    of a text ``schema.name`` with several dots every reading counts.
    """
    readings = (_splits(table) or (("", table),)) if isinstance(table, str) else (table.parts,)
    return _selected(tuple(patterns), readings)


@lru_cache(maxsize=4096)
def _selected(patterns: tuple[str, ...], readings: tuple[tuple[str, str], ...]) -> bool:
    """Asked of every topic whenever a follower looks at its store."""
    selected = False
    for pattern in patterns:
        taken_out = pattern.startswith("!")
        if any(_covers(pattern.removeprefix("!"), schema, name) for schema, name in readings):
            selected = not taken_out
    return selected


def literal(table: str) -> str:
    """The pattern that selects ``schema.name`` and nothing like it: names may hold what patterns mean something by."""
    return re.sub(r"([*?[])", r"[\1]", table)


def named(patterns: Sequence[str]) -> list[str]:
    """The patterns that name exactly one table, so that its absence is a mistake worth an error."""
    return [pattern for pattern in patterns if not pattern.startswith("!") and not set(pattern) & set("*?[")]


def _covers(pattern: str, schema: str, name: str) -> bool:
    splits = _splits(pattern)
    if not splits:
        return fnmatchcase(f"{schema}.{name}", pattern)
    return any(fnmatchcase(schema, of_schema) and fnmatchcase(name, of_name) for of_schema, of_name in splits)


@lru_cache(maxsize=4096)
def _splits(text: str) -> tuple[tuple[str, str], ...]:
    """Every way to read it as schema and name, whose dots nothing marks."""
    return tuple((text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == ".")
