"""A plan's nodes at work: each gives the rows of its result that a range of the log replaced, before and after.

A node looks at slices: the rows that agree in the columns of a join, a group or a partition. Which slices a range touches follows from its inputs' rows before it *and*
after it; the other rows of those slices, which the range left alone, come from what is kept of the inputs. So the slice as of a is these and the rows before, as of b
these and the rows after, and both are computed by the same statement. A parent and its children that are deleted at once, a row that loses its last partner, and one
that moves up into the first ten need no thought of their own.

Between the nodes, rows that are equal before and after may be among those that are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions import MEANINGS, Expression
from cdc.views.aggregates import ordered
from cdc.views.cells import conformed
from cdc.views.enginesql import quoted
from cdc.views.groupwork import SignedGroups, SlicedGroups
from cdc.views.hashes import Places
from cdc.views.held import ViewStopped, held, schema_of
from cdc.views.plan import (
    ComputedNode,
    FilterNode,
    GroupNode,
    JoinNode,
    LeafNode,
    Node,
    NumberNode,
    PlanColumn,
    UnionNode,
)
from cdc.views.rows import beside, joined, netted, present, taken
from cdc.views.state import KeptRelation, KernelState, Replacement
from cdc.views.work import SLICE, Deltas, KeptOperator, Maker, Operator, nothing, sliced_again, touched, untouched


class Workshop:
    """Makes the operators of one plan, and names what they keep."""

    def __init__(self, state: KernelState) -> None:
        self.state = state
        self._kept = 0

    def operator(self, node: Node, wanted: set[str]) -> Operator:
        """``wanted``: the columns that are read of it."""
        wanted = wanted | set(node.key)
        match node:
            case LeafNode():
                return LeafRows(self, node, (), {})
            case FilterNode(input=below, condition=condition):
                leaf, conditions = _filters(node)
                if leaf is not None:
                    return LeafRows(self, leaf, conditions, {})
                return Filtered(self.operator(below, wanted | set(condition.columns)), condition)
            case ComputedNode(input=below, made=made):
                used = tuple((column, expression) for column, expression in made if column.name in wanted)
                reads = {name for _, expression in used for name in expression.columns}
                return Computed(self.operator(below, (wanted - {one.name for one, _ in made}) | reads), used)
            case JoinNode():
                return Joined(self, node, wanted)
            case GroupNode():
                return SignedGroups(self, node) if node.signed else SlicedGroups(self, node)
            case NumberNode():
                return Numbered(self, node, wanted)
            case UnionNode():
                return United(self, node)

    def kept(self, node: Node, wanted: set[str], slices: Sequence[str]) -> KeptOperator:
        """The operator with its rows kept, which are looked up by these columns."""
        wanted = wanted | set(node.key) | set(slices)
        leaf, conditions = _filters(node)
        if leaf is not None:
            return LeafRows(self, leaf, conditions, {SLICE: slices})
        return KeptRows(self, self.operator(node, wanted), {SLICE: slices})

    def relation(self, schema: pa.Schema, key: Sequence[str], slices: Mapping[str, Sequence[str]]) -> KeptRelation:
        self._kept += 1
        return self.state.relation(f"kept{self._kept}", schema, key, slices)


def _filters(node: Node) -> tuple[LeafNode | None, tuple[Expression, ...]]:
    """The leaf below nothing but filters, and their conditions in order."""
    conditions: list[Expression] = []
    while isinstance(node, FilterNode):
        conditions.insert(0, node.condition)
        node = node.input
    return (node, tuple(conditions)) if isinstance(node, LeafNode) else (None, ())


# --- rows that are kept


class LeafRows:
    """A topic's rows that pass its filters."""

    def __init__(
        self, workshop: Maker, node: LeafNode, conditions: Sequence[Expression], slices: Mapping[str, Sequence[str]]
    ) -> None:
        self._node, self._conditions, self._state = node, conditions, workshop.state
        self.schema = schema_of(node.columns.values())
        self.key = node.key
        self._keys = {name: column for name, column in node.columns.items() if column.name in node.key}
        self.relation = workshop.relation(self.schema, node.key, slices)

    def prepared(self, deltas: Deltas) -> Replacement:
        delta = deltas.get(self._node.topic)
        if delta is None:
            return nothing(self.schema)
        rows = held(delta.rows, self._node.columns, self._node.topic)
        gone = held(delta.gone, self._keys, self._node.topic)
        before = self.schema.empty_table() if delta.fresh else self.relation.before(rows, gone, delta.emptied)
        after = rows
        for condition in self._conditions:
            after = _passing(after, condition)
        return netted(self._state, Replacement(before, after))

    def write(self, change: Replacement) -> None:
        self.relation.replace(change.before, change.after)

    def advance(self, deltas: Deltas) -> Replacement:
        change = self.prepared(deltas)
        self.write(change)
        return change


class KeptRows:
    """Another operator's rows."""

    def __init__(self, workshop: Maker, of: Operator, slices: Mapping[str, Sequence[str]]) -> None:
        self._of, self._state = of, workshop.state
        self.schema, self.key = of.schema, of.key
        self.relation = workshop.relation(of.schema, of.key, slices)

    def prepared(self, deltas: Deltas) -> Replacement:
        return netted(self._state, self._of.advance(deltas))

    def write(self, change: Replacement) -> None:
        self.relation.replace(change.before, change.after)


# --- row by row


class Filtered:
    """The rows whose condition is true."""

    def __init__(self, of: Operator, condition: Expression) -> None:
        self._of, self._condition = of, condition
        self.schema, self.key = of.schema, of.key

    def advance(self, deltas: Deltas) -> Replacement:
        change = self._of.advance(deltas)
        return Replacement(_passing(change.before, self._condition), _passing(change.after, self._condition))


class Computed:
    """Computed columns beside the others."""

    def __init__(self, of: Operator, made: Sequence[tuple[PlanColumn, Expression]]) -> None:
        self._of, self._made = of, made
        self.key = of.key
        self.schema = pa.schema([*of.schema, *schema_of([column for column, _ in made])])

    def advance(self, deltas: Deltas) -> Replacement:
        change = self._of.advance(deltas)
        return Replacement(self._with(change.before), self._with(change.after))

    def _with(self, rows: pa.Table) -> pa.Table:
        columns = {name: rows.column(name) for name in rows.column_names}
        for column, expression in self._made:
            columns[column.name] = _values(rows, expression).cast(column.held)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _values(rows: pa.Table, expression: Expression) -> pa.Array:
    if not rows.num_rows:
        return pa.nulls(0, pa.null())
    line, column = expression.place
    try:
        values, failed = expression.computed(
            {name: rows.column(name).combine_chunks() for name in expression.columns}, rows.num_rows
        )
    except ValueError as error:
        raise ViewStopped(
            f"line {line}, column {column}: {error}", hint="correct the row in the database, or let the view leave it out"
        ) from None
    if failed is not None:
        states = pc.unique(failed.drop_null()).to_pylist()
        meanings = ", ".join(f"{MEANINGS.get(state, 'an error')} ({state})" for state in sorted(states))
        count = len(failed) - failed.null_count
        raise ViewStopped(
            f"line {line}, column {column}: no value for {count:,} {'row' if count == 1 else 'rows'}: {meanings}",
            hint="correct the rows in the database, or let the view make something of them (nullif, coalesce) or leave them out (WHERE)",
        )
    return values


def _passing(rows: pa.Table, condition: Expression) -> pa.Table:
    if not rows.num_rows:
        return rows
    return rows.filter(pc.fill_null(_values(rows, condition).cast(pa.bool_()), False))


# --- joins


class Joined:
    """A join, by the columns that have to be equal."""

    def __init__(self, workshop: Maker, node: JoinNode, wanted: set[str]) -> None:
        self._node, self._state = node, workshop.state
        wanted = wanted | {name for pair in node.on for name in pair}
        self._left = workshop.kept(node.left, wanted, [a for a, _ in node.on])
        self._right = workshop.kept(node.right, wanted, [b for _, b in node.on])
        self.schema = pa.schema([*self._left.schema, *self._right.schema])
        self.key = node.key

    def advance(self, deltas: Deltas) -> Replacement:
        left, right = self._left.prepared(deltas), self._right.prepared(deltas)
        if left.empty and right.empty:
            return nothing(self.schema)
        kind = self._node.kind
        if right.empty and kind in ("inner", "left"):
            return self._beside(left, 0)
        if left.empty and kind in ("inner", "right"):
            return self._beside(right, 1)
        by_left, by_right = self._slices(left, 0), self._slices(right, 1)
        both = [pa.concat_tables([by_left[side], by_right[side]]) for side in (0, 1)]
        other_left = untouched(self._state, self._left, left, both[0] if kind in ("right", "full") else by_right[0])
        other_right = untouched(self._state, self._right, right, both[1] if kind in ("left", "full") else by_left[1])
        self._left.write(left)
        self._right.write(right)
        versions = [
            joined(kind, pa.concat_tables([other_left, a]), pa.concat_tables([other_right, b]), self._node.on)
            for a, b in ((left.before, right.before), (left.after, right.after))
        ]
        return Replacement(*versions)

    def _beside(self, change: Replacement, side: int) -> Replacement:
        """One side's change, each row beside its partners on the other side, which the range left alone."""
        mine, other = (self._left, self._right) if side == 0 else (self._right, self._left)
        which, partners = self._partners(pa.concat_tables([change.before, change.after]), side, other)
        mine.write(change)
        middle = change.before.num_rows
        split = int(np.searchsorted(which, middle))
        outer = self._node.kind != "inner"
        before = beside(change.before, which[:split], partners.slice(0, split), outer)
        after = beside(change.after, which[split:] - middle, partners.slice(split), outer)
        return Replacement(before.select(self.schema.names), after.select(self.schema.names))

    def _partners(self, rows: pa.Table, side: int, other: KeptOperator) -> tuple[Places, pa.Table]:
        """Pairs of a row, by its place, and one of the other side with the values that are joined by; in the order of the places."""
        wanted = pa.schema([other.schema.field(pair[1 - side]) for pair in self._node.on])
        columns = [
            _tried(rows.column(pair[side]).combine_chunks(), one.type) for pair, one in zip(self._node.on, wanted, strict=True)
        ]
        values = pa.Table.from_arrays(columns, schema=wanted)
        there = present(values)
        which, partners = other.relation.partners(SLICE, taken(values, there))
        return there[which], partners

    def _slices(self, change: Replacement, side: int) -> tuple[pa.Table, pa.Table]:
        """The values that are joined by, in the types of the left and of the right side. A value that the other side's type cannot hold has no partner."""
        mine = [pair[side] for pair in self._node.on]
        rows = touched(change, mine).drop_null()
        found = []
        for other, schema in ((0, self._left.schema), (1, self._right.schema)):
            wanted = pa.schema([schema.field(pair[other]) for pair in self._node.on])
            columns = [_tried(rows.column(name).combine_chunks(), one.type) for name, one in zip(mine, wanted, strict=True)]
            found.append(pa.Table.from_arrays(columns, schema=wanted).drop_null())
        return found[0], found[1]


def _tried(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Integers of another width, NULL for those that have no room."""
    if values.type == kind or not pa.types.is_integer(kind):
        return values.cast(kind)
    bits = kind.bit_width - 1
    if values.type.bit_width <= kind.bit_width:
        return values.cast(kind)
    fits = pc.and_(pc.greater_equal(values, -(2**bits)), pc.less(values, 2**bits))
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(kind)


# --- partitions


class Numbered:
    """The rows of partitions, numbered in an order."""

    def __init__(self, workshop: Maker, node: NumberNode, wanted: set[str]) -> None:
        self._node, self._state = node, workshop.state
        self._partition = [one.name for one in node.partition]
        reads = (wanted - {node.column.name}) | {one.column for one in node.order}
        self._of = workshop.kept(node.input, reads, self._partition)
        self.schema = pa.schema([*self._of.schema, *schema_of([node.column])])
        self.key = node.key

    def advance(self, deltas: Deltas) -> Replacement:
        return sliced_again(self._state, self._of, deltas, self._partition, self.schema, self._rows)

    def _rows(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema.empty_table()
        order = f" ORDER BY {ordered(self._node.order)}" if self._node.order else ""
        partition = ", ".join(map(quoted, self._partition))
        most = f" QUALIFY number <= {self._node.most}" if self._node.most else ""
        # The engine is asked for places: what it gives back as a row's value may be one that is only equal to it, 0 for -0.
        members = rows.select(list(dict.fromkeys([*self._partition, *(one.column for one in self._node.order)])))
        numbers = self._state.queried(
            f"SELECT place, row_number() OVER (PARTITION BY {partition}{order}) AS number FROM members{most}",
            {"members": members.append_column("place", pa.array(np.arange(len(rows))))},
        )
        found = taken(rows, numbers.column("place").to_numpy())
        return conformed(found.append_column(self._node.column.name, numbers.column("number")), self.schema)


class United:
    """The rows of several branches."""

    def __init__(self, workshop: Maker, node: UnionNode) -> None:
        self._node = node
        self.schema, self.key = schema_of(node.columns), node.key
        self._branches = [workshop.operator(one, set(taken)) for one, taken in zip(node.branches, node.taken, strict=True)]

    def advance(self, deltas: Deltas) -> Replacement:
        changes = [one.advance(deltas) for one in self._branches]
        return Replacement(self._all([one.before for one in changes]), self._all([one.after for one in changes]))

    def _all(self, tables: Sequence[pa.Table]) -> pa.Table:
        renamed = [
            pa.Table.from_arrays([table.column(name) for name in taken], schema=self.schema)
            for table, taken in zip(tables, self._node.taken, strict=True)
        ]
        return pa.concat_tables(renamed)
