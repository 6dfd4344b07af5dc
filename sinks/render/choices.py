"""A store's choices of how columns are shown (``as`` in ``[stores.NAME.tables."schema.table"]``)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.display import As, AsRules, shown_as
from cdc.model.pgtypes import BPCHAR, NAME, TEXT, VARCHAR
from cdc.model.selection import named
from cdc.model.structure import Scalar, structure_of
from cdc.model.table import Column, Table
from sinks.render.jsonrows import Style

_TEXTS = frozenset((TEXT, VARCHAR, BPCHAR, NAME))


Making = Callable[[Table, Mapping[str, As]], Style]


def _plain(table: Table, as_: Mapping[str, As]) -> Style:  # noqa: ARG001
    return Style(as_=as_)


class Choices:
    """``making``: the style of a table's documents in this kind of store, from what is chosen of its columns."""

    def __init__(self, store: str, rules: AsRules, making: Making = _plain) -> None:
        self._store = store
        self._rules = rules
        self._making = making
        self._styles: dict[Table, Style] = {}

    def style(self, table: Table) -> Style:
        """How documents under this definition are written; always the same object."""
        if table not in self._styles:
            chosen = shown_as(self._rules, table.qualified)
            self._styles[table] = self._making(table, {name: as_ for name, as_ in chosen.items() if name in table.names})
        return self._styles[table]

    def foresee(self, tables: Sequence[Table]) -> None:
        """Raises ConfigError where something is chosen for a table, or a column, that is not among these, which are all of the store's."""
        for pattern in named([pattern for pattern, _ in self._rules]):
            if not any(table.qualified == pattern for table in tables):
                hint = f"tables: {', '.join(table.qualified for table in tables) or 'none'}"
                raise ConfigError(f'stores.{self._store}.tables."{pattern}": no such table is captured', hint=hint)
        for table in tables:
            self.check(table, None)

    def check(self, table: Table, log: LogReader | None) -> None:
        """Raises ConfigError for a column that neither this definition nor the log's newest one has, and for one that cannot be shown so."""
        chosen = shown_as(self._rules, table.qualified)
        if not chosen:
            return
        newest = [] if log is None else [topic.table for topic in log.topics() if topic.name == table.qualified]
        columns = {column.name: column for known in (*newest, table) for column in known.columns}
        where = f'stores.{self._store}.tables."{table.qualified}".as'
        for name, as_ in chosen.items():
            if name not in columns:
                close = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]}?" if close else f"columns: {', '.join(columns)}"
                raise ConfigError(f"{where}: {table.qualified} has no column {name}", hint=hint)
            if as_ == "json" and (why := _never_json(columns[name])):
                raise ConfigError(f"{where}: {name} {why}", hint="leave it out of `as`")


def _never_json(column: Column) -> str:
    structure = structure_of(column)
    if not isinstance(structure, Scalar) or structure.oid not in _TEXTS:
        return "is not a text that could hold JSON"
    return "is part of the key, which is text" if column.key else ""
