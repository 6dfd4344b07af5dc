"""The common part of the operators of a view's plan: how they are asked, who makes them, and which slices a range touches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import duckdb
import pyarrow as pa

from cdc.views.contract import Delta
from cdc.views.held import ViewStopped
from cdc.views.plan import Node
from cdc.views.rows import distinct, netted, without
from cdc.views.state import KeptRelation, KernelState, Replacement

SLICE: Final = "slice"
Deltas = Mapping[str, Delta]


class Operator(Protocol):
    """A node at work. Its rows have the columns of ``schema``, the node's key among them."""

    schema: pa.Schema
    key: tuple[str, ...]

    def advance(self, deltas: Deltas) -> Replacement:
        """The rows that the range replaced. What is kept is then as of its end."""
        ...


class KeptOperator(Protocol):
    """An operator whose rows are kept, to be looked up by slice."""

    schema: pa.Schema
    relation: KeptRelation

    def prepared(self, deltas: Deltas) -> Replacement:
        """As ``advance``, but what is kept is still as of the range's beginning; ``write`` follows."""
        ...

    def write(self, change: Replacement) -> None: ...


class Maker(Protocol):
    """Makes the operators of one plan."""

    state: KernelState

    def operator(self, node: Node, wanted: set[str]) -> Operator:
        """``wanted``: the columns that are read of it."""
        ...

    def kept(self, node: Node, wanted: set[str], slices: Sequence[str]) -> KeptOperator:
        """The operator with its rows kept, which are looked up by these columns."""
        ...

    def relation(self, schema: pa.Schema, key: Sequence[str], slices: Mapping[str, Sequence[str]]) -> KeptRelation:
        """A new one."""
        ...


def untouched(state: KernelState, kept: KeptOperator, change: Replacement, slices: pa.Table) -> pa.Table:
    """The rows of these slices that the range left alone."""
    return without(state, kept.relation.of(SLICE, slices), change.before, kept.relation.key)


def sliced_again(
    state: KernelState,
    kept: KeptOperator,
    deltas: Deltas,
    slices: Sequence[str],
    schema: pa.Schema,
    made: Callable[[pa.Table], pa.Table],
) -> Replacement:
    """The rows of all slices that the range touches, ``made`` from the slices' kept rows as of its beginning and its end."""
    change = kept.prepared(deltas)
    if change.empty:
        return nothing(schema)
    other = untouched(state, kept, change, touched(change, slices))
    kept.write(change)
    return netted(state, Replacement(*(made(pa.concat_tables([other, one])) for one in (change.before, change.after))))


def nothing(schema: pa.Schema) -> Replacement:
    return Replacement(schema.empty_table(), schema.empty_table())


def touched(change: Replacement, names: Sequence[str]) -> pa.Table:
    """The values of these columns in rows before and after."""
    return distinct(pa.concat_tables([change.before.select(names), change.after.select(names)]), names)


def asked(state: KernelState, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """As ``KernelState.queried``, of sums, which may have no room."""
    try:
        return state.queried(sql, tables)
    except (duckdb.ConversionException, duckdb.OutOfRangeException):
        raise ViewStopped(
            "a sum is out of range", hint="write sum(x::numeric(38, 2)), or let the view's WHERE leave the rows out"
        ) from None
