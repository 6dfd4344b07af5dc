"""Views as ``cdc.toml`` declares them: which topics each reads, that none of them goes in a circle, and their kernels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ConfigError
from cdc.expressions.refusal import PartRefused
from cdc.settings.functions import load, mark_of
from cdc.settings.models import Settings
from cdc.settings.views import View, topic_of
from cdc.views.contract import ViewRefused
from cdc.views.marks import view_of
from cdc.views.parser import parsed_query
from cdc.views.rootquery import NestedQuery, nested_query
from cdc.views.syntax import QuerySyntax, TableName

# All that takes the engine is imported where a view is computed: the supervisor of `cdc run` checks declarations, and would hold 8 MB more for nothing.
if TYPE_CHECKING:
    from cdc.derive.ports import TextTypes
    from cdc.log.contract import Topic
    from cdc.model.table import Table
    from cdc.model.topic import TopicSchema
    from cdc.views.contract import Kernel
    from cdc.views.definition import ViewDefinition
    from cdc.views.groupcall import DeclaredFunction

MEMORY: Final = "256MB"
"""The most that a kernel's engine holds in memory; the rest lies on the disk. Pages of the rows that it keeps are beside that (``cdc.views.state.PAGES_KB``)."""
_NOT_OF_ROWS: Final = {"batch_rows", "batch_bytes", "keep_former_hours", "workers_from_rows"}
_CODE: Final = "code"
"""In a definition: which version of its function."""
_DEFAULT_SCHEMA: Final = "public"
"""Where a table is whose schema is not written."""


def declared_views(settings: Settings) -> Mapping[str, SqlView]:
    """All of them. Raises ConfigError for a text that is not a query, and for views that are computed from one another in a circle."""
    found = {name: _declared(name, view) for name, view in settings.views.items()}
    reads = {name: one.topics for name, one in found.items()}
    refuse_circles(reads)
    return {
        name: replace(one, beside={other: view for other, view in found.items() if other != name}) for name, one in found.items()
    }


def refuse_left(declared: Mapping[str, SqlView], logged: Iterable[Topic]) -> None:
    """Raises ConfigError for a view that reads one that is declared no longer: the topic is still in the log, and nobody would ever change it."""
    left = {topic_of(name) for topic in logged if (name := view_of(topic.producer)) is not None and name not in declared}
    for name, one in declared.items():
        for topic in left.intersection(one.topics):
            raise ConfigError(
                f"view {name} reads {topic}, which is declared no longer: its rows would never change",
                hint=f"declare it again, or take it out of [views.{name}]",
            )


def said_of_views(settings: Settings, logged: Iterable[Topic] = ()) -> Mapping[str, str]:
    """View → a text that stands for all that the configuration says of it, and of the views that it is computed from. Raises ConfigError as ``declared_views`` and
    ``refuse_left``."""
    declared = declared_views(settings)
    refuse_left(declared, logged)

    @cache  # or it takes twice as long with each view over two that are computed from one
    def below(name: str) -> frozenset[str]:
        return frozenset({name}).union(*(below(one.name) for one in declared[name].views.values()))

    said = {name: view.model_dump_json() for name, view in settings.views.items()}
    return {name: json.dumps({one: said[one] for one in sorted(below(name))}) for name in declared}


def _declared(name: str, view: View) -> SqlView:
    query = nested_query(name, view) if view.root else NestedQuery(view.sql, ())
    try:
        return SqlView(name, view, query, tuple(_topics(parsed_query(query.sql))))
    except PartRefused as refusal:
        placed = refusal.placed(query.sql)
        at = f"views.{name}.{query.places[placed.place[0] - 1]}: {refusal}" if query.places else f"views.{name}.sql: {placed}"
        raise ConfigError(at, hint=placed.hint) from None


def refuse_circles(reads: Mapping[str, Sequence[str]]) -> None:
    """Raises ConfigError, which names the views of a circle. ``reads``: view → the topics that it reads."""
    views = {topic_of(name): name for name in reads}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = " → ".join((*way[way.index(name) :], name))
            raise ConfigError(
                f"views are computed from one another in a circle: {circle}", hint="take one of them out of the others"
            )
        if name in done:
            return
        for topic in reads[name]:
            if topic in views:
                visit(views[topic], (*way, name))
        done.add(name)

    for name in reads:
        visit(name, ())


def _topics(query: QuerySyntax) -> list[str]:
    """The topics that the query names, each once, in order."""
    found = dict.fromkeys(
        f"{table.schema or _DEFAULT_SCHEMA}.{table.name}"
        for table in _tables(query)
        if table.schema or table.name not in {name for name, _ in query.named}
    )
    return list(found)


def _tables(part: object) -> Iterator[TableName]:
    if isinstance(part, TableName):
        yield part
    elif isinstance(part, tuple | list):
        for one in part:
            yield from _tables(one)
    elif is_dataclass(part):
        for member in fields(part):
            yield from _tables(getattr(part, member.name))


@dataclass(frozen=True)
class SqlView:
    """A view as the SELECT that it is, and the function over it, if there is one."""

    name: str
    view: View
    query: NestedQuery
    topics: tuple[str, ...]
    beside: Mapping[str, SqlView] = field(default_factory=dict)
    """The other views."""

    @property
    def views(self) -> Mapping[str, SqlView]:
        return {topic_of(name): one for name, one in self.beside.items() if topic_of(name) in self.topics}

    @property
    def definition(self) -> Mapping[str, Any]:
        said = self.view.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_NOT_OF_ROWS)
        return said | {_CODE: self._mark} if self.view.python else said

    def former(self, definition: Mapping[str, Any]) -> SqlView | None:
        """None where its function is not the one that is loaded now, and where it would be computed from itself through another view."""
        said = dict(definition)
        code = said.pop(_CODE, "")
        try:
            found = _declared(self.name, View.model_validate_json(json.dumps(said)))
            refuse_circles({**{name: one.topics for name, one in self.beside.items()}, self.name: found.topics})
        except (ConfigError, ValueError):  # another version's text
            return None
        if found.view.python and (not code or (found.view.python, code) != (self.view.python, self._mark)):
            return None
        return replace(found, beside=self.beside)

    @property
    def declaration(self) -> str:
        said: list[object] = [self.query.sql, list(self.view.key), *self.query.excluded]
        if self.view.python:
            said.append([self.view.python, self._mark, list(self.view.by), list(self.view.returns.items())])
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()

    @property
    def _mark(self) -> str:
        """That of its function; a function that cannot be loaded is another one than when it can."""
        try:
            function = self.load_function()
        except ConfigError:
            return ""
        return "" if function is None else function.mark

    def load_function(self) -> DeclaredFunction | None:
        """The function that computes its rows; None where they are those of its query. Raises ConfigError where it cannot be loaded."""
        view = self.view
        if not view.python:
            return None
        from cdc.views.groupcall import PYTHON, DeclaredFunction

        mark = mark_of(view.python, view.version, PYTHON, "version")
        return DeclaredFunction(view.python, load(view.python, PYTHON), mark, view.by, view.returns)

    def bind(self, schemas: Mapping[str, TopicSchema]) -> BoundSql:
        from cdc.views.definition import define

        query = self.query
        try:
            function = self.load_function()
            if query.excluded:
                query = nested_query(self.name, self.view, {topic: schema.names for topic, schema in schemas.items()})
        except ConfigError as error:  # of the function, or of the tables' columns: all else is known once the view is declared
            raise ViewRefused(str(error), hint=error.hint) from None
        return BoundSql(define(self.name, query.sql, self.view.key, schemas, query.places, function), self.name)


@dataclass(frozen=True)
class BoundSql:
    """The same, over its topics as they are defined."""

    definition: ViewDefinition
    name: str

    @property
    def identity(self) -> str:
        return self.definition.identity

    @property
    def reads(self) -> Mapping[str, Sequence[str]]:
        return self.definition.reads

    @property
    def key(self) -> Sequence[str]:
        return self.definition.key

    @cached_property
    def typed(self) -> TextTypes:
        from cdc.inbox.definition import typed

        plain = (one for one in self.definition.fields if not (one.defined or one.protected))
        return {one.name: said for one in plain if (said := typed(one.structure, one.outline)) is not None}

    @cached_property
    def table(self) -> Table:
        """The view's topic, as its first rows would define it."""
        from cdc.derive.pieces import topic_table
        from cdc.views.held import released, schema_of

        columns = self.definition.columns
        rows = released(schema_of({one.name: one for one in columns.values()}.values()).empty_table(), columns)
        return topic_table(topic_of(self.name), rows, self.key, self.typed)

    def open(self, folder: Path) -> Kernel:
        from cdc.views.kernel import SqlKernel

        return SqlKernel(self.definition, folder, MEMORY)
