"""How a store shows columns: the words of its configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cdc.model.selection import matches

As = Literal["text", "json"]
"""``text`` is a value exactly as Postgres prints it, ``json`` is the JSON that a text column holds."""
AsRules = tuple[tuple[str, Mapping[str, As]], ...]
"""Pattern of ``schema.table`` → column → how it is shown; the last that matches decides."""


def shown_as(rules: AsRules, table: str) -> dict[str, As]:
    """Column → how the rules want it shown, of this table (``schema.table``)."""
    found: dict[str, As] = {}
    for pattern, columns in rules:
        if matches((pattern,), table):
            found |= columns
    return found
