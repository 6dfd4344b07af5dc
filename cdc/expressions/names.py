"""The names in an expression's text, and the text without its spelling, before anything is known of the columns that it names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from cdc.expressions.parser import parsed
from cdc.expressions.refusal import PartRefused
from cdc.expressions.syntax import Name, Syntax, children


def named(text: str) -> tuple[str, ...]:
    """The columns that it names, once each. Raises ExpressionRefused where it is not an expression."""
    return tuple(dict.fromkeys(_names(_parsed(text))))


def said(text: str, names: Mapping[str, str]) -> Any:
    """A value that is equal for two texts that differ in blanks, brackets that change nothing and the spelling of words only, with ``names`` in place of the
    columns that they have. Raises ExpressionRefused where it is not an expression."""
    return _plain(_parsed(text), names)


def _parsed(text: str) -> Syntax:
    try:
        return parsed(text)
    except PartRefused as refusal:
        raise refusal.placed(text) from None


def _names(syntax: Syntax) -> Iterator[str]:
    if isinstance(syntax, Name):
        yield syntax.name
    for part in children(syntax):
        yield from _names(part)


def _plain(part: Any, names: Mapping[str, str]) -> Any:
    if isinstance(part, Name):
        return "Name", names.get(part.name, part.name)
    if isinstance(part, tuple):
        return tuple(_plain(one, names) for one in part)
    if isinstance(part, Syntax):
        return type(part).__name__, *(_plain(getattr(part, one.name), names) for one in fields(part) if one.name != "at")
    return part
