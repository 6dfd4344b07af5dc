"""The columns of a plan: made, found by the names that a SELECT sees, and computed. Pure.

Every name is resolved to a column of the plan, so that ``cdc.expressions`` sees plain columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.expressions import Expression, PgType, type_of
from cdc.expressions.expression import checked
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.syntax import Collated, Name, NumberLiteral, Quoted, Syntax, Truth
from cdc.model.outline import Outline, outline_of
from cdc.model.topic import TopicField, TopicSchema
from cdc.views.outlines import outline_of_syntax, outline_of_value
from cdc.views.parts import bare, plain, replaced, walk
from cdc.views.plan import ComputedNode, FilterNode, Key, Knowledge, LeafNode, Node, Order, PlanColumn, has_scale
from cdc.views.syntax import AggregateCall, ColumnName, OrderItem, RowNumberCall, SelectItem

EQUAL: Final = frozenset(["bool", "int2", "int4", "int8", "text", "uuid", "date", "timestamp", "timestamptz"])
"""Types whose equal values are the same value, so that groups, joins and keys may be of them; and numeric with a scale."""
ORDERED: Final = EQUAL - {"text"}


@dataclass(slots=True)
class PlannedRelation:
    """A node with the names by which its columns are asked for, in order."""

    node: Node
    names: dict[str, PlanColumn]


@dataclass(slots=True)
class Scope:
    """The relations that a SELECT's expressions see, by alias."""

    tables: dict[str, PlannedRelation | TopicInFrom] = field(default_factory=dict)
    merged: dict[str, PlanColumn] = field(default_factory=dict)
    """Columns of USING."""


@dataclass(slots=True)
class TopicInFrom:
    """An occurrence of a topic, whose columns are taken as they are asked for."""

    leaf: LeafNode
    schema: TopicSchema


class PlanColumns:
    """Those of one plan. ``text``: the whole query."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._made = 0
        self.knowledge = Knowledge()
        self.kinds: dict[str, PlanColumn] = {}
        """By name."""
        self.outlines: dict[str, Outline] = {}
        """Of columns of JSON, by name, where anything is known of their documents."""

    def column(self, kind: PgType, field: TopicField | None = None) -> PlanColumn:
        self._made += 1
        made = PlanColumn(f"x{self._made}", kind, field)
        self.kinds[made.name] = made
        return made

    def of_leaf(self, topic: TopicInFrom, at: int, name: str) -> PlanColumn:
        found = topic.leaf.columns.get(name)
        if found is None:
            one = next((one for one in topic.schema.fields if one.name == name), None)
            if one is None:
                raise PartRefused(at, f"column {name} of {topic.schema.topic} does not exist", near(name, topic.schema.names))
            self._made += 1
            found = PlanColumn(f"x{self._made}", type_of(one), one)
            self.kinds[found.name] = found
            topic.leaf.columns[name] = found
            self.outlines[found.name] = outline_of(one.outline)
        return found

    def found(self, scope: Scope, at: int, table: str, name: str) -> PlanColumn:
        if table:
            one = scope.tables.get(table)
            if one is None:
                raise PartRefused(at, f"{table} is not a table of this FROM", near(table, scope.tables))
            return self._of(one, at, name, table)
        if name in scope.merged:
            return scope.merged[name]
        having = [(alias, one) for alias, one in scope.tables.items() if name in self.names(one)]
        if len(having) > 1:
            raise PartRefused(at, f"column {name} is ambiguous", f"write {having[0][0]}.{name}")
        if not having:
            known = [known for one in scope.tables.values() for known in self.names(one)]
            raise PartRefused(at, f"column {name} does not exist", near(name, known))
        return self._of(having[0][1], at, name, having[0][0])

    def _of(self, one: PlannedRelation | TopicInFrom, at: int, name: str, table: str) -> PlanColumn:
        if isinstance(one, TopicInFrom):
            return self.of_leaf(one, at, name)
        if name not in one.names:
            raise PartRefused(at, f"column {table}.{name} does not exist", near(name, one.names))
        return one.names[name]

    def names(self, one: PlannedRelation | TopicInFrom) -> Sequence[str]:
        return one.schema.names if isinstance(one, TopicInFrom) else list(one.names)

    def resolved(self, scope: Scope, syntax: Syntax, where: str) -> Syntax:
        """With the plan's columns in place of names. ``where``: names the clause if aggregates cannot stand in it; empty where they can."""

        def change(one: Syntax) -> Syntax | None:
            if isinstance(one, AggregateCall) and where:
                raise PartRefused(
                    one.at, f"{one.name} cannot stand in {where}: it sees one row", "write the aggregate in a subquery, or HAVING"
                )
            if isinstance(one, RowNumberCall):
                raise PartRefused(
                    one.at,
                    "row_number() can only be a column of its own",
                    "write it in a subquery: SELECT …, row_number() OVER (…) AS n",
                )
            if isinstance(one, Name):
                table = one.table if isinstance(one, ColumnName) else ""
                return Name(one.at, self.found(scope, one.at, table, one.name).name)
            return None

        return replaced(syntax, change)

    def expression(self, syntax: Syntax, expects: PgType | None = None) -> Expression:
        """``syntax``: resolved."""
        names = {one.name for one in walk(syntax) if isinstance(one, Name)}
        return checked(syntax, self._text, {name: self.kinds[name].kind for name in sorted(names)}, expects)

    def computed(self, node: Node, syntaxes: Sequence[Syntax]) -> tuple[Node, list[PlanColumn]]:
        """The node with a column for each of these resolved expressions; a plain column is itself."""
        made: list[tuple[PlanColumn, Expression]] = []
        found: list[PlanColumn] = []
        known: dict[Any, PlanColumn] = {}
        for syntax in syntaxes:
            name = bare(syntax)
            if isinstance(name, Name):
                if isinstance(syntax, Collated):
                    self.expression(syntax)
                found.append(self.kinds[name.name])
                continue
            alone = plain(syntax)
            if alone not in known:
                expression = self.expression(syntax)
                column = self.column(expression.type)
                if isinstance(syntax, Quoted | NumberLiteral | Truth):
                    self.knowledge.constants[column.name] = repr(alone)
                if expression.type.name == "jsonb":
                    self.outlines[column.name] = outline_of_syntax(syntax, self.outlines, self._kind)
                known[alone] = column
                made.append((column, expression))
            found.append(known[alone])
        return (ComputedNode(node, tuple(made), node.key, node.keys) if made else node), found

    def _kind(self, syntax: Syntax) -> PgType:
        return self.kinds[syntax.name].kind if isinstance(syntax, Name) else self.expression(syntax).type

    def outline(self, column: PlanColumn) -> Outline:
        """That of the column's values within a document."""
        return outline_of_value(column.kind, self.outlines.get(column.name))

    def has_equality(self, at: int, column: PlanColumn, what: str) -> None:
        kind = column.kind
        if kind.name in EQUAL or has_scale(kind):
            return
        if kind.name == "numeric":
            raise PartRefused(
                at,
                f"{what} of numeric without a scale is not kept up: 1.0 and 1.00 are equal and look different",
                "cast it: x::numeric(20, 4)",
            )
        if kind.name in ("float4", "float8"):
            raise PartRefused(
                at, f"{what} of {kind} is not kept up: 0 and -0 are equal and look different", "cast it: x::numeric(20, 4)"
            )
        raise PartRefused(at, f"{what} of {kind} is not kept up", "cast it in a subquery: x::text")

    def missing(self, node: Node, columns: Sequence[PlanColumn], orders: Sequence[Order]) -> str:
        there = self.knowledge.closed([*(one.name for one in columns), *(one.column for one in orders)])
        key = min(node.keys, key=lambda one: len(one - there))
        return f"rows can be equal in it, as {self.shown(key - there)} is not in it"

    def shown(self, names: Key | set[str]) -> str:
        shown = sorted((one.field.name if (one := self.kinds[name]).field is not None else "a computed column") for name in names)
        return " and ".join(shown)

    def orders(self, node: Node, items: Sequence[OrderItem], resolved: Sequence[Syntax]) -> tuple[Node, tuple[Order, ...]]:
        for item, syntax in zip(items, resolved, strict=True):
            if isinstance(syntax, NumberLiteral):
                raise PartRefused(item.at, "ORDER BY a number is not possible here", "name the column")
        node, columns = self.computed(node, [bare(one) for one in resolved])
        found = []
        for item, syntax, column in zip(items, resolved, columns, strict=True):
            self._has_order(item.at, syntax, column)
            found.append(Order(column.name, item.descending, item.nulls_first))
        return node, tuple(found)

    def _has_order(self, at: int, syntax: Syntax, column: PlanColumn) -> None:
        kind = column.kind
        if kind.name == "text":
            if not (isinstance(syntax, Collated) or self.expression(syntax).collated):
                raise PartRefused(at, "the order of texts depends on the database's collation", 'write ORDER BY x COLLATE "C"')
            return
        if kind.name not in ORDERED and not has_scale(kind):
            self.has_equality(at, column, "an order")

    def named_items(self, items: Sequence[SelectItem], columns: Sequence[PlanColumn]) -> dict[str, PlanColumn]:
        names: dict[str, PlanColumn] = {}
        for item, column in zip(items, columns, strict=True):
            if not item.name:
                raise PartRefused(item.at, "the column has no name", "give it one with AS")
            if item.name in names:
                raise PartRefused(item.at, f"two columns are called {item.name}", "give one another name with AS")
            names[item.name] = column
        return names


def filtered_by(node: Node, condition: Expression) -> Node:
    """The node's rows whose condition is true."""
    return FilterNode(node, condition, node.key, node.keys)
