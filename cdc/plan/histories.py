"""Histories in `cdc plan`: the effect of another ``history_days`` on the versions that a store has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from cdc.log.contract import LogReader
from cdc.model.selection import matches
from cdc.settings.models import Settings
from cdc.state import status


def aged(settings: Settings, reader: LogReader) -> Iterator[tuple[str, str]]:
    """The stores whose followers last knew other days than the configuration says now: name and consequence."""
    topics = reader.topics()
    for store, options in settings.stores.items():
        saved = status.read_follower(settings.run_dir, store)
        if saved is None or "version_days" in saved.foreign:
            continue
        for topic in topics:
            if not matches(options.tables, topic.table) or (now := options.changes_needed(topic.name)) is None:
                continue
            before = _days(saved.version_days, topic.name)
            if now < before:
                yield (
                    store,
                    f"{topic.name}: versions that ended more than {_said(now)} before the last commit go with the next ones; until now "
                    + (f"after {_said(before)}" if before < math.inf else "none did"),
                )
            elif now > before:
                yield (
                    store,
                    f"{topic.name}: versions stay {_said(now)}, until now {_said(before)}: those that have gone stay away, but for what "
                    f"cdc bootstrap {store} --in-place brings back from the log",
                )


def _days(said: Mapping[str, float], topic: str) -> float:
    found = math.inf
    for pattern, days in said.items():
        if isinstance(days, int | float) and matches((pattern,), topic):  # whoever wrote the file
            found = days or math.inf
    return found


def _said(days: float) -> str:
    return "for ever" if math.isinf(days) else f"{days:g} days"
