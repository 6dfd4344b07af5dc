"""The outlines of what a query makes of JSON: of ``jsonb_build_object``, ``jsonb_agg`` and what stands around them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cdc.expressions import PgType, scalar_of
from cdc.expressions.syntax import Case, Cast, FunctionCall, Name, Quoted, Syntax
from cdc.model.outline import Items, ObjectOutline, Outline


def outline_of_value(kind: PgType, known: Outline) -> Outline:
    """That of a value of this type within a document. ``known``: of JSON."""
    if kind.name == "jsonb":
        return known
    try:
        return scalar_of(kind)
    except KeyError:
        return None


def outline_of_syntax(syntax: Syntax, known: Mapping[str, Outline], kind_of: Callable[[Syntax], PgType]) -> Outline:
    """That of an expression whose type is jsonb. ``known``: of the columns; ``kind_of``: the type of a part."""

    def value(one: Syntax) -> Outline:
        kind = kind_of(one)
        return outline_of_value(kind, look(one) if kind.name == "jsonb" else None)

    def look(one: Syntax) -> Outline:
        match one:
            case Name(name=name):
                return known.get(name)
            case FunctionCall(name="jsonb_build_object", arguments=parts):
                names = [part.text for part in parts[::2] if isinstance(part, Quoted) and part.text is not None]
                return ObjectOutline(dict(zip(names, map(value, parts[1::2]), strict=True)))
            case FunctionCall(name="coalesce", arguments=(first, other)):
                found = look(first)
                return found if _is_empty(other, found) else None
            case Case(whens=((_, result),), otherwise=Quoted(text=None)):
                return look(result)
        return None

    return look(syntax)


def _is_empty(syntax: Syntax, outline: Outline) -> bool:
    """Whether it is the constant that has nothing in it, of this outline."""
    constant = syntax.value if isinstance(syntax, Cast) else syntax
    if not isinstance(constant, Quoted) or constant.text is None:
        return False
    return constant.text.strip() == ("[]" if isinstance(outline, Items) else "{}")
