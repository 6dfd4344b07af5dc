"""The kernel of a view that is declared in SQL, with or without a function that computes its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from cdc.model.position import Position
from cdc.views.calledgroups import CalledGroups
from cdc.views.cells import conformed
from cdc.views.contract import Delta
from cdc.views.definition import ViewDefinition
from cdc.views.held import released, schema_of
from cdc.views.operators import Workshop
from cdc.views.roworder import in_order
from cdc.views.rows import distinct, netted, without
from cdc.views.state import KernelState, Replacement
from cdc.views.work import SLICE, Operator, nothing


class SqlKernel:
    """As ``cdc.views.contract.Kernel`` says."""

    def __init__(self, definition: ViewDefinition, folder: Path | None = None, memory: str = "1GB") -> None:
        """``folder``, ``memory``: as ``KernelState`` has them. Raises HeadwaterError for a state that is another view's."""
        self.definition = definition
        self._columns = definition.columns
        self._by_name = {column.name: column for column in self._columns.values()}
        self._key = tuple(dict.fromkeys(self._columns[one].name for one in definition.key))
        self._state = KernelState(folder, definition.identity, memory)
        workshop = Workshop(self._state)
        self._schema = schema_of(self._by_name.values())
        call = definition.call
        self._rows = self._state.relation("view", self._schema, self._key, {} if call is None else {SLICE: call.by})
        self._called = None if call is None else CalledGroups(workshop, definition.node, call, self._rows)
        self._operator: Operator = self._called or workshop.operator(definition.node, set(self._by_name))
        self._to: Position | None = None
        self._partial = False

    @property
    def cut(self) -> Position:
        return self._state.cut

    def advance(self, deltas: Mapping[str, Delta], to: Position, partial: bool = False) -> Delta:
        """As the contract says. Raises ViewStopped where a row has no exact value; the state is then as it was."""
        unread = set(deltas) - set(self.definition.reads)
        if unread:
            raise ValueError(f"view {self.definition.name} does not read {', '.join(sorted(unread))}")
        self._state.begin()
        try:
            delta = self._gathered(self._called, deltas) if partial and self._called else self._advanced(deltas, partial)
        except BaseException:
            self.rollback()
            raise
        self._to, self._partial = to, partial
        return delta

    def _gathered(self, called: CalledGroups, deltas: Mapping[str, Delta]) -> Delta:
        called.gather(deltas)
        return self._unsaid

    @property
    def _unsaid(self) -> Delta:
        return Delta(self._shown(self._schema.empty_table()), self._gone(nothing(self._schema)))

    def _advanced(self, deltas: Mapping[str, Delta], partial: bool) -> Delta:
        change = self._operator.advance(deltas)
        after = conformed(change.after, self._schema)
        net = netted(self._state, Replacement(change.before if self._called else self._stored(change), after))
        self._rows.replace(net.before, net.after)
        return self._unsaid if partial else Delta(self._shown(in_order(net.after, self._key)), self._gone(net))

    def _stored(self, change: Replacement) -> pa.Table:
        """The view's rows with the keys of all that was replaced; where no row was, there is none of the new ones' keys."""
        if not change.before.num_rows:
            return self._schema.empty_table()
        keys = pa.concat_tables([conformed(one, self._schema).select(self._key) for one in (change.before, change.after)])
        return self._rows.of("", distinct(keys, self._key))

    def _gone(self, net: Replacement) -> pa.Table:
        gone = in_order(without(self._state, net.before, net.after, self._key), self._key)
        return released(gone, {name: self._columns[name] for name in self.definition.key})

    def _shown(self, rows: pa.Table) -> pa.Table:
        return released(rows, self._columns)

    def commit(self) -> None:
        """Raises ValueError when nothing was advanced."""
        if self._to is None:
            raise ValueError("nothing was advanced")
        self._state.commit(self._to)
        if self._called and not self._partial:
            self._called.settle()
        self._to = None

    def sync(self) -> None:
        self._state.sync()

    def rollback(self) -> None:
        self._state.rollback()
        self._to = None

    def rows(self) -> pa.Table:
        return self._shown(self._rows.rows())

    def kept_rows(self) -> int:
        return self._state.kept_rows

    def close(self) -> None:
        self._state.close()
