"""The kernel of a view that is declared in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from cdc.model.position import Position
from cdc.views.contract import Delta
from cdc.views.definition import ViewDefinition
from cdc.views.held import released, schema_of
from cdc.views.operators import Workshop
from cdc.views.rows import distinct, in_order, netted, without
from cdc.views.state import KernelState, Replacement, conformed


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
        self._operator = workshop.operator(definition.node, set(self._by_name))
        self._schema = schema_of(self._by_name.values())
        self._rows = self._state.relation("view", self._schema, self._key)
        self._to: Position | None = None

    @property
    def cut(self) -> Position:
        return self._state.cut

    def advance(self, deltas: Mapping[str, Delta], to: Position) -> Delta:
        """As the contract says. Raises ViewStopped where a row has no exact value; the state is then as it was."""
        unread = set(deltas) - set(self.definition.reads)
        if unread:
            raise ValueError(f"view {self.definition.name} does not read {', '.join(sorted(unread))}")
        self._state.begin()
        try:
            delta = self._advanced(deltas)
        except BaseException:
            self.rollback()
            raise
        self._to = to
        return delta

    def _advanced(self, deltas: Mapping[str, Delta]) -> Delta:
        change = self._operator.advance(deltas)
        after = conformed(change.after, self._schema)
        keys = pa.concat_tables([conformed(one, self._schema).select(self._key) for one in (change.before, change.after)])
        stored = self._rows.of("", distinct(keys, self._key))
        net = netted(self._state, Replacement(stored, after))
        self._rows.replace(net.before, net.after)
        return Delta(self._shown(in_order(net.after, self._key)), self._gone(net))

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
        self._to = None

    def rollback(self) -> None:
        self._state.rollback()
        self._to = None

    def rows(self) -> pa.Table:
        return self._shown(self._rows.rows())

    def kept_rows(self) -> int:
        return self._state.kept_rows

    def close(self) -> None:
        self._state.close()
