"""Which names a template's keys can have, and whether two templates can give the same one. Pure.

A pattern is a row of steps, each of which is one character or any number of characters of some kind. A value's backslashes and separators are escaped in a name
(``sinks.render.rowtext.key_part``), and no template has a backslash; so what stands in one pattern as a character stands in a value of the other as
itself, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField
from sinks.cache.keytemplate import TableKeys
from sinks.render.rowtext import ESCAPE, SEPARATOR

_DIGITS: Final = frozenset("0123456789")
_WHOLE: Final = tuple(Scalar(kind) for kind in (ScalarType.INT2, ScalarType.INT4, ScalarType.INT8, ScalarType.OID))
_UUID: Final = Scalar(ScalarType.UUID)


@dataclass(frozen=True, slots=True)
class ValueText:
    """Any number of characters of a value. ``only``: these; None: all but those of ``never``."""

    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()

    def may_hold(self, character: str) -> bool:
        return character in self.only if self.only is not None else character not in self.never


Pattern = tuple[str | ValueText, ...]
"""Characters, and what values may put between them."""


def pattern_of(keys: TableKeys) -> Pattern:
    """The names that these keys can have. They may be fewer: what a value of another type than a number or a UUID looks like is not asked."""
    if keys.whole:
        ends = [SEPARATOR] * (len(keys.schema.key) - 1) + [literal for _, literal in keys.columns]
        columns = list(zip(keys.schema.key, ends, strict=True))
        separators = frozenset(SEPARATOR if len(columns) > 1 else "")
    else:
        named = {column.name: column for column in keys.schema.fields}
        columns = [(named[name], literal) for name, literal in keys.columns]
        separators = frozenset(literal[0] for _, literal in columns[:-1])
    steps: list[str | ValueText] = [*keys.prefix]
    for column, literal in columns:
        steps += [*_texts_of(column, separators | {ESCAPE}), *literal]
    return tuple(steps)


def may_meet(one: Pattern, other: Pattern) -> bool:
    """Whether some name is one of both."""
    open_places, seen = [(0, 0)], set[tuple[int, int]]()
    while open_places:
        at = open_places.pop()
        if at == (len(one), len(other)):
            return True
        if at not in seen:
            seen.add(at)
            open_places += _next(one, other, *at)
    return False


def _next(one: Pattern, other: Pattern, i: int, j: int) -> list[tuple[int, int]]:
    """Where the rest of both may begin that has to meet, once one of them has gone a step further."""
    mine, theirs = (one[i] if i < len(one) else None), (other[j] if j < len(other) else None)
    found = []
    if isinstance(mine, ValueText):
        found.append((i + 1, j))
        if isinstance(theirs, str) and mine.may_hold(theirs):
            found.append((i, j + 1))
    if isinstance(theirs, ValueText):
        found.append((i, j + 1))
        if isinstance(mine, str) and theirs.may_hold(mine):
            found.append((i + 1, j))
    if isinstance(mine, str) and mine == theirs:
        found.append((i + 1, j + 1))
    return found


def _texts_of(column: TopicField, escaped: frozenset[str]) -> list[ValueText]:
    if not column.defined and column.structure in _WHOLE:
        return [ValueText(frozenset("-")), ValueText(_DIGITS)]
    if not column.defined and column.structure == _UUID:
        return [ValueText(_DIGITS | frozenset("abcdef-"))]
    return [ValueText(never=escaped)]
