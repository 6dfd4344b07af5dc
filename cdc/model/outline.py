"""The outline of a column of JSON whose documents a view makes: which members its objects have, and of which types. Pure.

As JSON, which a column's definition keeps:

===========================  ====================================
``"int8"``                   a single value of this type, or null
``{"members": {"a": …}}``    an object of these members, or null
``{"items": …}``             an array
``null``                     anything
===========================  ====================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cdc.model.structure import ScalarType

MOST_BYTES: Final = 100_000
"""The longest text of an outline: it stands in the head of each batch of rows."""
_DEEPEST: Final = 20


@dataclass(frozen=True, slots=True)
class ObjectOutline:
    """An object."""

    members: Mapping[str, Outline]


@dataclass(frozen=True, slots=True)
class Items:
    """An array, whose items are alike."""

    item: Outline


Outline = ScalarType | ObjectOutline | Items | None
"""None: of which nothing is known."""


def outline_text(outline: Outline) -> str:
    """The outline as text; empty for one of which nothing is known, or which is too large to be kept."""
    if outline is None:
        return ""
    text = json.dumps(_raw(outline), separators=(",", ":"), ensure_ascii=False)
    return text if len(text.encode()) <= MOST_BYTES and _depth(outline) <= _DEEPEST else ""


@lru_cache(maxsize=1024)
def outline_of(text: str) -> Outline:
    """Reads what ``outline_text`` gave. Raises ValueError for anything else."""
    if not text:
        return None
    if len(text.encode()) > MOST_BYTES:
        raise ValueError("an outline is too long")
    try:
        return _read(json.loads(text), _DEEPEST)
    except RecursionError:
        raise ValueError("an outline is nested too deeply") from None


def _raw(outline: Outline) -> Any:
    match outline:
        case ObjectOutline(members):
            return {"members": {name: _raw(one) for name, one in members.items()}}
        case Items(item):
            return {"items": _raw(item)}
    return None if outline is None else str(outline)


def _depth(outline: Outline) -> int:
    match outline:
        case ObjectOutline(members):
            return 1 + max(map(_depth, members.values()), default=0)
        case Items(item):
            return 1 + _depth(item)
    return 0


def _read(raw: Any, deepest: int) -> Outline:
    if deepest < 0:
        raise ValueError("an outline is nested too deeply")
    match raw:
        case {"members": dict(members), **rest} if not rest:
            return ObjectOutline({name: _read(one, deepest - 1) for name, one in members.items()})
        case {"items": item, **rest} if not rest:
            return Items(_read(item, deepest - 1))
        case None:
            return None
        case str():
            return ScalarType(raw)
    raise ValueError("not an outline")
