"""The plan of a view: a tree of typed nodes. Pure.

A column keeps its number from the node that makes it to the top: nodes add columns, and none is renamed but by a union. So what is known of columns (which sets of
them tell rows apart, which are always equal, which are constant) is said once, by number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

from cdc.expressions import Expression, PgType, scalar_of
from cdc.expressions.outside import engine_arrow
from cdc.model.structure import Scalar
from cdc.model.topic import COMPUTED_TYPE, TopicField
from cdc.views.syntax import JoinKind


@dataclass(frozen=True, slots=True)
class PlanColumn:
    """``name``: unique in the plan. ``field``: the topic's field that it is, unchanged; None where it is computed."""

    name: str
    kind: PgType
    field: TopicField | None = None

    @property
    def held(self) -> pa.DataType:
        """The Arrow type of its values within the kernel."""
        if self.kind.name in ("own", "opaque") and self.field is not None:
            return pa.binary() if pa.types.is_binary(self.field.type) else pa.utf8()
        return engine_arrow(self.kind)

    def topic_field(self, name: str, key: bool) -> TopicField:
        """The field of a view's topic that it is. ``key``: of the view's."""
        source = self.field
        if source is not None:
            return TopicField(
                name, source.type, source.structure, key, 0, source.type_name, source.source_type, source.defined, source.protected
            )
        kind = self.kind
        return TopicField(name, kind.arrow, Scalar(scalar_of(kind)), key, 0, str(kind), f"{COMPUTED_TYPE}{kind}")


Key = frozenset[str]
"""Names of columns that tell a node's rows apart, NULL being a value."""


@dataclass(frozen=True, slots=True)
class Order:
    """One column to order by."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(eq=False, slots=True)
class LeafNode:
    """One occurrence of a topic. Columns are added while the query is planned; those of the key are always among them."""

    topic: str
    columns: dict[str, PlanColumn]
    """The topic's field → its column."""
    key: tuple[str, ...]
    keys: tuple[Key, ...] = ()


@dataclass(eq=False, slots=True)
class ComputedNode:
    """Adds computed columns."""

    input: Node
    made: tuple[tuple[PlanColumn, Expression], ...]
    key: tuple[str, ...]
    keys: tuple[Key, ...]


@dataclass(eq=False, slots=True)
class FilterNode:
    """Leaves the rows whose condition is true."""

    input: Node
    condition: Expression
    key: tuple[str, ...]
    keys: tuple[Key, ...]


@dataclass(eq=False, slots=True)
class JoinNode:
    """``on``: pairs of columns that are equal."""

    kind: JoinKind
    left: Node
    right: Node
    on: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    keys: tuple[Key, ...]


AggregateName = Literal[
    "count", "sum", "avg", "min", "max", "bool_and", "bool_or", "array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg"
]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """``argument``: empty for count(*). ``condition``: of FILTER, a boolean column. ``separator``: of string_agg. ``label``: of jsonb_object_agg, the names."""

    column: PlanColumn
    name: AggregateName
    argument: PlanColumn | None = None
    distinct: bool = False
    condition: str = ""
    order: tuple[Order, ...] = ()
    separator: str | None = ""
    label: PlanColumn | None = None

    @property
    def signed(self) -> bool:
        """It is kept up by adding and subtracting, without its rows."""
        if self.distinct or self.name not in ("count", "sum", "avg", "bool_and", "bool_or"):
            return False
        return self.argument is None or self.argument.kind.name != "numeric" or has_scale(self.argument.kind)


@dataclass(eq=False, slots=True)
class GroupNode:
    """``groups``: the columns that are grouped by; none: one row, always."""

    input: Node
    groups: tuple[PlanColumn, ...]
    aggregates: tuple[Aggregate, ...]
    key: tuple[str, ...]
    keys: tuple[Key, ...]

    @property
    def signed(self) -> bool:
        return all(one.signed for one in self.aggregates)


@dataclass(eq=False, slots=True)
class NumberNode:
    """Adds row_number() over partitions. ``most``: rows with a higher number are left out; 0: none is."""

    input: Node
    column: PlanColumn
    partition: tuple[PlanColumn, ...]
    order: tuple[Order, ...]
    key: tuple[str, ...]
    keys: tuple[Key, ...]
    most: int = 0


@dataclass(eq=False, slots=True)
class UnionNode:
    """All rows of the branches, whose columns are renamed by place. ``taken``: of each branch the columns in order."""

    branches: tuple[Node, ...]
    columns: tuple[PlanColumn, ...]
    taken: tuple[tuple[str, ...], ...]
    key: tuple[str, ...]
    keys: tuple[Key, ...]


Node = LeafNode | ComputedNode | FilterNode | JoinNode | GroupNode | NumberNode | UnionNode

MOST_KEYS: Final = 64


def inputs(node: Node) -> tuple[Node, ...]:
    match node:
        case LeafNode():
            return ()
        case JoinNode(left=left, right=right):
            return left, right
        case UnionNode(branches=branches):
            return branches
    return (node.input,)


def columns_of(node: Node) -> set[str]:
    """The columns that it has, before unused ones are left out."""
    match node:
        case LeafNode(columns=columns):
            return {one.name for one in columns.values()}
        case ComputedNode(input=below, made=made):
            return columns_of(below) | {one.name for one, _ in made}
        case FilterNode(input=below):
            return columns_of(below)
        case JoinNode(left=left, right=right):
            return columns_of(left) | columns_of(right)
        case GroupNode(groups=groups, aggregates=aggregates):
            return {one.name for one in groups} | {one.column.name for one in aggregates}
        case NumberNode(input=below, column=column):
            return columns_of(below) | {column.name}
        case UnionNode(columns=made):
            return {one.name for one in made}


def has_scale(kind: PgType) -> bool:
    """Whether it is numeric with a scale, as its values are held."""
    return kind.name == "numeric" and bool(pa.types.is_decimal(kind.arrow))


def leaves(node: Node) -> list[LeafNode]:
    """In order."""
    return [node] if isinstance(node, LeafNode) else [leaf for one in inputs(node) for leaf in leaves(one)]


def looked_up_first(node: Node) -> list[LeafNode]:
    """The leaves in the order in which they are best read from the beginning: of a join the side that the other one's rows find by its key, or that may be missing,
    comes first. So a row comes out once, whole, and is not replaced when its partner comes."""
    match node:
        case LeafNode():
            return [node]
        case JoinNode(kind=kind, left=left, right=right, on=on):
            left_is_found = any(key <= {a for a, _ in on} for key in left.keys)
            right_is_found = any(key <= {b for _, b in on} for key in right.keys)
            left_first = kind == "right" or (kind != "left" and left_is_found and not right_is_found)
            return [leaf for one in ((left, right) if left_first else (right, left)) for leaf in looked_up_first(one)]
    return [leaf for one in inputs(node) for leaf in looked_up_first(one)]


def smallest(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Without those that contain another one, in an order of their own."""
    found: list[Key] = []
    for key in sorted(set(keys), key=lambda one: (len(one), sorted(one))):
        if not any(other <= key for other in found):
            found.append(key)
    return tuple(found[:MOST_KEYS])


@dataclass(slots=True)
class Knowledge:
    """Facts about columns, by number: ``equal``: pairs that an inner join makes equal, ``constants``: the texts of constants."""

    equal: list[tuple[str, str]] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)

    def closed(self, columns: Iterable[str]) -> set[str]:
        """These columns and all that follow from them."""
        found = set(columns)
        while True:
            more = {b for pair in self.equal for a, b in (pair, pair[::-1]) if a in found} - found
            if not more:
                return found
            found |= more

    def covers(self, columns: Iterable[str], keys: Iterable[Key]) -> bool:
        """Whether rows that agree in ``columns`` are one row."""
        found = self.closed(columns)
        return any(key <= found for key in keys)
