"""The log's rows of a table that is read again (``snapshots.loggedrows.LoggedRows``), computed from the log alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import LogAway, LogCorrupt, PositionGone
from cdc.log.contract import LogReader, Topic
from cdc.model.batch import POSITION, first_position
from cdc.model.position import Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.past import rows_and_under
from sinks.render.rowtext import column_text, exact_values
from sinks.reshape import rekeyed, same_origin
from snapshots.plan import Key

KEYS_AT_ONCE: Final = 5_000


class LoggedTables:
    """See the module's text. ``opened``: a reader of the log, to be closed by whoever asks. ``logged``: a table's definition as the log would
    have it; from any thread."""

    def __init__(
        self, opened: Callable[[], AbstractContextManager[LogReader]], logged: Callable[[Table], Table] = lambda table: table
    ) -> None:
        self._opened = opened
        self._logged = logged

    def since(self, table: Table, index: Sequence[str]) -> Position | None:
        try:
            with self._opened() as log:
                topic = _topic(log, table)
                if topic is None or not _comparable(topic, TopicSchema.of(self._logged(table)), index):
                    return None
                return log.head().position
        except (LogAway, LogCorrupt, OSError):
            return None

    def unread(self, table: Table, index: Sequence[str], since: int, go_on: Callable[[], None]) -> Iterator[Sequence[Key]]:
        with self._opened() as log:
            shape, topic = TopicSchema.of(self._logged(table)), _topic(log, table)
            if topic is None or not _comparable(topic, shape, index):
                raise PositionGone(f"the log's rows of {table.qualified} are not the table's any more")
            for logged, now in rows_and_under(log, shape, log.head().position, Position(since), go_on=go_on):
                go_on()
                if first_position(logged) > since:
                    return
                yield from _keys(now.filter(pc.less_equal(logged.column(POSITION), since)), index)


def _topic(log: LogReader, table: Table) -> Topic | None:
    return next((topic for topic in log.topics() if topic.name == table.qualified), None)


def _comparable(topic: Topic, now: TopicSchema, index: Sequence[str]) -> bool:
    """Whether the topic's rows are this table's, all of them still there, under keys by which the source finds them; and nothing of them is in
    the log otherwise than it would be logged now."""
    logged = topic.schema
    policies = {one.origin: one.protected for one in logged.fields}
    return (
        topic.kept_from <= 1
        and same_origin(logged, now)
        and not rekeyed(logged, now)
        and [one.source_type for one in logged.key] == [one.source_type for one in now.key]
        and bool(now.key)
        and {one.name for one in now.key} == set(index)
        and not any(one.protected for one in now.key)
        and all(policies.get(one.origin, one.protected) == one.protected for one in now.fields)
        and (logged == now or all(one.origin for one in (*logged.fields, *now.fields)))
    )


def _keys(rows: pa.RecordBatch, index: Sequence[str]) -> Iterator[Sequence[Key]]:
    for at in range(0, len(rows), KEYS_AT_ONCE):
        piece = rows.slice(at, KEYS_AT_ONCE)
        exact = exact_values(piece)
        yield list(zip(*(column_text(piece, name, exact).to_pylist() for name in index), strict=True))
