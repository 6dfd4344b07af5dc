"""Views in `cdc plan`: the effect of a table's change on those that read it and on the stores that hold them, and of another definition in the configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cdc.derive.course import KernelFacts
from cdc.derive.declarations import SqlView, declared_views
from cdc.derive.netrange import TopicReads
from cdc.derive.statefolder import FOLDER, generations_in
from cdc.embedded import EmbeddedError
from cdc.embedded.java import java_home
from cdc.errors import ConfigError, HeadwaterError, StopState
from cdc.inbox.definition import refuses
from cdc.log.contract import LogReader
from cdc.log.orphans import ENDING
from cdc.model.evolution import SchemaChange
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.settings.models import Settings
from cdc.settings.views import topic_of
from cdc.state import status, stops
from sinks.holding import bound

STOPS: Final = f"stops ({StopState.VIEW_REFUSED})"
AGAIN: Final = "is computed again"
REMADE: Final = "makes again what it has of a view"
"""What a store does."""


class ReadingViews:
    """The configured views, of which the log may hold other views' topics."""

    def __init__(self, settings: Settings, reader: LogReader) -> None:
        """Raises ConfigError where a view's text is no query."""
        self._settings = settings
        self._views = declared_views(settings)
        derived = set(map(topic_of, settings.views))
        self._derived = {topic.name: topic.schema for topic in reader.topics() if topic.name in derived}

    def reading(self, topic: str) -> Sequence[SqlView]:
        return [one for one in self._views.values() if topic in one.topics]

    def effect(
        self, view: SqlView, held: Mapping[str, Table], ended: Collection[str], change: SchemaChange
    ) -> tuple[str, str] | None:
        """The view's part in it, and why; None where nothing changes for it, or too little is known. ``held``: the log's tables before the change, by topic; those
        of ``ended`` are gone."""
        topic = change.table.qualified
        if change.kind in ENDING:
            return STOPS, f"{topic} was {change.kind}"
        before = self._schemas(view, held, ended)
        after = before | {topic: TopicSchema.of(change.table)}
        if topic not in before or any(name not in after for name in view.topics):
            return None
        try:
            now = _reads(view, after, topic)
        except HeadwaterError as error:
            return STOPS, str(error)
        try:
            same = _reads(view, before, topic).signature == now.signature
        except HeadwaterError:
            same = False  # it stands still as things are, and goes on with the change
        if change.empties or not same:
            return AGAIN, f"{topic} has other columns for it, or other rows"
        return None

    def remade(self, held: Mapping[str, Table], ended: Collection[str], change: SchemaChange) -> Iterator[tuple[str, str]]:
        """The stores that make something of a view again since a table changes, and what."""
        if change.kind in ENDING:
            return
        before = {name: TopicSchema.of(table) for name, table in held.items() if name not in ended}
        after = before | {change.table.qualified: TopicSchema.of(change.table)}
        known = (_with_views(self._views, tables) for tables in (before, after))
        yield from _remade(self._settings, *known)

    def _schemas(self, view: SqlView, held: Mapping[str, Table], ended: Collection[str]) -> dict[str, TopicSchema]:
        tables = {name: TopicSchema.of(held[name]) for name in view.topics if name in held and name not in ended}
        return tables | {name: self._derived[name] for name in view.topics if name in self._derived}


def _reads(view: SqlView, schemas: Mapping[str, TopicSchema], topic: str) -> TopicReads:
    return TopicReads.of(schemas[topic], view.bind(schemas).reads[topic])


def redefined(settings: Settings, reader: LogReader) -> Iterator[tuple[str, str]]:
    """The views that the configuration defines otherwise than their processes last knew, or whose next generation is refused: name and consequence. Raises ConfigError
    as ``ReadingViews`` does."""
    topics = reader.topics()
    known, tables = {topic.name: topic.schema for topic in topics}, {topic.name: topic.table for topic in topics}
    for name, view in declared_views(settings).items():
        saved = status.read_view(settings.run_dir, name)
        again = saved is not None and saved.declaration == view.declaration
        if again and (stop := stops.held_by(settings.run_dir, status.next_part(name))) is not None:
            yield name, f"its next generation is refused: {stop.error().line()}"
            continue
        if (lacking := without_spark(view)) is not None:
            yield name, f"cannot be computed by Spark's workers: {lacking}"
        if (why := _refused(view, known, function_only=saved is None or again)) is not None:
            yield name, f"{_stops(settings, view)} at the next start of cdc run: {why}"
        elif saved is None:
            yield name, "is new: it is computed from the log at the next start of cdc run"
        elif saved.declaration and not again:
            yield (
                name,
                f"is defined otherwise than before: at the next start of cdc run {_goes_over(settings, view)}{_redefines(view, known, tables)}",
            )


def _refused(view: SqlView, known: Mapping[str, TopicSchema], *, function_only: bool) -> str | None:
    """Why it cannot be kept up, as far as that can be said before its process begins."""
    try:
        view.load_function()
        if not function_only and all(topic in known for topic in view.topics):
            for topic, columns in view.bind(known).reads.items():
                TopicReads.of(known[topic], columns)
    except HeadwaterError as error:
        return str(error).removeprefix(f"{StopState.VIEW_REFUSED}: ")
    return None


def _redefines(view: SqlView, known: Mapping[str, TopicSchema], tables: Mapping[str, Table]) -> str:
    """The words for another key, or other types, than its topic has, as far as that can be said."""
    held = tables.get(topic_of(view.name))
    if held is None or any(topic not in known for topic in view.topics):
        return ""
    why = refuses(held, view.bind(known).table)
    return "" if why is None else f"; {why}, so that all of its rows come again"


def _stops(settings: Settings, view: SqlView) -> str:
    """The effect of a refusal."""
    former = any(view.former(facts.definition) is not None for facts in _whole(settings, view) if facts.left is None)
    return f"its next generation is refused ({StopState.VIEW_REFUSED}), and the live one goes on," if former else STOPS


def _whole(settings: Settings, view: SqlView) -> Sequence[KernelFacts]:
    """Its states."""
    states = [one.load() for one in generations_in(settings.log.dir / FOLDER / view.name).values()]
    return [facts for facts in states if facts is not None and not facts.loading]


def without_spark(view: SqlView) -> EmbeddedError | None:
    """The reason for which Spark cannot start here, where the view is to be computed by its workers; else None."""
    if view.view.workers_from_rows:
        try:
            java_home()
        except EmbeddedError as lacking:
            return lacking
    return None


def _goes_over(settings: Settings, view: SqlView) -> str:
    """The way to another definition."""
    whole = _whole(settings, view)
    if any(dict(facts.definition) == dict(view.definition) for facts in whole):
        return "the state that was kept of this definition is brought on beside the live one, and its topic then gets what differs"
    live = [facts for facts in whole if facts.left is None]
    if live and all(view.former(facts.definition) is None for facts in live):
        return f"it {AGAIN} while its topic stands still, which then gets what differs"
    return f"it {AGAIN} beside the live one, and its topic then gets what differs"


def remade(settings: Settings, reader: LogReader) -> Iterator[tuple[str, str]]:
    """The stores that make something of a view again, as the configuration defines it otherwise than its topic in the log, and what. Raises ConfigError as
    ``ReadingViews`` does."""
    known = {topic.name: topic.schema for topic in reader.topics()}
    views = declared_views(settings)
    tables = {name: schema for name, schema in known.items() if name not in set(map(topic_of, views))}
    yield from _remade(settings, known, _with_views(views, tables))


def _remade(settings: Settings, before: Mapping[str, TopicSchema], after: Mapping[str, TopicSchema]) -> Iterator[tuple[str, str]]:
    for topic in (topic_of(name) for name in settings.views):
        for store, options in settings.stores.items():
            if topic not in before or topic not in after or not matches(options.tables, after[topic]):
                continue
            with suppress(ConfigError):  # of what the store holds of it: that is said elsewhere
                had, has = (bound(store, options, one).held(one) for one in (before[topic], after[topic]))
                if what := options.remade(had, has):
                    yield store, f"{topic}: {what}"


def _with_views(views: Mapping[str, SqlView], tables: Mapping[str, TopicSchema]) -> Mapping[str, TopicSchema]:
    """The topics of the views over these tables beside them, as far as they can be known."""
    known = dict(tables)
    waiting = list(views.values())
    while ready := [one for one in waiting if all(topic in known for topic in one.topics)]:
        for view in ready:
            waiting.remove(view)
            with suppress(HeadwaterError):  # a view that would stop: that is said elsewhere
                known[topic_of(view.name)] = TopicSchema.of(view.bind(known).table)
    return known
