"""Which tables a list of patterns selects."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def matches(patterns: Sequence[str], table: str) -> bool:
    """Whether ``schema.name`` is selected: shell patterns, ``!pattern`` takes out, the last that matches decides."""
    selected = False
    for pattern in patterns:
        taken_out = pattern.startswith("!")
        if fnmatchcase(table, pattern.removeprefix("!")):
            selected = not taken_out
    return selected


def named(patterns: Sequence[str]) -> list[str]:
    """The patterns that name exactly one table, so that its absence is a mistake worth an error."""
    return [pattern for pattern in patterns if not pattern.startswith("!") and not set(pattern) & set("*?[")]
