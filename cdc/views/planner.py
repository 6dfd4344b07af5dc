"""Syntax and the topics' schemas → the plan of a view, or the reason why it cannot be kept up exactly. Pure.

Every name is resolved to a column of the plan, so that ``cdc.expressions`` sees plain columns; aggregates and window functions are taken out of the expressions
around them and become columns of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from cdc.expressions import BOOL, Expression, PgType, type_of
from cdc.expressions.expression import checked
from cdc.expressions.pgtype import INT8, INTEGERS, JSONB, NUMERIC, TEXT
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.syntax import (
    Array,
    Case,
    Cast,
    Collated,
    FunctionCall,
    Name,
    NumberLiteral,
    Operation,
    Quoted,
    Syntax,
    Truth,
    children,
)
from cdc.model.topic import TopicSchema
from cdc.views.plan import (
    Aggregate,
    ComputedNode,
    FilterNode,
    GroupNode,
    JoinNode,
    Key,
    Knowledge,
    LeafNode,
    Node,
    NumberNode,
    Order,
    PlanColumn,
    UnionNode,
    columns_of,
    has_scale,
    smallest,
)
from cdc.views.syntax import (
    AggregateCall,
    Column,
    FromItem,
    JoinSyntax,
    OrderItem,
    Query,
    RowNumberCall,
    Select,
    SelectItem,
    Subquery,
    TableName,
)

_EQUAL: Final = frozenset(["bool", "int2", "int4", "int8", "text", "uuid", "date", "timestamp", "timestamptz"])
"""Types whose equal values are the same value, so that groups, joins and keys may be of them; and numeric with a scale."""
_ORDERED: Final = _EQUAL - {"text"}
MOST_BRANCHES: Final = 20
MOST_TABLES: Final = 20


@dataclass(slots=True)
class Relation:
    """A node with the names by which its columns are asked for, in order."""

    node: Node
    names: dict[str, PlanColumn]


@dataclass(slots=True)
class _Scope:
    """What a SELECT's expressions see: relations by alias."""

    tables: dict[str, Relation | _Topic] = field(default_factory=dict)
    merged: dict[str, PlanColumn] = field(default_factory=dict)
    """Columns of USING."""


@dataclass(slots=True)
class _Topic:
    """An occurrence of a topic, whose columns are taken as they are asked for."""

    leaf: LeafNode
    schema: TopicSchema


class Planner:
    """Plans one query. ``text``: the whole of it."""

    def __init__(self, text: str, topics: Mapping[str, TopicSchema]) -> None:
        self._text, self._topics = text, topics
        self.knowledge = Knowledge()
        self._made = 0
        self._tables = 0
        self._named: dict[str, Query] = {}
        self.kinds: dict[str, PlanColumn] = {}

    def query(self, query: Query) -> Relation:
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
        return branches[0] if len(branches) == 1 else self._union(query, branches)

    def _surroundings(self) -> tuple[tuple[str, Query], ...]:
        return tuple(self._named.items())

    # --- columns and expressions

    def _column(self, kind: PgType, source: PlanColumn | None = None) -> PlanColumn:
        self._made += 1
        made = PlanColumn(f"x{self._made}", kind, None if source is None else source.field)
        self.kinds[made.name] = made
        return made

    def _of_leaf(self, topic: _Topic, at: int, name: str) -> PlanColumn:
        found = topic.leaf.columns.get(name)
        if found is None:
            one = next((one for one in topic.schema.fields if one.name == name), None)
            if one is None:
                raise PartRefused(at, f"column {name} of {topic.schema.topic} does not exist", near(name, topic.schema.names))
            self._made += 1
            found = PlanColumn(f"x{self._made}", type_of(one), one)
            self.kinds[found.name] = found
            topic.leaf.columns[name] = found
        return found

    def _found(self, scope: _Scope, at: int, table: str, name: str) -> PlanColumn:
        if table:
            one = scope.tables.get(table)
            if one is None:
                raise PartRefused(at, f"{table} is not a table of this FROM", near(table, scope.tables))
            return self._of(one, at, name, table)
        if name in scope.merged:
            return scope.merged[name]
        having = [(alias, one) for alias, one in scope.tables.items() if name in self._names(one)]
        if len(having) > 1:
            raise PartRefused(at, f"column {name} is ambiguous", f"write {having[0][0]}.{name}")
        if not having:
            known = [known for one in scope.tables.values() for known in self._names(one)]
            raise PartRefused(at, f"column {name} does not exist", near(name, known))
        return self._of(having[0][1], at, name, having[0][0])

    def _of(self, one: Relation | _Topic, at: int, name: str, table: str) -> PlanColumn:
        if isinstance(one, _Topic):
            return self._of_leaf(one, at, name)
        if name not in one.names:
            raise PartRefused(at, f"column {table}.{name} does not exist", near(name, one.names))
        return one.names[name]

    def _names(self, one: Relation | _Topic) -> Sequence[str]:
        return one.schema.names if isinstance(one, _Topic) else list(one.names)

    def _resolved(self, scope: _Scope, syntax: Syntax, where: str) -> Syntax:
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
                table = one.table if isinstance(one, Column) else ""
                return Name(one.at, self._found(scope, one.at, table, one.name).name)
            return None

        return _replaced(syntax, change)

    def _expression(self, syntax: Syntax, expects: PgType | None = None) -> Expression:
        """``syntax``: resolved."""
        names = {one.name for one in _walk(syntax) if isinstance(one, Name)}
        return checked(syntax, self._text, {name: self.kinds[name].kind for name in sorted(names)}, expects)

    def _computed(self, node: Node, syntaxes: Sequence[Syntax]) -> tuple[Node, list[PlanColumn]]:
        """The node with a column for each of these resolved expressions; a plain column is itself."""
        made: list[tuple[PlanColumn, Expression]] = []
        found: list[PlanColumn] = []
        known: dict[Any, PlanColumn] = {}
        for syntax in syntaxes:
            bare = syntax.value if isinstance(syntax, Collated) else syntax
            if isinstance(bare, Name):
                if isinstance(syntax, Collated):
                    self._expression(syntax)
                found.append(self.kinds[bare.name])
                continue
            plain = _plain(syntax)
            if plain not in known:
                expression = self._expression(syntax)
                column = self._column(expression.type)
                if isinstance(syntax, Quoted | NumberLiteral | Truth):
                    self.knowledge.constants[column.name] = repr(plain)
                known[plain] = column
                made.append((column, expression))
            found.append(known[plain])
        return (ComputedNode(node, tuple(made), node.key, node.keys) if made else node), found

    # --- FROM

    def _from(self, scope: _Scope, item: FromItem) -> Node:
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

    def _topic(self, item: TableName) -> _Topic:
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
        topic = _Topic(leaf, schema)
        leaf.key = tuple(self._of_leaf(topic, item.at, one.name).name for one in schema.key)
        leaf.keys = (frozenset(leaf.key),)
        return topic

    def _join(self, scope: _Scope, item: JoinSyntax) -> Node:
        before = set(scope.tables)
        left = self._from(scope, item.left)
        mine = set(scope.tables) - before
        right = self._from(scope, item.right)
        others = set(scope.tables) - before - mine
        conditions = self._conditions(scope, item, mine, others)
        pairs: list[tuple[PlanColumn, PlanColumn]] = []
        rest: list[Syntax] = []
        repeated: list[tuple[int, tuple[PlanColumn, PlanColumn], tuple[PlanColumn, PlanColumn]]] = []
        for at, condition in conditions:
            pair = self._pair(scope, condition, mine, others)
            if pair is None:
                rest.append(condition)
            else:
                self._comparable(at, *pair)
                again = next((one for one in pairs if pair[0] is one[0] or pair[1] is one[1]), None)
                if again is None:
                    pairs.append(pair)
                elif pair != again:
                    repeated.append((at, again, pair))
        if not pairs:
            raise PartRefused(
                item.at,
                "a join without an equality of columns of both sides is a cross join: one change could reach every row",
                "write ON a.x = b.x",
            )
        behind: list[Syntax] = []
        for condition in rest:
            tables = self._tables_of(scope, condition)
            resolved = self._resolved(scope, condition, "ON")
            if item.kind == "inner":
                behind.append(resolved)
            elif item.kind == "left" and tables <= others:
                right = FilterNode(right, self._expression(resolved, BOOL), right.key, right.keys)
            elif item.kind == "right" and tables <= mine:
                left = FilterNode(left, self._expression(resolved, BOOL), left.key, left.keys)
            else:
                raise PartRefused(
                    condition.at,
                    f"ON of a {item.kind.upper()} JOIN can have equalities, and conditions on the side that may be missing",
                    "filter a side in a subquery first",
                )
        for at, first, second in repeated:  # a = x AND a = y: x = y, on the other side
            of_left = first[1] is second[1]
            names = [Name(at, pair[0 if of_left else 1].name) for pair in (first, second)]
            equal = Operation(at, "=", tuple(names))
            if item.kind == "inner":
                behind.append(equal)
            elif item.kind == "left" and not of_left:
                right = self._on(right, self._expression(equal, BOOL))
            elif item.kind == "right" and of_left:
                left = self._on(left, self._expression(equal, BOOL))
            else:
                raise PartRefused(
                    at, f"a {item.kind.upper()} JOIN by one column twice is not kept up", "filter a side in a subquery first"
                )
        on = tuple((a.name, b.name) for a, b in pairs)
        if item.kind == "inner":
            self.knowledge.equal += [pair for pair in on if self.kinds[pair[0]].kind == self.kinds[pair[1]].kind]
        for side, kinds in ((left, ("right", "full")), (right, ("left", "full"))):
            if item.kind in kinds:  # rows without a partner have NULL there
                for name in columns_of(side):
                    self.knowledge.constants.pop(name, None)
        node: Node = JoinNode(item.kind, left, right, on, (*left.key, *right.key), self._keys_of_join(item.kind, left, right, on))
        for resolved in behind:
            node = FilterNode(node, self._expression(resolved, BOOL), node.key, node.keys)
        return node

    def _conditions(self, scope: _Scope, item: JoinSyntax, mine: set[str], others: set[str]) -> list[tuple[int, Syntax]]:
        if item.on is not None:
            return [(one.at, one) for one in _conjuncts(item.on)]
        found: list[tuple[int, Syntax]] = []
        for name in item.using:
            sides = []
            for aliases in (mine, others):
                having = [alias for alias in scope.tables if alias in aliases and name.name in self._names(scope.tables[alias])]
                if len(having) != 1:
                    raise PartRefused(
                        name.at, f"column {name.name} of USING has to be in one table of each side", "write ON a.x = b.x"
                    )
                sides.append(Column(name.at, name.name, having[0]))
            if item.kind == "full":
                raise PartRefused(
                    name.at, "USING of a FULL JOIN makes a column of both sides", "write ON a.x = b.x, and coalesce(a.x, b.x)"
                )
            scope.merged[name.name] = self._found(scope, name.at, sides[item.kind == "right"].table, name.name)
            found.append((name.at, Operation(name.at, "=", (sides[0], sides[1]))))
        return found

    def _pair(self, scope: _Scope, condition: Syntax, mine: set[str], others: set[str]) -> tuple[PlanColumn, PlanColumn] | None:
        if not (
            isinstance(condition, Operation) and condition.name == "=" and all(isinstance(one, Name) for one in condition.operands)
        ):
            return None
        sides = [self._tables_of(scope, one) for one in condition.operands]
        columns = [
            self.kinds[one.name]
            for one in (self._resolved(scope, one, "ON") for one in condition.operands)
            if isinstance(one, Name)
        ]
        if sides[0] <= mine and sides[1] <= others:
            return columns[0], columns[1]
        if sides[0] <= others and sides[1] <= mine:
            return columns[1], columns[0]
        return None

    def _tables_of(self, scope: _Scope, syntax: Syntax) -> set[str]:
        found = set()
        for one in _walk(syntax):
            if isinstance(one, Name):
                table = one.table if isinstance(one, Column) else ""
                if table:
                    self._found(scope, one.at, table, one.name)
                    found.add(table)
                else:
                    self._found(scope, one.at, "", one.name)
                    found |= {alias for alias, other in scope.tables.items() if one.name in self._names(other)}
        return found

    def _comparable(self, at: int, left: PlanColumn, right: PlanColumn) -> None:
        for one in (left, right):
            self._has_equality(at, one, "a join")
        a, b = left.kind, right.kind
        if a.name == b.name:
            if a.name == "numeric" and a.bounds is not None and b.bounds is not None and a.bounds[1] != b.bounds[1]:
                raise PartRefused(at, f"a join of {a} and {b} is not kept up", "cast one side in a subquery")
        elif not (a in INTEGERS and b in INTEGERS):
            raise PartRefused(at, f"a join of {a} and {b} is not kept up", "cast one side in a subquery")

    def _has_equality(self, at: int, column: PlanColumn, what: str) -> None:
        kind = column.kind
        if kind.name in _EQUAL or has_scale(kind):
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

    def _keys_of_join(self, kind: str, left: Node, right: Node, on: Sequence[tuple[str, str]]) -> tuple[Key, ...]:
        both = [a | b for a in left.keys for b in right.keys]
        left_is_one = any(key <= self.knowledge.closed(a for a, _ in on) for key in left.keys)
        right_is_one = any(key <= self.knowledge.closed(b for _, b in on) for key in right.keys)
        if right_is_one and kind in ("inner", "left"):
            both += left.keys
        if left_is_one and kind in ("inner", "right"):
            both += right.keys
        return smallest(both)

    # --- SELECT

    def _select(self, select: Select) -> Relation:
        scope = _Scope()
        node = self._from(scope, select.source)
        if select.where is not None:
            for condition in _conjuncts(select.where):
                resolved = self._resolved(scope, condition, "WHERE")
                node = self._filtered(node, self._expression(resolved, BOOL))
        calls = [one for item in select.items for one in _walk(item.value) if isinstance(one, AggregateCall)]
        grouped = select.group is not None or select.having is not None or bool(calls)
        if grouped and select.distinct_on:
            raise PartRefused(select.at, "DISTINCT ON with aggregates is not kept up", "write the aggregates in a subquery")
        for item in select.items:
            if isinstance(item.value, RowNumberCall) and (grouped or select.distinct or select.distinct_on):
                raise PartRefused(
                    item.value.at, "row_number() with GROUP BY or DISTINCT is not kept up", "write one of them in a subquery"
                )
        relation = self._grouped(scope, node, select) if grouped else self._plain_select(scope, node, select)
        if select.distinct:
            relation = self._distinct(select, relation)
        return relation

    def _filtered(self, node: Node, condition: Expression) -> Node:
        """The filter as near to its topic as it can be: what it leaves out is then not kept."""
        wanted = set(condition.columns)
        if isinstance(node, FilterNode):
            return (
                FilterNode(self._filtered(node.input, condition), node.condition, node.key, node.keys)
                if self._below(node, wanted)
                else self._on(node, condition)
            )
        if isinstance(node, JoinNode) and wanted:
            if node.kind in ("inner", "left") and wanted <= columns_of(node.left):
                return replace(node, left=self._filtered(node.left, condition))
            if node.kind in ("inner", "right") and wanted <= columns_of(node.right):
                return replace(node, right=self._filtered(node.right, condition))
        return self._on(node, condition)

    @staticmethod
    def _below(node: FilterNode, wanted: set[str]) -> bool:
        return isinstance(node.input, JoinNode) and any(wanted <= columns_of(one) for one in (node.input.left, node.input.right))

    @staticmethod
    def _on(node: Node, condition: Expression) -> Node:
        return FilterNode(node, condition, node.key, node.keys)

    def _plain_select(self, scope: _Scope, node: Node, select: Select) -> Relation:
        numbers = {}
        for item in select.items:
            if isinstance(item.value, RowNumberCall):
                node, column = self._numbered(scope, node, item.value.at, item.value.partition, item.value.order)
                numbers[id(item)] = column
        others = [item for item in select.items if id(item) not in numbers]
        node, found = self._computed(node, [self._resolved(scope, item.value, "") for item in others])
        columns = numbers | {id(item): column for item, column in zip(others, found, strict=True)}
        names = self._named_items(select.items, [columns[id(item)] for item in select.items])
        if select.distinct_on:
            node = self._first_rows(scope, node, select)
        return Relation(node, names)

    def _first_rows(self, scope: _Scope, node: Node, select: Select) -> Node:
        count = len(select.distinct_on)
        first = [_plain(self._resolved(scope, one, "DISTINCT ON")) for one in select.distinct_on]
        order = [_plain(_bare(self._resolved(scope, one.value, "ORDER BY"))) for one in select.order[:count]]
        if select.order and {repr(one) for one in first} != {repr(one) for one in order}:
            raise PartRefused(
                select.at, "ORDER BY has to begin with the expressions of DISTINCT ON", "write them first, in any order"
            )
        node, column = self._numbered(scope, node, select.at, select.distinct_on, select.order[count:])
        partition = self._partition_of(node)
        numbered = NumberNode(partition.input, column, partition.partition, partition.order, partition.key, partition.keys, 1)
        numbered.keys = smallest([*node.keys, frozenset(one.name for one in partition.partition)])
        return numbered

    @staticmethod
    def _partition_of(node: Node) -> NumberNode:
        assert isinstance(node, NumberNode)
        return node

    def _numbered(
        self, scope: _Scope, node: Node, at: int, partition: Sequence[Syntax], order: Sequence[OrderItem]
    ) -> tuple[Node, PlanColumn]:
        if not partition:
            raise PartRefused(at, "a numbering of all rows is not kept up: one change could move every row", "write PARTITION BY")
        node, columns = self._computed(node, [_bare(self._resolved(scope, one, "PARTITION BY")) for one in partition])
        for one, column in zip(partition, columns, strict=True):
            self._has_equality(one.at, column, "a partition")
        columns = list(dict.fromkeys(columns))
        node, orders = self._orders(node, order, [self._resolved(scope, one.value, "ORDER BY") for one in order])
        if not self.knowledge.covers([*(one.column for one in orders), *(one.name for one in columns)], node.keys):
            raise PartRefused(
                at,
                f"the order is not total: {self._missing(node, columns, orders)}",
                "put the key's columns at the end of ORDER BY",
            )
        number = self._column(INT8)
        keys = smallest([*node.keys, frozenset([number.name, *(one.name for one in columns)])])
        return NumberNode(node, number, tuple(columns), orders, node.key, keys), number

    def _missing(self, node: Node, columns: Sequence[PlanColumn], orders: Sequence[Order]) -> str:
        there = self.knowledge.closed([*(one.name for one in columns), *(one.column for one in orders)])
        key = min(node.keys, key=lambda one: len(one - there))
        return f"rows can be equal in it, as {self._shown(key - there)} is not in it"

    def _shown(self, names: Key | set[str]) -> str:
        shown = sorted((one.field.name if (one := self.kinds[name]).field is not None else "a computed column") for name in names)
        return " and ".join(shown)

    def _orders(self, node: Node, items: Sequence[OrderItem], resolved: Sequence[Syntax]) -> tuple[Node, tuple[Order, ...]]:
        for item, syntax in zip(items, resolved, strict=True):
            if isinstance(syntax, NumberLiteral):
                raise PartRefused(item.at, "ORDER BY a number is not possible here", "name the column")
        node, columns = self._computed(node, [_bare(one) for one in resolved])
        found = []
        for item, syntax, column in zip(items, resolved, columns, strict=True):
            self._has_order(item.at, syntax, column)
            found.append(Order(column.name, item.descending, item.nulls_first))
        return node, tuple(found)

    def _has_order(self, at: int, syntax: Syntax, column: PlanColumn) -> None:
        kind = column.kind
        if kind.name == "text":
            if not (isinstance(syntax, Collated) or self._expression(syntax).collated):
                raise PartRefused(at, "the order of texts depends on the database's collation", 'write ORDER BY x COLLATE "C"')
            return
        if kind.name not in _ORDERED and not has_scale(kind):
            self._has_equality(at, column, "an order")

    def _named_items(self, items: Sequence[SelectItem], columns: Sequence[PlanColumn]) -> dict[str, PlanColumn]:
        names: dict[str, PlanColumn] = {}
        for item, column in zip(items, columns, strict=True):
            if not item.name:
                raise PartRefused(item.at, "the column has no name", "give it one with AS")
            if item.name in names:
                raise PartRefused(item.at, f"two columns are called {item.name}", "give one another name with AS")
            names[item.name] = column
        return names

    def _distinct(self, select: Select, relation: Relation) -> Relation:
        columns = list(dict.fromkeys(relation.names.values()))
        for item, column in zip(select.items, relation.names.values(), strict=True):
            self._has_equality(item.at, column, "DISTINCT")
        key = tuple(one.name for one in columns)
        return Relation(GroupNode(relation.node, tuple(columns), (), key, (frozenset(key),)), relation.names)

    # --- GROUP BY

    def _grouped(self, scope: _Scope, node: Node, select: Select) -> Relation:
        by = [self._group_item(scope, select, one) for one in select.group or ()]
        node, groups = self._computed(node, [_bare(one) for one in by])
        for syntax, column in zip(by, groups, strict=True):
            self._has_equality(syntax.at, column, "GROUP BY")
        grouping = {repr(_plain(_bare(one))): column for one, column in zip(by, groups, strict=True)}
        texts = [item.value for item in select.items] + ([select.having] if select.having is not None else [])
        resolved = [self._resolved(scope, one, "") for one in texts]
        aggregates: dict[str, Aggregate] = {}
        for call in (one for syntax in resolved for one in _outermost_aggregates(syntax)):
            if repr(_plain(call)) not in aggregates:
                node, aggregates[repr(_plain(call))] = self._aggregate(node, call, groups)
        distinct = tuple(dict.fromkeys(groups))
        key = tuple(one.name for one in distinct)
        of_all = tuple(aggregates.values())
        grouped = GroupNode(node, distinct, of_all, key, (frozenset(key),))
        if not distinct and not grouped.signed:
            call = next(
                one for syntax in resolved for one in _outermost_aggregates(syntax) if not aggregates[repr(_plain(one))].signed
            )
            raise PartRefused(
                call.at,
                f"{call.name} of all rows is not kept up: each change would read every row",
                "add GROUP BY, or keep to count, sum, avg, bool_and and bool_or",
            )
        behind = [self._behind(one, grouping, aggregates) for one in resolved]
        made: Node = grouped
        if select.having is not None:
            made = self._on(made, self._expression(behind[-1], BOOL))
        made, columns = self._computed(made, behind[: len(select.items)])
        return Relation(made, self._named_items(select.items, columns))

    def _group_item(self, scope: _Scope, select: Select, one: Syntax) -> Syntax:
        if isinstance(one, NumberLiteral):
            number = int(one.text) if one.text.isdigit() else 0
            if not 1 <= number <= len(select.items):
                raise PartRefused(one.at, f"GROUP BY {one.text} is not the number of a column", "name the column")
            return self._resolved(scope, select.items[number - 1].value, "GROUP BY")
        if isinstance(one, Name) and not isinstance(one, Column):
            known = any(one.name in self._names(table) for table in scope.tables.values()) or one.name in scope.merged
            item = next((item for item in select.items if item.name == one.name), None)
            if not known and item is not None:
                return self._resolved(scope, item.value, "GROUP BY")
        return self._resolved(scope, one, "GROUP BY")

    def _behind(self, syntax: Syntax, grouping: Mapping[str, PlanColumn], aggregates: Mapping[str, Aggregate]) -> Syntax:
        """The expression over the groups' columns."""

        def change(one: Syntax) -> Syntax | None:
            if isinstance(one, AggregateCall):
                return Name(one.at, aggregates[repr(_plain(one))].column.name)
            found = grouping.get(repr(_plain(one)))
            if found is not None:
                return Name(one.at, found.name)
            if isinstance(one, Name):
                raise PartRefused(
                    one.at,
                    f"column {self._shown({one.name})} is neither in GROUP BY nor in an aggregate",
                    "add it to GROUP BY, also where the key determines it",
                )
            return None

        return _replaced(syntax, change)

    def _aggregate(self, node: Node, call: AggregateCall, groups: Sequence[PlanColumn]) -> tuple[Node, Aggregate]:
        at, name = call.at, "bool_and" if call.name == "every" else call.name
        for inner in (*call.arguments, *([call.condition] if call.condition is not None else [])):
            if any(isinstance(one, AggregateCall) for one in _walk(inner)):
                raise PartRefused(inner.at, "aggregates cannot stand within each other", "write one of them in a subquery")
        condition = ""
        if call.condition is not None:
            self._expression(call.condition, BOOL)
            node, [column] = self._computed(node, [call.condition])
            condition = column.name
        wanted = 2 if name == "string_agg" else 1
        if call.arguments and len(call.arguments) != wanted:
            raise PartRefused(at, f"{name} takes {'one argument' if wanted == 1 else 'two arguments'}")
        if not call.arguments:
            return node, Aggregate(self._column(INT8), "count", condition=condition)
        syntax = call.arguments[0]
        node, [argument] = self._computed(node, [_bare(syntax) if isinstance(_bare(syntax), Name) else syntax])
        if call.distinct and name != "count":
            raise PartRefused(
                at, f"{name}(DISTINCT …) is not kept up", "write SELECT DISTINCT in a subquery, and aggregate over it"
            )
        if call.order and name not in ("array_agg", "string_agg", "jsonb_agg"):
            raise PartRefused(call.order[0].at, f"ORDER BY changes nothing in {name}", "leave it out")
        result = self._result(at, name, syntax, argument, call.distinct)
        orders: tuple[Order, ...] = ()
        separator: str | None = ""
        if name in ("array_agg", "string_agg", "jsonb_agg"):
            if not call.order:
                raise PartRefused(
                    at, f"{name} without ORDER BY is not kept up: its order is left to chance", f"write {name}(x ORDER BY …)"
                )
            node, orders = self._orders(node, call.order, [one.value for one in call.order])
            ordered = [one.column for one in orders]
            same = argument.name in ordered
            if not same and not self.knowledge.covers([*ordered, *(one.name for one in groups)], node.keys):
                raise PartRefused(
                    call.order[0].at,
                    f"the order is not total: {self._missing(node, groups, orders)}",
                    "put the key's columns at the end of ORDER BY",
                )
        if name == "string_agg":
            constant = call.arguments[1]
            if not isinstance(constant, Quoted):
                raise PartRefused(constant.at, "string_agg needs a constant between the texts")
            separator = constant.text
        return node, Aggregate(self._column(result), name, argument, call.distinct, condition, orders, separator)  # type: ignore[arg-type]

    def _result(self, at: int, name: str, syntax: Syntax, argument: PlanColumn, distinct: bool) -> PgType:
        kind = argument.kind
        if name == "count":
            if distinct:
                self._has_equality(at, argument, "count(DISTINCT …)")
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
        if name == "jsonb_agg":
            if kind.name not in ("bool", "int2", "int4", "int8", "numeric", "text", "uuid"):
                raise PartRefused(at, f"jsonb_agg of {kind} is not kept up", "of integers, numeric, boolean, text and uuid it is")
            return JSONB
        raise PartRefused(at, "array_agg is not kept up", "write jsonb_agg(x ORDER BY …), or string_agg")

    def _extreme(self, at: int, name: str, syntax: Syntax, argument: PlanColumn) -> PgType:
        kind = argument.kind
        if kind.name == "text":
            if not (isinstance(syntax, Collated) or self._expression(syntax).collated):
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
        if kind.name not in _ORDERED and kind.name != "numeric":
            raise PartRefused(at, f"{name} of {kind} is not kept up")
        return replace(kind, bounds=None)

    # --- UNION ALL

    def _union(self, query: Query, branches: Sequence[Relation]) -> Relation:
        if len(branches) > MOST_BRANCHES:
            raise PartRefused(query.at, f"more than {MOST_BRANCHES} branches are not possible", "make a view of some")
        first = branches[0]
        width = len(first.names)
        lists = [list(one.names.values()) for one in branches]
        for select, columns in zip(query.selects[1:], lists[1:], strict=True):
            if len(columns) != width:
                raise PartRefused(select.at, "the branches of UNION ALL have different numbers of columns")
            for item, column, other in zip(select.items, columns, lists[0], strict=True):
                if column.kind != other.kind or (column.kind.name in ("own", "opaque") and not _alike(column, other)):
                    raise PartRefused(
                        item.at, f"a branch has {column.kind} here, and the first one {other.kind}", "cast one of them"
                    )
        place = self._branch_place(query, lists)
        alike = [all(_alike(column, columns[0]) for column in columns) for columns in zip(*lists, strict=True)]
        names = {
            name: self._column(column.kind, column if same else None)
            for (name, column), same in zip(first.names.items(), alike, strict=True)
        }
        made = list(names.values())
        key = {made[place].name}
        for select, relation, columns in zip(query.selects, branches, lists, strict=True):
            places = {column.name: number for number, column in reversed(list(enumerate(columns)))}
            closed = self.knowledge.closed(places)
            one = next((one for one in relation.node.keys if one <= closed), None)
            if one is None:
                raise PartRefused(
                    select.at,
                    f"the branch lacks its rows' key: {self._shown(min(relation.node.keys, key=len))}",
                    "select it: UNION ALL keeps equal rows apart by it",
                )
            for name in sorted(one):
                same = next(other for other in places if name in self.knowledge.closed([other]))
                key.add(made[places[same]].name)
        taken = tuple(tuple(column.name for column in columns) for columns in lists)
        ordered = tuple(one.name for one in made if one.name in key)
        node = UnionNode(tuple(one.node for one in branches), tuple(made), taken, ordered, (frozenset(ordered),))
        return Relation(node, names)

    def _branch_place(self, query: Query, lists: Sequence[Sequence[PlanColumn]]) -> int:
        for place, columns in enumerate(zip(*lists, strict=True)):
            texts = [self.knowledge.constants.get(one.name) for one in columns]
            if None not in texts and len(set(texts)) == len(texts):
                return place
        raise PartRefused(
            query.selects[1].at,
            "UNION ALL needs a column that tells the branches apart",
            "write SELECT 'a' AS branch, … UNION ALL SELECT 'b', …",
        )


def _with_names(select: Select, first: Select) -> Select:
    """A branch's columns have the names of the first one's."""
    if select is first or len(select.items) != len(first.items):
        return select
    items = [replace(item, name=other.name) for item, other in zip(select.items, first.items, strict=True)]
    return replace(select, items=tuple(items))


def _alike(one: PlanColumn, other: PlanColumn) -> bool:
    if one.field is None or other.field is None:
        return False
    return one.field.type == other.field.type and one.field.value_type == other.field.value_type


# --- syntax


def _walk(syntax: Syntax) -> Iterator[Syntax]:
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
        yield from _walk(part)


def _outermost_aggregates(syntax: Syntax) -> Iterator[AggregateCall]:
    if isinstance(syntax, AggregateCall):
        yield syntax
        return
    for part in children(syntax):
        yield from _outermost_aggregates(part)


def _replaced(syntax: Syntax, change: Any) -> Syntax:
    """The same with the parts that ``change`` gives; it is asked from the outside inwards, and None leaves a part to be looked into."""
    found = change(syntax)
    if found is not None:
        return found  # type: ignore[no-any-return]

    def again(one: Syntax) -> Syntax:
        return _replaced(one, change)

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


def _bare(syntax: Syntax) -> Syntax:
    return syntax.value if isinstance(syntax, Collated) else syntax


def _conjuncts(syntax: Syntax) -> list[Syntax]:
    if isinstance(syntax, Operation) and syntax.name == "and":
        return [one for part in syntax.operands for one in _conjuncts(part)]
    return [syntax]


def _plain(part: Any) -> Any:
    """Equal for two parts that differ in their places only."""
    if isinstance(part, tuple):
        return tuple(_plain(one) for one in part)
    if hasattr(part, "__dataclass_fields__"):
        kind = "Name" if isinstance(part, Name) else type(part).__name__
        return kind, *(_plain(getattr(part, one.name)) for one in fields(part) if one.name != "at")
    return part
