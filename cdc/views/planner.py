"""Syntax and the topics' schemas → the plan of a view, or the reason why it cannot be kept up exactly. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cdc.expressions import BOOL, Expression
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.syntax import Name, NumberLiteral, Operation, Quoted, Syntax
from cdc.model.outline import Outline
from cdc.model.topic import TopicSchema
from cdc.views.branches import BranchPlanner
from cdc.views.columns import PlanColumns, PlannedRelation, Scope, TopicInFrom, filtered_by
from cdc.views.groups import GroupPlanner
from cdc.views.joins import JoinPlanner
from cdc.views.numbers import NumberPlanner
from cdc.views.parts import conjuncts, walk
from cdc.views.plan import FilterNode, JoinNode, Knowledge, LeafNode, Node, columns_of, smallest
from cdc.views.syntax import (
    AggregateCall,
    FromItem,
    JoinSyntax,
    QuerySyntax,
    RowNumberCall,
    Select,
    Subquery,
    TableName,
)

MOST_TABLES: Final = 50


class Planner:
    """Plans one query. ``text``: the whole of it."""

    def __init__(self, text: str, topics: Mapping[str, TopicSchema]) -> None:
        self._topics = topics
        self._book = PlanColumns(text)
        self._joins = JoinPlanner(self._book)
        self._groups = GroupPlanner(self._book)
        self._numbers = NumberPlanner(self._book)
        self._branches = BranchPlanner(self._book)
        self._tables = 0
        self._named: dict[str, QuerySyntax] = {}

    @property
    def knowledge(self) -> Knowledge:
        """The facts about the plan's columns."""
        return self._book.knowledge

    @property
    def outlines(self) -> Mapping[str, Outline]:
        """The outlines of columns of JSON, by number."""
        return self._book.outlines

    def query(self, query: QuerySyntax) -> PlannedRelation:
        """Raises PartRefused."""
        outer = self._named
        self._named = dict(outer)
        for name, one in query.named:
            # What a later query names is what stands before it: each sees its own surroundings.
            self._named = {**self._named, name: replace(one, named=(*self._surroundings(), *one.named))}
        try:
            branches = [self._select(_with_names(one, query.selects[0])) for one in query.selects]
        finally:
            self._named = outer
        return branches[0] if len(branches) == 1 else self._branches.union(query, branches)

    def _surroundings(self) -> tuple[tuple[str, QuerySyntax], ...]:
        return tuple(self._named.items())

    # --- FROM

    def _from(self, scope: Scope, item: FromItem) -> Node:
        if isinstance(item, JoinSyntax):
            return self._join(scope, item)
        self._tables += 1
        if self._tables > MOST_TABLES:
            raise PartRefused(item.at, f"more than {MOST_TABLES} tables are not possible in one view", "make a view of a part")
        if item.alias in scope.tables:
            raise PartRefused(item.at, f"{item.alias} stands in FROM twice", "give one another name with AS")
        if isinstance(item, Subquery):
            found = self.query(item.query)
            scope.tables[item.alias] = found
            return found.node
        if not item.schema and item.name in self._named:
            query = self._named[item.name]
            outer, self._named = self._named, {}
            try:
                found = self.query(query)
            finally:
                self._named = outer
            scope.tables[item.alias] = found
            return found.node
        topic = self._topic(item)
        scope.tables[item.alias] = topic
        return topic.leaf

    def _topic(self, item: TableName) -> TopicInFrom:
        wanted = f"{item.schema}.{item.name}"
        names = [name for name in self._topics if name == wanted or (not item.schema and name.partition(".")[2] == item.name)]
        if len(names) > 1 and f"public.{item.name}" in names:
            names = [f"public.{item.name}"]
        if not names:
            shown = wanted if item.schema else item.name
            raise PartRefused(item.at, f"topic {shown} does not exist", near(wanted, self._topics))
        if len(names) > 1:
            raise PartRefused(item.at, f"{item.name} could be {' or '.join(sorted(names))}", "write its schema before it")
        schema = self._topics[names[0]]
        if not schema.key or schema.identity == "none":
            raise PartRefused(
                item.at,
                f"topic {schema.topic} has no key: a change does not say which row it is of",
                "give the table a primary key",
            )
        leaf = LeafNode(schema.topic, {}, ())
        topic = TopicInFrom(leaf, schema)
        leaf.key = tuple(self._book.of_leaf(topic, item.at, one.name).name for one in schema.key)
        leaf.keys = (frozenset(leaf.key),)
        return topic

    def _join(self, scope: Scope, item: JoinSyntax) -> Node:
        before = set(scope.tables)
        left = self._from(scope, item.left)
        mine = set(scope.tables) - before
        right = self._from(scope, item.right)
        others = set(scope.tables) - before - mine
        return self._joins.join(scope, item, left, right, mine, others)

    # --- SELECT

    def _select(self, select: Select) -> PlannedRelation:
        scope = Scope()
        node = self._from(scope, select.source)
        if select.where is not None:
            for condition in conjuncts(select.where):
                resolved = self._book.resolved(scope, condition, "WHERE")
                node = self._filtered(node, self._book.expression(resolved, BOOL))
                node = self._fixed(node, resolved)
        calls = [one for item in select.items for one in walk(item.value) if isinstance(one, AggregateCall)]
        grouped = select.group is not None or select.having is not None or bool(calls)
        if grouped and select.distinct_on:
            raise PartRefused(select.at, "DISTINCT ON with aggregates is not kept up", "write the aggregates in a subquery")
        for item in select.items:
            if isinstance(item.value, RowNumberCall) and (grouped or select.distinct or select.distinct_on):
                raise PartRefused(
                    item.value.at, "row_number() with GROUP BY or DISTINCT is not kept up", "write one of them in a subquery"
                )
        relation = self._groups.grouped(scope, node, select) if grouped else self._plain_select(scope, node, select)
        if select.distinct:
            relation = self._groups.distinct(select, relation)
        return relation

    def _fixed(self, node: Node, condition: Syntax) -> Node:
        """The node, whose rows need not be told apart by a column that the condition leaves one value."""
        match condition:
            case Operation(name="is null", operands=(Name(name=name),)):
                pass
            case Operation(name="=", operands=(Name(name=name), NumberLiteral() | Quoted())):
                pass
            case _:
                return node
        one = self._book.knowledge.closed([name])
        return replace(node, keys=smallest(key - one for key in node.keys))

    def _filtered(self, node: Node, condition: Expression) -> Node:
        """The filter as near to its topic as it can be: what it leaves out is then not kept."""
        wanted = set(condition.columns)
        if isinstance(node, FilterNode):
            return (
                FilterNode(self._filtered(node.input, condition), node.condition, node.key, node.keys)
                if self._below(node, wanted)
                else filtered_by(node, condition)
            )
        if isinstance(node, JoinNode) and wanted:
            if node.kind in ("inner", "left") and wanted <= columns_of(node.left):
                return replace(node, left=self._filtered(node.left, condition))
            if node.kind in ("inner", "right") and wanted <= columns_of(node.right):
                return replace(node, right=self._filtered(node.right, condition))
        return filtered_by(node, condition)

    @staticmethod
    def _below(node: FilterNode, wanted: set[str]) -> bool:
        return isinstance(node.input, JoinNode) and any(wanted <= columns_of(one) for one in (node.input.left, node.input.right))

    def _plain_select(self, scope: Scope, node: Node, select: Select) -> PlannedRelation:
        numbers = {}
        for item in select.items:
            if isinstance(item.value, RowNumberCall):
                node, column = self._numbers.numbered(scope, node, item.value.at, item.value.partition, item.value.order)
                numbers[id(item)] = column
        others = [item for item in select.items if id(item) not in numbers]
        node, found = self._book.computed(node, [self._book.resolved(scope, item.value, "") for item in others])
        columns = numbers | {id(item): column for item, column in zip(others, found, strict=True)}
        names = self._book.named_items(select.items, [columns[id(item)] for item in select.items])
        if select.distinct_on:
            node = self._numbers.first_rows(scope, node, select)
        return PlannedRelation(node, names)


def _with_names(select: Select, first: Select) -> Select:
    """A branch's columns have the names of the first one's."""
    if select is first or len(select.items) != len(first.items):
        return select
    items = [replace(item, name=other.name) for item, other in zip(select.items, first.items, strict=True)]
    return replace(select, items=tuple(items))
