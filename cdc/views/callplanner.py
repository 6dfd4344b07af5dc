"""A function over the rows of a SELECT, planned: the columns that it is given and returns, and the groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.expressions import PgType
from cdc.expressions.expression import checked
from cdc.expressions.parser import parsed
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.syntax import Cast, Quoted
from cdc.views.columns import EQUAL
from cdc.views.contract import ViewRefused
from cdc.views.groupcall import DeclaredFunction, GroupCall
from cdc.views.plan import PlanColumn, has_scale


def planned_call(name: str, key: Sequence[str], given: Mapping[str, PlanColumn], function: DeclaredFunction) -> GroupCall:
    """``given``: the columns of the SELECT. Raises ViewRefused."""
    for one in (one for one in function.by if one not in given):
        raise ViewRefused(
            f"view {name}: {one} of by is not a column of its sql", hint=near(one, given) or f"they are {', '.join(given)}"
        )
    made = {
        column: PlanColumn(f"r{number}", _type(name, column, text))
        for number, (column, text) in enumerate(function.returns.items(), 1)
    }
    columns = {**given, **made}
    for place, names in (("by", function.by), ("key", key)):
        for one in names:
            kind = columns[one].kind
            if not (kind.name in EQUAL or has_scale(kind)):
                raise ViewRefused(
                    f"view {name}: {place} names {one}, which is {kind}: values that are equal look different",
                    hint="cast it in sql, such as x::text" if one in function.by else "return another type, such as text",
                )
    return GroupCall(function, given, made, tuple(columns[one].name for one in key))


def _type(name: str, column: str, text: str) -> PgType:
    """The type that is called so."""
    constant = f"NULL::{text}"
    hint = ""
    try:
        syntax = parsed(constant)
        if isinstance(syntax, Cast) and isinstance(syntax.value, Quoted):
            return checked(syntax, constant, {}).type
    except PartRefused as refusal:
        hint = refusal.hint or ""
    raise ViewRefused(
        f"view {name}: returns says that {column} is {text}, which is not a type that it can have",
        hint=hint or "write a type alone, such as bigint or numeric(12,2)",
    )
