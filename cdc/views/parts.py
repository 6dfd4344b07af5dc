"""An expression's parts: walked over, replaced, compared. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from cdc.expressions.syntax import (
    Array,
    Case,
    Cast,
    Collated,
    FunctionCall,
    Name,
    Operation,
    Syntax,
    children,
)
from cdc.views.syntax import AggregateCall, RowNumberCall


def walk(syntax: Syntax) -> Iterator[Syntax]:
    yield syntax
    if isinstance(syntax, AggregateCall | RowNumberCall):
        parts: list[Syntax] = [one.value for one in syntax.order]
        if isinstance(syntax, AggregateCall):
            parts += [*syntax.arguments, *([syntax.condition] if syntax.condition is not None else [])]
        else:
            parts += syntax.partition
    else:
        parts = list(children(syntax))
    for part in parts:
        yield from walk(part)


def outermost_aggregates(syntax: Syntax) -> Iterator[AggregateCall]:
    if isinstance(syntax, AggregateCall):
        yield syntax
        return
    for part in children(syntax):
        yield from outermost_aggregates(part)


def replaced(syntax: Syntax, change: Any) -> Syntax:
    """The same with the parts that ``change`` gives; it is asked from the outside inwards, and None leaves a part to be looked into."""
    found = change(syntax)
    if found is not None:
        return found  # type: ignore[no-any-return]

    def again(one: Syntax) -> Syntax:
        return replaced(one, change)

    if isinstance(syntax, AggregateCall):
        return replace(
            syntax,
            arguments=tuple(map(again, syntax.arguments)),
            order=tuple(replace(one, value=again(one.value)) for one in syntax.order),
            condition=None if syntax.condition is None else again(syntax.condition),
        )
    if isinstance(syntax, Case):
        return replace(syntax, whens=tuple((again(a), again(b)) for a, b in syntax.whens), otherwise=again(syntax.otherwise))
    if isinstance(syntax, Cast | Collated):
        return replace(syntax, value=again(syntax.value))
    if isinstance(syntax, Operation):
        return replace(syntax, operands=tuple(map(again, syntax.operands)))
    if isinstance(syntax, FunctionCall):
        return replace(syntax, arguments=tuple(map(again, syntax.arguments)))
    if isinstance(syntax, Array):
        return replace(syntax, items=tuple(map(again, syntax.items)))
    return syntax


def bare(syntax: Syntax) -> Syntax:
    return syntax.value if isinstance(syntax, Collated) else syntax


def conjuncts(syntax: Syntax) -> list[Syntax]:
    if isinstance(syntax, Operation) and syntax.name == "and":
        return [one for part in syntax.operands for one in conjuncts(part)]
    return [syntax]


def plain(part: Any) -> Any:
    """Equal for two parts that differ in their places only."""
    if isinstance(part, tuple):
        return tuple(plain(one) for one in part)
    if hasattr(part, "__dataclass_fields__"):
        kind = "Name" if isinstance(part, Name) else type(part).__name__
        return kind, *(plain(getattr(part, one.name)) for one in fields(part) if one.name != "at")
    return part
