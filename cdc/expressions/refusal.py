"""Errors that name the place in an expression. They quote the expression, which is configuration, and never a value."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from cdc.errors import ConfigError


class ExpressionRefused(ConfigError):
    """An expression that cannot be evaluated exactly as Postgres does, or is wrong. ``place``: line and column, from 1."""

    def __init__(self, message: str, line: int, column: int, *, hint: str | None = None) -> None:
        super().__init__(f"line {line}, column {column}: {message}", hint=hint)
        self.place = line, column

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (str(self), *self.place, self.hint)


def _again(message: str, line: int, column: int, hint: str | None) -> ExpressionRefused:
    return ExpressionRefused(message.partition(": ")[2], line, column, hint=hint)


class PartRefused(Exception):
    """The same before its place is known as a line and a column. ``at``: characters before it."""

    def __init__(self, at: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.at, self.hint = at, hint

    def placed(self, text: str) -> ExpressionRefused:
        return ExpressionRefused(str(self), *line_and_column(text, self.at), hint=self.hint)


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Where the character is that has ``at`` before it, both from 1."""
    before = text[:at]
    return before.count("\n") + 1, at - before.rfind("\n")


def near(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the one of ``known`` that is spelled most like it."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"do you mean {found[0]}?" if found else None
