"""A plan's nodes at work: each gives the rows of its result that a range of the log replaced, before and after.

A node looks at slices: the rows that agree in the columns of a join, a group or a partition. Which slices a range touches follows from its inputs' rows before it *and*
after it; the other rows of those slices, which the range left alone, come from what is kept of the inputs. So the slice as of a is these and the rows before, as of b
these and the rows after, and both are computed by the same statement. A parent and its children that are deleted at once, a row that loses its last partner, and one
that moves up into the first ten need no thought of their own.

Between the nodes, rows that are equal before and after may be among those that are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions import MEANINGS, Expression
from cdc.views.aggregates import Finish, of_sums, ordered, sliced, where
from cdc.views.contract import Delta
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
from cdc.views.rows import distinct, netted, without
from cdc.views.state import Change, Relation, State, conformed, engine_type, quoted

Deltas = Mapping[str, Delta]


class Operator(Protocol):
    """A node at work. Its rows have the columns of ``schema``, the node's key among them."""

    schema: pa.Schema
    key: tuple[str, ...]

    def advance(self, deltas: Deltas) -> Change:
        """The rows that the range replaced. What is kept is then as of its end."""
        ...


class KeptOperator(Protocol):
    """An operator whose rows are kept, to be looked up by slice."""

    schema: pa.Schema
    relation: Relation

    def prepared(self, deltas: Deltas) -> Change:
        """As ``advance``, but what is kept is still as of the range's beginning; ``write`` follows."""
        ...

    def write(self, change: Change) -> None: ...


class Workshop:
    """Makes the operators of one plan, and names what they keep."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._kept = 0

    def operator(self, node: Node, wanted: set[str]) -> Operator:
        """``wanted``: the columns that are read of it."""
        wanted = wanted | set(node.key)
        match node:
            case LeafNode():
                return Leaf(self, node, (), {})
            case FilterNode(input=below, condition=condition):
                leaf, conditions = _filters(node)
                if leaf is not None:
                    return Leaf(self, leaf, conditions, {})
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
            return Leaf(self, leaf, conditions, {_SLICE: slices})
        return Kept(self, self.operator(node, wanted), {_SLICE: slices})

    def relation(self, schema: pa.Schema, key: Sequence[str], slices: Mapping[str, Sequence[str]]) -> Relation:
        self._kept += 1
        return self.state.relation(f"kept{self._kept}", schema, key, slices)


_SLICE: Final = "slice"


def _filters(node: Node) -> tuple[LeafNode | None, tuple[Expression, ...]]:
    """The leaf below nothing but filters, and their conditions in order."""
    conditions: list[Expression] = []
    while isinstance(node, FilterNode):
        conditions.insert(0, node.condition)
        node = node.input
    return (node, tuple(conditions)) if isinstance(node, LeafNode) else (None, ())


# --- rows that are kept


class Leaf:
    """A topic's rows that pass its filters."""

    def __init__(
        self, workshop: Workshop, node: LeafNode, conditions: Sequence[Expression], slices: Mapping[str, Sequence[str]]
    ) -> None:
        self._node, self._conditions, self._state = node, conditions, workshop.state
        self.schema = schema_of(node.columns.values())
        self.key = node.key
        self._keys = {name: column for name, column in node.columns.items() if column.name in node.key}
        self.relation = workshop.relation(self.schema, node.key, slices)

    def prepared(self, deltas: Deltas) -> Change:
        delta = deltas.get(self._node.topic)
        if delta is None:
            return _nothing(self.schema)
        rows = held(delta.rows, self._node.columns, self._node.topic)
        gone = held(delta.gone, self._keys, self._node.topic)
        before = self.relation.before(rows, gone, delta.emptied)
        after = rows
        for condition in self._conditions:
            after = _passing(after, condition)
        return netted(self._state, Change(before, after))

    def write(self, change: Change) -> None:
        self.relation.replace(change.before, change.after)

    def advance(self, deltas: Deltas) -> Change:
        change = self.prepared(deltas)
        self.write(change)
        return change


class Kept:
    """Another operator's rows."""

    def __init__(self, workshop: Workshop, of: Operator, slices: Mapping[str, Sequence[str]]) -> None:
        self._of, self._state = of, workshop.state
        self.schema, self.key = of.schema, of.key
        self.relation = workshop.relation(of.schema, of.key, slices)

    def prepared(self, deltas: Deltas) -> Change:
        return netted(self._state, self._of.advance(deltas))

    def write(self, change: Change) -> None:
        self.relation.replace(change.before, change.after)


def _untouched(state: State, kept: KeptOperator, change: Change, slices: pa.Table) -> pa.Table:
    """The rows of these slices that the range left alone."""
    return without(state, kept.relation.of(_SLICE, slices), change.before, kept.relation.key)


# --- row by row


class Filtered:
    """The rows whose condition is true."""

    def __init__(self, of: Operator, condition: Expression) -> None:
        self._of, self._condition = of, condition
        self.schema, self.key = of.schema, of.key

    def advance(self, deltas: Deltas) -> Change:
        change = self._of.advance(deltas)
        return Change(_passing(change.before, self._condition), _passing(change.after, self._condition))


class Computed:
    """Computed columns beside the others."""

    def __init__(self, of: Operator, made: Sequence[tuple[PlanColumn, Expression]]) -> None:
        self._of, self._made = of, made
        self.key = of.key
        self.schema = pa.schema([*of.schema, *schema_of([column for column, _ in made])])

    def advance(self, deltas: Deltas) -> Change:
        change = self._of.advance(deltas)
        return Change(self._with(change.before), self._with(change.after))

    def _with(self, rows: pa.Table) -> pa.Table:
        columns = {name: rows.column(name) for name in rows.column_names}
        for column, expression in self._made:
            columns[column.name] = _values(rows, expression).cast(column.held)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _values(rows: pa.Table, expression: Expression) -> pa.Array:
    if not rows.num_rows:
        return pa.nulls(0, pa.null())
    try:
        values, failed = expression.computed(
            {name: rows.column(name).combine_chunks() for name in expression.columns}, rows.num_rows
        )
    except ValueError as error:
        raise ViewStopped(str(error), hint="correct the row in the database, or let the view leave it out") from None
    if failed is not None:
        states = pc.unique(failed.drop_null()).to_pylist()
        meanings = ", ".join(f"{MEANINGS.get(state, 'an error')} ({state})" for state in sorted(states))
        count = len(failed) - failed.null_count
        raise ViewStopped(
            f"an expression has no value for {count:,} {'row' if count == 1 else 'rows'}: {meanings}",
            hint="correct the rows in the database, or let the view's WHERE leave them out",
        )
    return values


def _passing(rows: pa.Table, condition: Expression) -> pa.Table:
    if not rows.num_rows:
        return rows
    return rows.filter(pc.fill_null(_values(rows, condition).cast(pa.bool_()), False))


# --- joins


class Joined:
    """A join, by the columns that have to be equal."""

    def __init__(self, workshop: Workshop, node: JoinNode, wanted: set[str]) -> None:
        self._node, self._state = node, workshop.state
        wanted = wanted | {name for pair in node.on for name in pair}
        self._left = workshop.kept(node.left, wanted, [a for a, _ in node.on])
        self._right = workshop.kept(node.right, wanted, [b for _, b in node.on])
        self.schema = pa.schema([*self._left.schema, *self._right.schema])
        self.key = node.key

    def advance(self, deltas: Deltas) -> Change:
        left, right = self._left.prepared(deltas), self._right.prepared(deltas)
        if left.empty and right.empty:
            return _nothing(self.schema)
        kind = self._node.kind
        by_left, by_right = self._slices(left, 0), self._slices(right, 1)
        both = [pa.concat_tables([by_left[side], by_right[side]]) for side in (0, 1)]
        other_left = _untouched(self._state, self._left, left, both[0] if kind in ("right", "full") else by_right[0])
        other_right = _untouched(self._state, self._right, right, both[1] if kind in ("left", "full") else by_left[1])
        self._left.write(left)
        self._right.write(right)
        versions = [
            self._rows(pa.concat_tables([other_left, a]), pa.concat_tables([other_right, b]))
            for a, b in ((left.before, right.before), (left.after, right.after))
        ]
        return Change(*versions)

    def _slices(self, change: Change, side: int) -> tuple[pa.Table, pa.Table]:
        """The values that are joined by, in the types of the left and of the right side. A value that the other side's type cannot hold has no partner."""
        mine = [pair[side] for pair in self._node.on]
        rows = _touched(change, mine).drop_null()
        found = []
        for other, schema in ((0, self._left.schema), (1, self._right.schema)):
            wanted = pa.schema([schema.field(pair[other]) for pair in self._node.on])
            columns = [_tried(rows.column(name).combine_chunks(), one.type) for name, one in zip(mine, wanted, strict=True)]
            found.append(pa.Table.from_arrays(columns, schema=wanted).drop_null())
        return found[0], found[1]

    def _rows(self, left: pa.Table, right: pa.Table) -> pa.Table:
        kind = self._node.kind
        if not (left.num_rows if kind == "left" else right.num_rows if kind == "right" else left.num_rows or right.num_rows):
            return self.schema.empty_table()
        on = " AND ".join(f"l.{quoted(a)} = r.{quoted(b)}" for a, b in self._node.on)
        return conformed(
            self._state.queried(
                f"SELECT l.*, r.* FROM lefts l {kind.upper()} JOIN rights r ON {on}", {"lefts": left, "rights": right}
            ),
            self.schema,
        )


def _tried(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Integers of another width, NULL for those that have no room."""
    if values.type == kind or not pa.types.is_integer(kind):
        return values.cast(kind)
    bits = kind.bit_width - 1
    if values.type.bit_width <= kind.bit_width:
        return values.cast(kind)
    fits = pc.and_(pc.greater_equal(values, -(2**bits)), pc.less(values, 2**bits))
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(kind)


# --- groups


class SignedGroups:
    """Groups whose aggregates are added to and subtracted from. No rows are kept, only sums."""

    def __init__(self, workshop: Workshop, node: GroupNode) -> None:
        self._node, self._state = node, workshop.state
        reads = {one.argument.name for one in node.aggregates if one.argument} | {
            one.condition for one in node.aggregates if one.condition
        }
        self._of = workshop.operator(node.input, reads | {one.name for one in node.groups})
        self.key = node.key
        self.schema = schema_of([*node.groups, *(one.column for one in node.aggregates)])
        self._groups = [one.name for one in node.groups]
        parts = {"n": pa.int64()}
        for number, one in enumerate(node.aggregates):
            parts[f"n{number}"] = pa.int64()
            if one.name in ("sum", "avg"):
                assert one.argument is not None
                kind = one.argument.held
                parts[f"s{number}"] = pa.decimal128(38, kind.scale if pa.types.is_decimal(kind) else 0)
            elif one.name in ("bool_and", "bool_or"):
                parts[f"s{number}"] = pa.int64()
        self._parts = parts
        self._sums = pa.schema([*schema_of(node.groups), *parts.items(), ("one", pa.int8())])
        self._relation = workshop.relation(self._sums, self._groups or ["one"], {})

    def advance(self, deltas: Deltas) -> Change:
        change = self._of.advance(deltas)
        if change.empty and self._groups:
            return _nothing(self.schema)
        added = self._added(change)
        before = self._relation.of("", added.select(self._groups or ["one"]))
        after = self._total(before, added)
        self._relation.replace(before, after)
        return netted(self._state, Change(self._finished(before), self._finished(after)))

    def _added(self, change: Change) -> pa.Table:
        rows = pa.concat_tables(
            [
                change.before.append_column("sign", pa.array([-1] * change.before.num_rows, pa.int8())),
                change.after.append_column("sign", pa.array([1] * change.after.num_rows, pa.int8())),
            ]
        )
        if self._groups and not rows.num_rows:
            return self._sums.empty_table()
        made = ["coalesce(sum(sign), 0) AS n"]
        for number, one in enumerate(self._node.aggregates):
            there = [f"{quoted(one.condition)}"] if one.condition else []
            value = quoted(one.argument.name) if one.argument is not None else ""
            if value:
                there.append(f"{value} IS NOT NULL")
            made.append(f"coalesce(sum(sign) {where(there)}, 0) AS n{number}")
            if one.name in ("sum", "avg"):
                kind = engine_type(self._parts[f"s{number}"])
                signs = [f"coalesce(CAST(sum({value}) {where([*there, f'sign = {sign}'])} AS {kind}), 0)" for sign in (1, -1)]
                made.append(f"CAST({signs[0]} - {signs[1]} AS {kind}) AS s{number}")
            elif one.name in ("bool_and", "bool_or"):
                made.append(f"coalesce(sum(sign) {where([*there, value])}, 0) AS s{number}")
        groups = [quoted(one) for one in self._groups]
        behind = f" GROUP BY {', '.join(groups)}" if groups else ""
        return conformed(
            self._asked(f"SELECT {', '.join([*groups, *made, '1 AS one'])} FROM changed{behind}", {"changed": rows}), self._sums
        )

    def _total(self, before: pa.Table, added: pa.Table) -> pa.Table:
        groups = [quoted(one) for one in self._groups]
        sums = [f"CAST(sum({name}) AS {engine_type(kind)}) AS {name}" for name, kind in self._parts.items()]
        rows = pa.concat_tables([before, added])
        behind = f" GROUP BY {', '.join(groups)} HAVING sum(n) <> 0" if groups else ""
        return conformed(
            self._asked(f"SELECT {', '.join([*groups, *sums, '1 AS one'])} FROM parts{behind}", {"parts": rows}), self._sums
        )

    def _asked(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        return _asked(self._state, sql, tables)

    def _finished(self, sums: pa.Table) -> pa.Table:
        columns = {name: sums.column(name) for name in self._groups}
        for number, one in enumerate(self._node.aggregates):
            count = sums.column(f"n{number}").combine_chunks()
            total = sums.column(f"s{number}").combine_chunks() if f"s{number}" in self._parts else count
            columns[one.column.name] = of_sums(one.name, one.column, count, total)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


class SlicedGroups:
    """Groups that are computed again from all of their rows, which are kept."""

    def __init__(self, workshop: Workshop, node: GroupNode) -> None:
        self._node, self._state = node, workshop.state
        reads = {one.argument.name for one in node.aggregates if one.argument} | {
            one.condition for one in node.aggregates if one.condition
        }
        reads |= {order.column for one in node.aggregates for order in one.order}
        self._groups = [one.name for one in node.groups]
        self._of = workshop.kept(node.input, reads, self._groups)
        self.key = node.key
        self.schema = schema_of([*node.groups, *(one.column for one in node.aggregates)])

    def advance(self, deltas: Deltas) -> Change:
        change = self._of.prepared(deltas)
        if change.empty:
            return _nothing(self.schema)
        other = _untouched(self._state, self._of, change, _touched(change, self._groups))
        self._of.write(change)
        versions = [self._rows(pa.concat_tables([other, one])) for one in (change.before, change.after)]
        return netted(self._state, Change(*versions))

    def _rows(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema.empty_table()
        groups = [quoted(one) for one in self._groups]
        made: list[str] = []
        finish: list[tuple[str, Finish]] = []
        for number, one in enumerate(self._node.aggregates):
            sql, last = sliced(number, one)
            made += sql
            finish.append((one.column.name, last))
        found = _asked(
            self._state, f"SELECT {', '.join([*groups, *made])} FROM members GROUP BY {', '.join(groups)}", {"members": rows}
        )
        parts = {name: found.column(name).combine_chunks() for name in found.column_names}
        columns = {name: parts[name].cast(self.schema.field(name).type) for name in self._groups}
        columns |= {name: last(parts) for name, last in finish}
        return pa.Table.from_arrays(
            [columns[name].cast(self.schema.field(name).type) for name in self.schema.names], schema=self.schema
        )


# --- partitions


class Numbered:
    """The rows of partitions, numbered in an order."""

    def __init__(self, workshop: Workshop, node: NumberNode, wanted: set[str]) -> None:
        self._node, self._state = node, workshop.state
        self._partition = [one.name for one in node.partition]
        reads = (wanted - {node.column.name}) | {one.column for one in node.order}
        self._of = workshop.kept(node.input, reads, self._partition)
        self.schema = pa.schema([*self._of.schema, *schema_of([node.column])])
        self.key = node.key

    def advance(self, deltas: Deltas) -> Change:
        change = self._of.prepared(deltas)
        if change.empty:
            return _nothing(self.schema)
        other = _untouched(self._state, self._of, change, _touched(change, self._partition))
        self._of.write(change)
        versions = [self._rows(pa.concat_tables([other, one])) for one in (change.before, change.after)]
        return netted(self._state, Change(*versions))

    def _rows(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema.empty_table()
        order = f" ORDER BY {ordered(self._node.order)}" if self._node.order else ""
        window = f"row_number() OVER (PARTITION BY {', '.join(map(quoted, self._partition))}{order})"
        most = f" QUALIFY {quoted(self._node.column.name)} <= {self._node.most}" if self._node.most else ""
        return conformed(
            self._state.queried(f"SELECT *, {window} AS {quoted(self._node.column.name)} FROM members{most}", {"members": rows}),
            self.schema,
        )


class United:
    """The rows of several branches."""

    def __init__(self, workshop: Workshop, node: UnionNode) -> None:
        self._node = node
        self.schema, self.key = schema_of(node.columns), node.key
        self._branches = [workshop.operator(one, set(taken)) for one, taken in zip(node.branches, node.taken, strict=True)]

    def advance(self, deltas: Deltas) -> Change:
        changes = [one.advance(deltas) for one in self._branches]
        return Change(self._all([one.before for one in changes]), self._all([one.after for one in changes]))

    def _all(self, tables: Sequence[pa.Table]) -> pa.Table:
        renamed = [
            pa.Table.from_arrays([table.column(name) for name in taken], schema=self.schema)
            for table, taken in zip(tables, self._node.taken, strict=True)
        ]
        return pa.concat_tables(renamed)


# --- changes


def _nothing(schema: pa.Schema) -> Change:
    return Change(schema.empty_table(), schema.empty_table())


def _touched(change: Change, names: Sequence[str]) -> pa.Table:
    """The values of these columns in rows before and after."""
    return distinct(pa.concat_tables([change.before.select(names), change.after.select(names)]), names)


def _asked(state: State, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """As ``State.queried``, of sums, which may have no room."""
    try:
        return state.queried(sql, tables)
    except (duckdb.ConversionException, duckdb.OutOfRangeException):
        raise ViewStopped(
            "a sum is out of range", hint="write sum(x::numeric(38, 2)), or let the view's WHERE leave the rows out"
        ) from None
