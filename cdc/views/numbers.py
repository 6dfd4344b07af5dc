"""Rows numbered in partitions: row_number() and DISTINCT ON, planned. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.expressions.pgtype import INT8
from cdc.expressions.refusal import PartRefused
from cdc.expressions.syntax import Syntax
from cdc.views.columns import PlanColumns, Scope
from cdc.views.parts import bare, plain
from cdc.views.plan import Node, NumberNode, PlanColumn, smallest
from cdc.views.syntax import OrderItem, Select


class NumberPlanner:
    """Plans the numberings of one query."""

    def __init__(self, book: PlanColumns) -> None:
        self._book = book

    def first_rows(self, scope: Scope, node: Node, select: Select) -> Node:
        count = len(select.distinct_on)
        first = [plain(self._book.resolved(scope, one, "DISTINCT ON")) for one in select.distinct_on]
        order = [plain(bare(self._book.resolved(scope, one.value, "ORDER BY"))) for one in select.order[:count]]
        if select.order and {repr(one) for one in first} != {repr(one) for one in order}:
            raise PartRefused(
                select.at, "ORDER BY has to begin with the expressions of DISTINCT ON", "write them first, in any order"
            )
        node, column = self.numbered(scope, node, select.at, select.distinct_on, select.order[count:])
        partition = self._partition_of(node)
        numbered = NumberNode(partition.input, column, partition.partition, partition.order, partition.key, partition.keys, 1)
        numbered.keys = smallest([*node.keys, frozenset(one.name for one in partition.partition)])
        return numbered

    @staticmethod
    def _partition_of(node: Node) -> NumberNode:
        assert isinstance(node, NumberNode)
        return node

    def numbered(
        self, scope: Scope, node: Node, at: int, partition: Sequence[Syntax], order: Sequence[OrderItem]
    ) -> tuple[Node, PlanColumn]:
        if not partition:
            raise PartRefused(at, "a numbering of all rows is not kept up: one change could move every row", "write PARTITION BY")
        node, columns = self._book.computed(node, [bare(self._book.resolved(scope, one, "PARTITION BY")) for one in partition])
        for one, column in zip(partition, columns, strict=True):
            self._book.has_equality(one.at, column, "a partition")
        columns = list(dict.fromkeys(columns))
        node, orders = self._book.orders(node, order, [self._book.resolved(scope, one.value, "ORDER BY") for one in order])
        if not self._book.knowledge.covers([*(one.column for one in orders), *(one.name for one in columns)], node.keys):
            raise PartRefused(
                at,
                f"the order is not total: {self._book.missing(node, columns, orders)}",
                "put the key's columns at the end of ORDER BY",
            )
        number = self._book.column(INT8)
        keys = smallest([*node.keys, frozenset([number.name, *(one.name for one in columns)])])
        return NumberNode(node, number, tuple(columns), orders, node.key, keys), number
