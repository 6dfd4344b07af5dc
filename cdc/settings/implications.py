"""The meaning of ``[outbox]`` for the other sections, wherever they say nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cdc.model.selection import literal, matches, named
from cdc.settings.models import LogTable, Settings, StoreOptions
from cdc.settings.outbox import Outbox


def with_implied(settings: Settings) -> Settings:
    """The settings as they count. The outbox table is captured, no table is captured under the name of an event topic, events stay in the log, of the table's own
    rows those that are gone need not, and no store holds the table itself unless it names it."""
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
