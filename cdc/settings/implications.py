"""The meaning of ``[outbox]`` and ``[views]`` for the other sections, wherever they say nothing else. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from cdc.model.selection import literal, matches, named
from cdc.settings.models import LogTable, Settings, StoreOptions
from cdc.settings.outbox import Outbox
from cdc.settings.views import VIEWS, can_name_a_view, topics_of


def with_implied(settings: Settings) -> Settings:
    """The settings as they count. No table is captured under the name of a view. The outbox table is captured, no table is captured under the name of an event topic, events stay in the log, of the table's own
    rows those that are gone need not, and no store holds the table itself unless it names it."""
    settings = _without_views(settings)
    outbox = settings.outbox
    if outbox is None:
        return settings
    table, source, log = literal(outbox.table), settings.source, settings.log
    captured = () if not outbox.table or matches(source.tables, outbox.table) else (table,)
    kept = {table: LogTable(cleanup="compact")} if outbox.table else {}
    kept[outbox.topics] = LogTable(cleanup="keep")
    return settings.model_copy(
        update={
            "source": source.model_copy(update={"tables": (*source.tables, *captured, f"!{outbox.topics}")}),
            "log": log.model_copy(update={"tables": {**kept, **log.tables}}),
            "stores": without_table(settings.stores, outbox),
        }
    )


def _without_views(settings: Settings) -> Settings:
    if not settings.views:
        return settings
    taken_out = [f"!{topic}" for topic in topics_of(settings.views)]
    source = settings.source.model_copy(update={"tables": (*settings.source.tables, *taken_out)})
    return settings.model_copy(update={"source": source})


def without_table(stores: Mapping[str, StoreOptions], outbox: Outbox) -> dict[str, StoreOptions]:
    """The stores, without the outbox table where none of their patterns names exactly that."""
    found = {}
    for name, options in stores.items():
        if outbox.table and matches(options.tables, outbox.table) and outbox.table not in named(options.tables):
            held = options.held.model_copy(update={"select": (*options.tables, f"!{literal(outbox.table)}")})
            options = options.model_copy(update={"held": held})
        found[name] = options
    return found


def own_topics(settings: Settings) -> tuple[str, ...]:
    """The patterns of the names that topics of capture's own have, or may get: no other producer's may have one."""
    return (*settings.source.tables, *((settings.outbox.topics,) if settings.outbox is not None else ()))


def of_views(settings: Settings) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(where, what is wrong, what helps) with the views' names, and with the stores that name views."""
    for name, topic in zip(settings.views, topics_of(settings.views), strict=True):
        if not can_name_a_view(name):
            yield (
                (VIEWS, name),
                "a view's name holds small letters, digits and _, at most 48, and begins with no digit",
                "rename it",
            )
        elif topic in named(settings.source.tables):
            yield (VIEWS, name), f"source.tables names {topic}, which is the view's topic", "give the view another name"
    for store, options in settings.stores.items():
        for unknown in (one for one in options.views if one not in settings.views):
            close = difflib.get_close_matches(unknown, settings.views, n=1, cutoff=0.6)
            known = f"known views: {', '.join(settings.views)}" if settings.views else f"declare it: [views.{unknown}]"
            yield ("stores", store, VIEWS), f"there is no view {unknown}", f"did you mean {close[0]}?" if close else known


def of_outbox(settings: Settings) -> Iterator[tuple[str, str]]:
    """(what is wrong, what helps) with the other sections, as they are written, beside ``[outbox]``."""
    outbox = settings.outbox
    if outbox is None:
        return
    if outbox.table and f"!{outbox.table}" in settings.source.tables:
        yield f"source.tables takes {outbox.table} out, which is the outbox table", "leave that pattern out"
    for pattern in named(settings.source.tables):
        if matches((outbox.topics,), pattern):
            yield (
                f"source.tables names {pattern}, and the topics of events have such names",
                'write another topic, such as "events.{route}"',
            )
    for table, policies in settings.source.columns.items():
        column = next((name for name, policy in policies.items() if policy != "keep"), None)
        if table == outbox.table and column is not None:
            yield (
                f"column {column} of {table} has the policy {policies[column]}, and events are what was written",
                "take it out of source.columns, and let the service protect what it writes",
            )
