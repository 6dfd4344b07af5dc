"""Whether what the stores are to hold, and what the views read, is captured at all: a mistyped name would leave them empty without a word. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

from cdc.errors import ConfigError
from cdc.model.selection import matches, named
from cdc.model.table import Table
from cdc.settings.models import StoreOptions
from cdc.settings.outbox import Outbox


def mistaken(
    stores: Mapping[str, StoreOptions], tables: Sequence[Table | str], outbox: Outbox | None = None
) -> Iterator[ConfigError]:
    """For each pattern of a store that names one table, and none of these; and for each store whose patterns select none of these.

    tables: those that are captured, or were and are in the log. A pattern with wildcards may wait for tables to come, but not all of them;
    one of ``outbox``'s topics may be named before its first event.
    """
    names = _names(tables)
    for store, options in stores.items():
        key = f"stores.{store}.tables"
        awaited = [one for one in options.tables if _is_awaited(one, outbox)]
        unknown = [
            one for one in named(options.tables) if one not in awaited and not any(matches((one,), table) for table in tables)
        ]
        for pattern in unknown:
            yield ConfigError(f"{key}: no table {pattern} is captured", hint=_suggestion(pattern, names, key))
        if not unknown and not awaited and not any(matches(options.tables, table) for table in tables):
            yield ConfigError(f"{key} selects no captured table ({', '.join(options.tables)})", hint=_suggestion("", names, key))


def mistaken_views(
    reads: Mapping[str, Sequence[str]], tables: Sequence[Table | str], outbox: Outbox | None = None
) -> Iterator[ConfigError]:
    """For each table or view that a view reads, and that is not among these. ``reads``: view → the topics that it reads. The others are as
    ``mistaken`` has them."""
    names = _names(tables)
    for view, topics in reads.items():
        for topic in topics:
            if topic not in names and not _is_awaited(topic, outbox):
                yield ConfigError(f"views.{view}: no table {topic} is captured", hint=_suggestion(topic, names, f"views.{view}"))


def _names(tables: Sequence[Table | str]) -> list[str]:
    return [table if isinstance(table, str) else table.qualified for table in tables]


def _is_awaited(topic: str, outbox: Outbox | None) -> bool:
    """Whether it is one of the outbox's, which comes with its first event."""
    return outbox is not None and topic.partition(".")[0] == outbox.topic_schema


def _suggestion(pattern: str, names: Sequence[str], key: str) -> str:
    close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.6)
    known = f"captured are: {', '.join(sorted(set(names))[:20])}" if names else "source.tables says what is captured"
    return f"did you mean {close[0]}? Correct {key}" if close else f"correct {key}; {known}"
