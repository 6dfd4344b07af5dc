"""The parts of a query once it is parsed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.expressions.syntax import FunctionCall, Name, Syntax

JoinKind = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True, slots=True)
class ColumnName(Name):
    """A column with its table's alias before the dot."""

    table: str = ""


@dataclass(frozen=True, slots=True)
class OrderItem:
    """One expression of ORDER BY."""

    at: int
    value: Syntax
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class AggregateCall(FunctionCall):
    """An aggregate's call. count(*) has no arguments."""

    distinct: bool = False
    order: tuple[OrderItem, ...] = ()
    condition: Syntax | None = None


@dataclass(frozen=True, slots=True)
class RowNumberCall(FunctionCall):
    """row_number() OVER (…)."""

    partition: tuple[Syntax, ...] = ()
    order: tuple[OrderItem, ...] = ()


@dataclass(frozen=True, slots=True)
class TableName:
    """A topic or a query of WITH. ``schema``: empty where it is not written."""

    at: int
    schema: str
    name: str
    alias: str


@dataclass(frozen=True, slots=True)
class Subquery:
    """A query in FROM."""

    at: int
    query: QuerySyntax
    alias: str


@dataclass(frozen=True, slots=True)
class JoinSyntax:
    """A join. ``on``: None where ``using`` has the columns' names."""

    at: int
    kind: JoinKind
    left: FromItem
    right: FromItem
    on: Syntax | None
    using: tuple[Name, ...] = ()


FromItem = TableName | Subquery | JoinSyntax


@dataclass(frozen=True, slots=True)
class SelectItem:
    """``name``: after AS, or the column's own; empty where it has none."""

    at: int
    value: Syntax
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT. ``distinct_on``: of DISTINCT ON, with ``order``."""

    at: int
    items: tuple[SelectItem, ...]
    source: FromItem
    where: Syntax | None = None
    group: tuple[Syntax, ...] | None = None
    having: Syntax | None = None
    distinct: bool = False
    distinct_on: tuple[Syntax, ...] = ()
    order: tuple[OrderItem, ...] = ()


@dataclass(frozen=True, slots=True)
class QuerySyntax:
    """SELECTs that UNION ALL puts together. ``named``: the queries of WITH, each of which sees those before it."""

    at: int
    selects: tuple[Select, ...]
    named: tuple[tuple[str, QuerySyntax], ...] = ()
