"""The values of an expression while it is analysed: their types, their columns in the plan, and constants. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from cdc.expressions import constants, decimals
from cdc.expressions.pgtype import INT4, INT8, INTEGERS, NUMERIC, PgType
from cdc.expressions.refusal import PartRefused

_NO_CONSTANT: Final = object()


@dataclass(frozen=True, slots=True)
class Term:
    """A value of the expression. ``name`` and ``error``: its columns, empty for a constant and for what never fails."""

    at: int
    type: PgType
    name: str = ""
    error: str = ""
    constant: Any = _NO_CONSTANT
    collated: bool = False

    @property
    def is_constant(self) -> bool:
        return self.constant is not _NO_CONSTANT

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in (self.name, self.error) if name)

    @property
    def sql(self) -> str:
        if self.is_constant:
            return constants.sql(self.type, self.constant)
        if self.type.name != "numeric":
            return self.name
        shown = f"CAST({self.name} AS VARCHAR)"
        # The engine leaves the 0 before the point out of a decimal that has no room for it.
        has_no_whole_part = self.type.bounds is not None and self.type.bounds[0] <= self.type.bounds[1]
        return f"regexp_replace({shown}, '^(-?)[.]', '\\10.')" if has_no_whole_part else shown

    @property
    def argument(self) -> Any:
        """For a kernel."""
        return constants.scalar(self.type, self.constant) if self.is_constant else self.name


def number(at: int, text: str) -> Term:
    if text.lstrip("-").isdigit() and len(text) < 25:
        for kind in (INT4, INT8):
            try:
                return Term(at, kind, constant=constants.whole(kind, text))
            except ValueError:
                continue
    try:
        return Term(at, NUMERIC, constant=decimals.read(text))
    except ValueError:
        raise PartRefused(at, "the number is too large") from None


def folded(term: Term, kind: PgType) -> Term | None:
    """A constant number as one of another type."""
    value = term.constant
    if value is None:
        return replace(term, type=kind)
    if kind.name == "numeric" and term.type in INTEGERS:
        return replace(term, type=kind, constant=decimals.read(str(value)))
    if kind is INT8 and term.type in INTEGERS:
        return replace(term, type=kind)
    return None
