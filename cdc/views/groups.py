"""GROUP BY and aggregates, planned: aggregates are taken out of the expressions around them and become columns of a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.expressions import BOOL, PgType
from cdc.expressions.arraytexts import ELEMENTS, array_field
from cdc.expressions.objects import SHOWN
from cdc.expressions.pgtype import INT8, INTEGERS, JSONB, NUMERIC, TEXT, opaque
from cdc.expressions.refusal import PartRefused
from cdc.expressions.syntax import Collated, Name, NumberLiteral, Quoted, Syntax
from cdc.model.outline import Items
from cdc.views.columns import ORDERED, PlanColumns, PlannedRelation, Scope, TopicInFrom, filtered_by
from cdc.views.parts import bare, outermost_aggregates, plain, replaced, walk
from cdc.views.plan import Aggregate, GroupNode, Node, Order, PlanColumn, has_scale
from cdc.views.syntax import AggregateCall, ColumnName, Select

_ORDERED: Final = ("array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg")
"""Aggregates whose value depends on the order of the rows."""


class GroupPlanner:
    """Plans the groups of one query."""

    def __init__(self, book: PlanColumns) -> None:
        self._book = book

    def distinct(self, select: Select, relation: PlannedRelation) -> PlannedRelation:
        columns = list(dict.fromkeys(relation.names.values()))
        for item, column in zip(select.items, relation.names.values(), strict=True):
            self._book.has_equality(item.at, column, "DISTINCT")
        key = tuple(one.name for one in columns)
        return PlannedRelation(GroupNode(relation.node, tuple(columns), (), key, (frozenset(key),)), relation.names)

    def grouped(self, scope: Scope, node: Node, select: Select) -> PlannedRelation:
        by = [self._group_item(scope, select, one) for one in select.group or ()]
        node, groups = self._book.computed(node, [bare(one) for one in by])
        for syntax, column in zip(by, groups, strict=True):
            self._book.has_equality(syntax.at, column, "GROUP BY")
        grouping = {repr(plain(bare(one))): column for one, column in zip(by, groups, strict=True)}
        texts = [item.value for item in select.items] + ([select.having] if select.having is not None else [])
        resolved = [self._book.resolved(scope, one, "") for one in texts]
        own = tuple(dict.fromkeys(groups))
        for one in self._determined(scope, resolved, grouping, own):
            groups.append(self._book.kinds[one.name])
            self._book.has_equality(one.at, groups[-1], "GROUP BY")
            grouping[repr(plain(one))] = groups[-1]
        aggregates: dict[str, Aggregate] = {}
        for call in (one for syntax in resolved for one in outermost_aggregates(syntax)):
            if repr(plain(call)) not in aggregates:
                node, aggregates[repr(plain(call))] = self._aggregate(node, call, groups)
        distinct = tuple(dict.fromkeys(groups))
        key = tuple(one.name for one in own)
        of_all = tuple(aggregates.values())
        grouped = GroupNode(node, distinct, of_all, key, (frozenset(key),))
        if not distinct and not grouped.signed:
            call = next(
                one for syntax in resolved for one in outermost_aggregates(syntax) if not aggregates[repr(plain(one))].signed
            )
            raise PartRefused(
                call.at,
                f"{call.name} of all rows is not kept up: each change would read every row",
                "add GROUP BY, or keep to count, sum, avg, bool_and and bool_or",
            )
        behind = [self._behind(one, grouping, aggregates) for one in resolved]
        made: Node = grouped
        if select.having is not None:
            made = filtered_by(made, self._book.expression(behind[-1], BOOL))
        made, columns = self._book.computed(made, behind[: len(select.items)])
        return PlannedRelation(made, self._book.named_items(select.items, columns))

    def _group_item(self, scope: Scope, select: Select, one: Syntax) -> Syntax:
        if isinstance(one, NumberLiteral):
            number = int(one.text) if one.text.isdigit() else 0
            if not 1 <= number <= len(select.items):
                raise PartRefused(one.at, f"GROUP BY {one.text} is not the number of a column", "name the column")
            return self._book.resolved(scope, select.items[number - 1].value, "GROUP BY")
        if isinstance(one, Name) and not isinstance(one, ColumnName):
            known = any(one.name in self._book.names(table) for table in scope.tables.values()) or one.name in scope.merged
            item = next((item for item in select.items if item.name == one.name), None)
            if not known and item is not None:
                return self._book.resolved(scope, item.value, "GROUP BY")
        return self._book.resolved(scope, one, "GROUP BY")

    def _determined(
        self, scope: Scope, resolved: Sequence[Syntax], grouping: Mapping[str, PlanColumn], groups: Sequence[PlanColumn]
    ) -> list[Name]:
        """Columns that stand beside aggregates, of tables whose keys are grouped by: they have one value in each group."""
        there = {one.name for one in groups}
        tables = [one.leaf for one in scope.tables.values() if isinstance(one, TopicInFrom) and there.issuperset(one.leaf.key)]
        known = {column.name for leaf in tables for column in leaf.columns.values()} - there
        found: dict[str, Name] = {}

        def look(one: Syntax) -> Syntax | None:
            if isinstance(one, AggregateCall) or repr(plain(one)) in grouping:
                return one
            if isinstance(one, Name) and one.name in known:
                found.setdefault(one.name, one)
            return None

        for one in resolved:
            replaced(one, look)
        return list(found.values())

    def _behind(self, syntax: Syntax, grouping: Mapping[str, PlanColumn], aggregates: Mapping[str, Aggregate]) -> Syntax:
        """The expression over the groups' columns."""

        def change(one: Syntax) -> Syntax | None:
            if isinstance(one, AggregateCall):
                return Name(one.at, aggregates[repr(plain(one))].column.name)
            found = grouping.get(repr(plain(one)))
            if found is not None:
                return Name(one.at, found.name)
            if isinstance(one, Name):
                raise PartRefused(
                    one.at,
                    f"column {self._book.shown({one.name})} is neither in GROUP BY nor in an aggregate",
                    "add it to GROUP BY",
                )
            return None

        return replaced(syntax, change)

    def _aggregate(self, node: Node, call: AggregateCall, groups: Sequence[PlanColumn]) -> tuple[Node, Aggregate]:
        at, name = call.at, "bool_and" if call.name == "every" else call.name
        for inner in (*call.arguments, *([call.condition] if call.condition is not None else [])):
            if any(isinstance(one, AggregateCall) for one in walk(inner)):
                raise PartRefused(inner.at, "aggregates cannot stand within each other", "write one of them in a subquery")
        condition = ""
        if call.condition is not None:
            self._book.expression(call.condition, BOOL)
            node, [column] = self._book.computed(node, [call.condition])
            condition = column.name
        wanted = 2 if name in ("string_agg", "jsonb_object_agg") else 1
        if call.arguments and len(call.arguments) != wanted:
            raise PartRefused(at, f"{name} takes {'one argument' if wanted == 1 else 'two arguments'}")
        if not call.arguments:
            return node, Aggregate(self._book.column(INT8), "count", condition=condition)
        label: PlanColumn | None = None
        if name == "jsonb_object_agg":
            node, label = self._label(node, call.arguments[0])
        syntax = call.arguments[1 if label else 0]
        node, [argument] = self._book.computed(node, [bare(syntax) if isinstance(bare(syntax), Name) else syntax])
        if call.distinct and name != "count":
            raise PartRefused(
                at, f"{name}(DISTINCT …) is not kept up", "write SELECT DISTINCT in a subquery, and aggregate over it"
            )
        if call.order and name not in _ORDERED:
            raise PartRefused(call.order[0].at, f"ORDER BY changes nothing in {name}", "leave it out")
        made = self._made(at, name, syntax, argument, call.distinct)
        orders: tuple[Order, ...] = ()
        separator: str | None = ""
        if name in _ORDERED:
            if not call.order:
                raise PartRefused(
                    at, f"{name} without ORDER BY is not kept up: its order is left to chance", f"write {name}(x ORDER BY …)"
                )
            node, orders = self._book.orders(node, call.order, [one.value for one in call.order])
            ordered = [one.column for one in orders]
            same = argument.name in ordered and label is None
            if not same and not self._book.knowledge.covers([*ordered, *(one.name for one in groups)], node.keys):
                raise PartRefused(
                    call.order[0].at,
                    f"the order is not total: {self._book.missing(node, groups, orders)}",
                    "put the key's columns at the end of ORDER BY",
                )
        if name == "string_agg":
            constant = call.arguments[1]
            if not isinstance(constant, Quoted):
                raise PartRefused(constant.at, "string_agg needs a constant between the texts")
            separator = constant.text
        return node, Aggregate(made, name, argument, call.distinct, condition, orders, separator, label)  # type: ignore[arg-type]

    def _label(self, node: Node, syntax: Syntax) -> tuple[Node, PlanColumn]:
        """The names of an object."""
        node, [label] = self._book.computed(node, [bare(syntax) if isinstance(bare(syntax), Name) else syntax])
        if label.kind.name != "text":
            raise PartRefused(syntax.at, f"the names of jsonb_object_agg are texts, and this is {label.kind}", "write x::text")
        return node, label

    def _made(self, at: int, name: str, syntax: Syntax, argument: PlanColumn, distinct: bool) -> PlanColumn:
        """The aggregate's column."""
        if name != "array_agg":
            column = self._book.column(self._result(at, name, syntax, argument, distinct))
            if name == "jsonb_agg":
                self._book.outlines[column.name] = Items(self._book.outline(argument))
            return column
        if argument.kind.name not in ELEMENTS:
            raise PartRefused(at, f"array_agg of {argument.kind} is not kept up", f"it is of {', '.join(ELEMENTS)}")
        field = array_field(argument.kind)
        return self._book.column(opaque(field.type_name), field)

    def _result(self, at: int, name: str, syntax: Syntax, argument: PlanColumn, distinct: bool) -> PgType:
        kind = argument.kind
        if name == "count":
            if distinct:
                self._book.has_equality(at, argument, "count(DISTINCT …)")
            return INT8
        if name in ("bool_and", "bool_or"):
            if kind.name != "bool":
                raise PartRefused(at, f"{name} takes booleans, and this is {kind}")
            return BOOL
        if name in ("sum", "avg"):
            if kind.name in ("float4", "float8"):
                raise PartRefused(
                    at, f"{name} of {kind} is not kept up: it depends on the order of its rows", f"write {name}(x::numeric(20, 4))"
                )
            if kind not in INTEGERS and kind.name != "numeric":
                raise PartRefused(at, f"{name} of {kind} is not kept up", "of integers and numeric it is")
            return INT8 if name == "sum" and kind.name in ("int2", "int4") else NUMERIC
        if name in ("min", "max"):
            return self._extreme(at, name, syntax, argument)
        if name == "string_agg":
            if kind.name != "text":
                raise PartRefused(at, f"string_agg takes texts, and this is {kind}", "write x::text")
            return TEXT
        if kind.name not in SHOWN:
            raise PartRefused(at, f"{name} of {kind} is not kept up", f"it is of {', '.join(SHOWN)}")
        return JSONB

    def _extreme(self, at: int, name: str, syntax: Syntax, argument: PlanColumn) -> PgType:
        kind = argument.kind
        if kind.name == "text":
            if not (isinstance(syntax, Collated) or self._book.expression(syntax).collated):
                raise PartRefused(at, f"{name} of texts depends on the database's collation", f'write {name}(x COLLATE "C")')
            return TEXT
        if kind.name in ("bool", "uuid"):
            raise PartRefused(
                at,
                f"{name} of {kind} does not exist in every version of Postgres",
                "write bool_and or bool_or" if kind.name == "bool" else f'write {name}(x::text COLLATE "C")',
            )
        if kind.name == "numeric" and not has_scale(kind):
            raise PartRefused(
                at,
                f"{name} of numeric without a scale is not kept up: 1.0 and 1.00 are equal and look different",
                f"write {name}(x::numeric(20, 4))",
            )
        if kind.name not in ORDERED and kind.name != "numeric":
            raise PartRefused(at, f"{name} of {kind} is not kept up")
        return replace(kind, bounds=None)
