"""A store's choices of how columns are shown (``as`` in ``[stores.NAME.tables."schema.table"]``)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.display import As, AsRules, shown_as
from cdc.model.selection import named
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from sinks.render.jsonrows import Style

_TEXTS = frozenset((ScalarType.TEXT, ScalarType.VARCHAR, ScalarType.BPCHAR, ScalarType.NAME))


Making = Callable[[TopicSchema, Mapping[str, As]], Style]


def _plain(schema: TopicSchema, as_: Mapping[str, As]) -> Style:  # noqa: ARG001
    return Style(as_=as_)


class Choices:
    """``making``: the style of a table's documents in this kind of store, from what is chosen of its columns."""

    def __init__(self, store: str, rules: AsRules, making: Making = _plain) -> None:
        self._store = store
        self._rules = rules
        self._making = making
        self._styles: dict[TopicSchema, Style] = {}

    def style(self, schema: TopicSchema) -> Style:
        """How documents under this definition are written; always the same object."""
        if schema not in self._styles:
            chosen = shown_as(self._rules, schema.topic)
            self._styles[schema] = self._making(schema, {name: as_ for name, as_ in chosen.items() if name in schema.names})
        return self._styles[schema]

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises ConfigError where something is chosen for a table, or a column, that is not among these, which are all of the store's."""
        for pattern in named([pattern for pattern, _ in self._rules]):
            if not any(schema.topic == pattern for schema in schemas):
                hint = f"tables: {', '.join(schema.topic for schema in schemas) or 'none'}"
                raise ConfigError(f'stores.{self._store}.tables."{pattern}": no such table is captured', hint=hint)
        for schema in schemas:
            self.check(schema, None)

    def check(self, schema: TopicSchema, log: LogReader | None) -> None:
        """Raises ConfigError for a column that neither this definition nor the log's newest one has, and for one that cannot be shown so."""
        chosen = shown_as(self._rules, schema.topic)
        if not chosen:
            return
        newest = [] if log is None else [topic.schema for topic in log.topics() if topic.name == schema.topic]
        columns = {column.name: column for known in (*newest, schema) for column in known.fields}
        where = f'stores.{self._store}.tables."{schema.topic}".as'
        for name, as_ in chosen.items():
            if name not in columns:
                close = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]}?" if close else f"columns: {', '.join(columns)}"
                raise ConfigError(f"{where}: {schema.topic} has no column {name}", hint=hint)
            if as_ == "json" and (why := _never_json(columns[name])):
                raise ConfigError(f"{where}: {name} {why}", hint="leave it out of `as`")


def _never_json(column: TopicField) -> str:
    if not isinstance(column.structure, Scalar) or column.structure.type not in _TEXTS:
        return "is not a text that could hold JSON"
    return "is part of the key, which is text" if column.key else ""
