"""The parts of an expression once it is parsed: names and constants, and what is done with them. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """A column. ``at``, here as below: characters of the expression before it."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """An unsigned or negative numeric constant, as it is written."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Quoted:
    """A quoted constant, whose type follows from what stands around it. None: NULL."""

    at: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Truth:
    """true or false."""

    at: int
    value: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator or one of SQL's own forms: ``and``, ``is null``, ``in``, ``like``, ``any =`` …"""

    at: int
    name: str
    operands: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function's call."""

    at: int
    name: str
    arguments: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """CASE. ``whens``: conditions and results in turn; for CASE x WHEN a the conditions are x = a."""

    at: int
    whens: tuple[tuple[Syntax, Syntax], ...]
    otherwise: Syntax


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast to the type of this name. ``modifiers``: the numbers behind it."""

    at: int
    value: Syntax
    type_name: str
    modifiers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Collated:
    """COLLATE "C"."""

    at: int
    value: Syntax


@dataclass(frozen=True, slots=True)
class Array:
    """ARRAY[…]."""

    at: int
    items: tuple[Syntax, ...]


Syntax = Name | NumberLiteral | Quoted | Truth | Operation | FunctionCall | Case | Cast | Collated | Array


def children(syntax: Syntax) -> tuple[Syntax, ...]:
    """The parts directly within it."""
    match syntax:
        case Operation(operands=parts) | FunctionCall(arguments=parts) | Array(items=parts):
            return parts
        case Case(whens=whens, otherwise=otherwise):
            return (*(part for when in whens for part in when), otherwise)
        case Cast(value=value) | Collated(value=value):
            return (value,)
    return ()


def below(syntax: Syntax, levels: int) -> Syntax | None:
    """Something that stands so many levels below it."""
    level: list[Syntax] = [syntax]
    for _ in range(levels):
        level = [child for one in level for child in children(one)]
    return level[0] if level else None
