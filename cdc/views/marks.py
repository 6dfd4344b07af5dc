"""How far the log holds a view: the mark that the view's groups lead to, as text. Pure.

A mark says which definition the view's rows follow, which range of the log the last group was computed from, and how much of that range's
output is in the log, where it takes several groups: ``DIGEST.BEGIN-CUT`` or ``DIGEST.BEGIN-CUT#DONE``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from cdc.model.position import Position

_OF_VIEWS: Final = "view:"
_MARK: Final = re.compile(r"([0-9a-f]{32})\.(\d{1,18})-(\d{1,18})(?:#(\d{1,9}))?")


def producer_of(view: str) -> str:
    """The producer that brings its changes."""
    return f"{_OF_VIEWS}{view}"


def view_of(producer: str) -> str | None:
    """The view whose changes it brings; None: it is not one of a view."""
    return producer.removeprefix(_OF_VIEWS) if producer.startswith(_OF_VIEWS) else None


@dataclass(frozen=True, slots=True)
class ViewMark:
    """The log holds what the view, as ``digest`` defines it, made of (``begin``, ``cut``]; or the first ``done`` groups of that, if it is not None."""

    digest: str
    begin: Position
    cut: Position
    done: int | None = None

    @property
    def text(self) -> str:
        """As a mark."""
        return f"{self.digest}.{self.begin}-{self.cut}" + ("" if self.done is None else f"#{self.done}")

    @property
    def reflected(self) -> Position:
        """Up to here the topic shows all that the view's sources had."""
        return self.cut if self.done is None else self.begin

    def part(self, done: int) -> ViewMark:
        """The mark once so many groups of the range, and not yet the last, are in the log."""
        return replace(self, done=done)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """None for a mark that no view made, such as that of a producer which has brought nothing."""
        found = _MARK.fullmatch(text)
        if found is None:
            return None
        return cls(found[1], Position(int(found[2])), Position(int(found[3])), None if found[4] is None else int(found[4]))
