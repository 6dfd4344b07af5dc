"""Whether a view's sources are in the log as a whole: as long as one of them is still being read, the view stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cdc.derive.inforce import ViewWaits, in_force
from cdc.derive.ports import DeclaredView
from cdc.errors import HeadwaterError
from cdc.inbox.verdicts import InboxMark
from cdc.log.contract import LogReader, Topic
from cdc.model.position import Position
from cdc.replay.state import definition_at
from cdc.state import status
from cdc.views.marks import ViewMark


def lacking(log: LogReader, run_dir: Path, topics: Sequence[str]) -> str | None:
    """Says what the view waits for; None: all of its sources are whole."""
    known = {topic.name: topic for topic in log.topics()}
    # Read after the topics: capture says that a table is to be read before the log has anything of it.
    saved = status.read_capture(run_dir)
    for name in topics:
        topic = known.get(name)
        if topic is None:
            return f"{name} is not in the log yet"
        why = _view_lacks(log, topic) if topic.table.derived else _table_lacks(saved, name)
        if why is not None:
            return why
    return None


def going_over(views: Mapping[str, DeclaredView], log: LogReader, at: Position) -> str | None:
    """The first of these views that does not show, as of this cut, what is declared of it, or whose own sources do not; None: all of them do. ``views``: by
    topic."""
    known = {topic.name: topic for topic in log.topics()}
    for name, view in views.items():
        topic = known.get(name)
        mark = None if topic is None else mark_in_log(log, topic.producer)
        try:
            if topic is None or mark is None or mark.digest != in_force(view, log, at).digest:
                return name
            if definition_at(log, name, at) != topic.schema:
                return name  # it has gone over since
        except (ViewWaits, HeadwaterError):
            return name
    return None


def _view_lacks(log: LogReader, topic: Topic) -> str | None:
    mark = mark_in_log(log, topic.producer)
    return f"{topic.name} is not built yet" if mark is not None and not mark.reflected else None


def mark_in_log(log: LogReader, producer: str) -> ViewMark | None:
    """The view's, without opening its producer."""
    with suppress(ValueError):
        return ViewMark.read(InboxMark.decode(log.marks().get(producer)).to)
    return None


def _table_lacks(saved: status.CaptureStatus | None, table: str) -> str | None:
    if saved is None:
        return f"capture has not said yet whether {table} is in the log as a whole"
    if saved.complete_position is not None:
        return None
    found = next((one for one in saved.snapshot if one.table == table), None)
    if found is not None and found.finished:
        return None
    if found is None:
        return f"capture has not said yet whether {table} is in the log as a whole"
    return f"{table} is still being read ({found.done} of about {found.total} rows)"
