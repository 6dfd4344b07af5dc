"""Topics whose table is no longer there under that name: dropped, renamed, or out of the publication."""

from __future__ import annotations

from typing import Final

from cdc.log.contract import LogReader, present_history
from cdc.model.evolution import Kind, topic_change_of
from cdc.model.position import Position

ENDING: Final = (Kind.DROPPED, Kind.RENAMED, Kind.UNPUBLISHED)


def ended_topics(reader: LogReader) -> dict[str, Kind]:
    """Topic → how it ended, by its last record. ``reader``: may be the log as a store sees it, with other columns."""
    found, history = dict[str, Kind](), present_history(reader)  # a DELETE that is gone ends nothing
    for topic in reader.topics():
        if topic.last < topic.kept_from:
            continue  # its last record is gone
        for batch in reader.read(topic.name, Position(topic.last - 1), topic.last, history):
            change = topic_change_of(batch)
            if change is not None and change.kind in ENDING:
                found[topic.name] = change.kind
    return found
