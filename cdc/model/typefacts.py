"""``Column.structure`` from what the catalog says of the types of a table's columns (``cdc.model.facts.Facts.types``). Pure.

Whoever may create types decides how large they are. Types share their parts, so that a few dozen of them can have more parts than any memory holds:
sizes are found first, each type's once, and what is too large or too deep is plain text to us.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.pgtypes import TEXT
from cdc.model.structure import FIRST_OWN_TYPE, HSTORE

PARTS_OF_A_TYPE: Final = 10_000
"""Types, attributes' types and so on, each as often as it is written out."""
PARTS_OF_A_TABLE: Final = 50_000
"""Of all columns together: definitions are compared, and are written to the log and to stores."""
DEEPEST: Final = 64
"""Levels. What reads structures calls itself for each."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """``parts``: written out. ``levels``: below the type. Both are infinite for a type of which the facts make no sense."""

    parts: float
    levels: float


_ONE: Final = _Extent(1, 0)
_ENDLESS: Final = _Extent(math.inf, math.inf)


def described(type_oids: Sequence[int], types: Mapping[str, str]) -> list[str]:
    """The ``Column.structure`` of each column of a table, given their types. ``types``: as in ``Facts.types``.

    What is missing there, is odd or is too large is plain text. So are the last columns of a table that has too much altogether.
    """
    known = _Types(types)
    left = PARTS_OF_A_TABLE
    found = []
    for oid in type_oids:
        text = ""
        if oid >= FIRST_OWN_TYPE:
            extent = known.extent(oid)
            if extent.parts <= min(left, PARTS_OF_A_TYPE) and extent.levels <= DEEPEST:
                left -= int(extent.parts)
                text = known.text(oid)
        found.append(text)
    return found


class _Types:
    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self._extents: dict[int, _Extent] = {}
        self._rows: dict[str, list[tuple[str, str]]] | None = None

    def extent(self, oid: int) -> _Extent:
        """Without recursion: a chain of types may be longer than the stack."""
        extents = self._extents
        todo = [(oid, False)]
        while todo:
            one, parts_are_known = todo.pop()
            if parts_are_known:
                parts = [extents[part] for part in self._parts(one)]
                extents[one] = _Extent(
                    min(1 + sum(part.parts for part in parts), PARTS_OF_A_TYPE + 1),
                    1 + max((part.levels for part in parts), default=0),
                )
            elif one < FIRST_OWN_TYPE:
                extents[one] = _ONE
            elif one not in extents:
                extents[one] = _ENDLESS  # as it stays where it is a part of itself, which only a forged fact can say
                try:
                    parts_of_one = self._parts(one)
                except ValueError:  # facts also come through the stream
                    continue
                todo.append((one, True))
                todo += [(part, False) for part in parts_of_one]
        return extents[oid]

    def text(self, oid: int) -> str:
        """``oid``: of a type whose extent is small."""
        raw = self._raw(oid)
        return "" if raw == TEXT else json.dumps(raw, separators=(",", ":"), ensure_ascii=False)

    def _parts(self, oid: int) -> list[int]:
        kind, rest = self._kind(oid)
        if kind == "c":
            return [attribute for _, attribute in self._attributes(rest)]
        if kind == "a":
            return [int(rest.partition(" ")[0])]
        return [int(rest)] if kind in ("d", "r", "m") else []

    def _raw(self, oid: int) -> Any:
        if oid < FIRST_OWN_TYPE:
            return oid
        kind, rest = self._kind(oid)
        if kind == "d":
            return self._raw(int(rest))
        if kind == "a":
            element, _, delimiter = rest.partition(" ")
            return {"array": self._raw(int(element))} | ({} if delimiter == "," else {"by": delimiter})
        if kind == "r":
            return {"range": self._raw(int(rest))}
        if kind == "m":
            return {"multirange": self._raw(int(rest))}
        if kind == "c":
            return {"row": [[name, self._raw(attribute)] for name, attribute in self._attributes(rest)]}
        return HSTORE if (kind, rest) == ("b", HSTORE) else TEXT

    def _kind(self, oid: int) -> tuple[str, str]:
        kind, _, rest = self._types.get(f"t{oid}", "").partition(" ")
        return kind, rest

    def _attributes(self, relation: str) -> list[tuple[str, int]]:
        """(name, type) of a composite type's attributes, in order. Raises ValueError for what is odd."""
        if self._rows is None:
            self._rows = defaultdict(list)
            for key, told in self._types.items():
                if key.startswith("n"):
                    owner, _, number = key[1:].partition(".")
                    self._rows[owner].append((number, told))
        found = []
        for number, told in self._rows.get(relation, ()):
            oid, _, name = told.partition(" ")
            found.append((int(number), name, int(oid)))
        return [(name, oid) for _, name, oid in sorted(found)]
