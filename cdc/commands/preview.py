"""`cdc preview`: what a store would be given for rows of the log, touching no store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdc.commands.invocation import invocation, open_log, store_options, unopened_sink
from cdc.commands.output import print_json, say
from cdc.errors import ConfigError
from cdc.terminal import quoted

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.log.contract import LogReader, Topic
    from cdc.model.topic import TopicSchema
    from cdc.settings.models import StoreOptions
    from sinks.contract import Sink
    from sinks.heldlog import HeldLog

SAMPLED_ROWS: Final = 3
WINDOW: Final = 4096
"""Positions looked at once, for a topic's last rows; then more and more."""
WINDOW_MAX: Final = 1_000_000


def preview(
    context: typer.Context,
    store: Annotated[str, typer.Argument(help="The store's name.")],
    table: Annotated[str | None, typer.Option(help="Only this table (schema.table); all of the store's when left out.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="The row with this key: its value or, for a key of several columns, column=value for each."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of each table.", min=1, max=1000)] = SAMPLED_ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a store would hold of the log's newest rows, touching no store: each row once, as it is now, and none that is deleted.

    This prints row values.
    """
    from cdc.lookup.former import held_log

    settings = invocation(context).settings()
    options = store_options(settings, store)
    if key and table is None:
        raise ConfigError("--key is of one table", hint="add --table schema.table")
    with closing(open_log(settings)) as log, closing(unopened_sink(settings, store)) as sink:
        held = held_log(log, store, options, settings.log.dir)
        topics = _topics(log, store, options, table)
        held.check()
        found = {topic.name: _of_topic(held, topic, sink, key, rows) for topic in topics}
    if as_json:
        print_json({"store": store, "tables": found})
    else:
        for one in lines(found):
            say(one)


def lines(found: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[str]:
    """One line for each part of each row, below its table."""
    for table, rows in found.items():
        yield f"{quoted(table)}:" if rows else f"{quoted(table)}: no row in what was looked at"
        for row in rows:
            for number, (part, text) in enumerate(row.items()):
                yield f"{'  ' if number else '- '}{part}: {text}"


def _topics(log: LogReader, store: str, options: StoreOptions, table: str | None) -> Sequence[Topic]:
    from cdc.log.contract import selected
    from cdc.replay.query import topics

    topics(log, None)  # says what is missing where there is no log
    found = sorted(selected(log, options.tables), key=lambda topic: topic.name)
    wanted = [topic for topic in found if table in (None, topic.name)]
    if not wanted:
        hint = f"tables of {store}: {', '.join(topic.name for topic in found) or 'none yet'}"
        raise ConfigError(
            f"store {store} has no table {table} in the log" if table else f"the log has no table of store {store}", hint=hint
        )
    return wanted


def _of_topic(held: HeldLog, topic: Topic, sink: Sink, key: list[str] | None, rows: int) -> list[dict[str, str]]:
    schema = held.held(topic.schema)
    batches = _with_key(held, topic.name, key) if key else _newest(held, topic, rows)
    found: list[dict[str, str]] = []
    for batch in batches:
        found = [*_shown(batch, schema, sink), *found]
    return found[-rows:]


def _shown(batch: pa.RecordBatch, schema: TopicSchema, sink: Sink) -> Iterator[dict[str, str]]:
    """What the store would be given for each row; for one that would be a dead letter, why."""
    import pyarrow as pa

    from cdc.model.batch import POSITION
    from sinks.holding import failures_of
    from sinks.reshape import conformed

    failures = failures_of(batch)
    for row, why in failures.items():
        yield {"dead letter": f"{schema.topic}@{batch.column(POSITION)[row].as_py()}", "why": why}
    left = batch.filter(pa.array([row not in failures for row in range(len(batch))], pa.bool_())) if failures else batch
    yield from (dict(row) for row in sink.preview(conformed(left, schema)))


def _newest(held: HeldLog, topic: Topic, rows: int) -> Iterator[pa.RecordBatch]:
    """The topic's newest rows as they are now, at least so many if there are so many near the log's end; the last batch first."""
    from cdc.log.contract import present_history
    from cdc.model.batch import OP, Op
    from cdc.model.evolution import topic_change_of
    from cdc.model.position import Position

    upto, window, there, seen = int(topic.last), WINDOW, 0, set[str]()
    while upto > 0 and there < rows and window <= WINDOW_MAX:
        after = max(0, upto - window)
        for batch in reversed(list(held.read(topic.name, Position(after), Position(upto), present_history(held)))):
            change = topic_change_of(batch)
            if batch.column(OP)[0].as_py() == Op.TRUNCATE or (change is not None and change.empties):
                return
            if change is None and len(found := _rows_only(_last_of_each(batch, seen))):
                there += len(found)
                yield found
        upto, window = after, window * 2


def _last_of_each(batch: pa.RecordBatch, seen: set[str]) -> pa.RecordBatch:
    """The last change of each key that has not been seen: later changes have to be asked for first."""
    import numpy as np
    import pyarrow as pa

    from cdc.model.batch import topic_schema
    from sinks.render.rowtext import keys

    mask = np.zeros(len(batch), np.bool_)
    for row, key in reversed(list(enumerate(keys(batch, topic_schema(batch.schema)).to_pylist()))):
        mask[row] = key not in seen
        seen.add(key)
    return batch.filter(pa.array(mask))


def _with_key(held: HeldLog, topic: str, key: list[str]) -> Iterator[pa.RecordBatch]:
    """The row with this key as it is now; none when it is gone."""
    from cdc.log.contract import present_history
    from cdc.model.evolution import topic_change_of
    from cdc.model.position import START
    from cdc.model.topic import TopicSchema
    from cdc.replay.match import KeyMatch
    from cdc.replay.query import LogQuery, topics

    match = KeyMatch.of(TopicSchema.of(topics(held, topic)[0].table), key)
    last: pa.RecordBatch | None = None
    for found in LogQuery(START, held.head().position, match=match, history=present_history(held)).of(held, topic):
        change = topic_change_of(found.changes)
        if change is None or change.empties:
            last = found.changes.slice(len(found.changes) - 1)
    if last is not None and len(row := _rows_only(last)):
        yield row


def _rows_only(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without deletes, and what is of the table as a whole; with rows that would be dead letters."""
    import numpy as np
    import pyarrow as pa

    from cdc.model.batch import OP, Op
    from sinks.holding import failures_of

    rows = np.isin(batch.column(OP).to_numpy(), [int(op) for op in (Op.INSERT, Op.UPDATE, Op.READ)])
    rows[list(failures_of(batch))] = True
    return batch.filter(pa.array(rows))
