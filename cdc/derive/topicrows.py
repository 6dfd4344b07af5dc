"""The rows of a view's topic, and what the topic lacks of a state's rows."""

from __future__ import annotations

import pyarrow as pa

from cdc.derive.computation import PAST_BYTES, Computation
from cdc.derive.pieces import difference, pieces, rowless
from cdc.log.contract import LogReader
from cdc.model.batch import META_FIELDS
from cdc.replay.state import rows_as_of
from cdc.views.contract import Delta

Groups = list[list[pa.RecordBatch]]


def lacking_groups(log: LogReader, topic: str, one: Computation) -> Groups:
    """The groups of what the topic lacks of this state's rows, and of what it has beyond them. Raises Stopped for a row that a topic cannot hold."""
    view, rows = one.view.view, one.kernel.rows()
    found = pieces(difference(rows, held_rows(log, topic), view.key), view.key, view.typed)
    if not found and not any(known.name == topic for known in log.topics()):
        return [rowless(rows, view.typed)]  # what reads the view has to know how it is defined
    return found


def output_groups(log: LogReader, topic: str, one: Computation, output: Delta) -> Groups:
    """The groups of what came out of a step. Raises Stopped as above."""
    view = one.view.view
    if output.emptied:
        output = difference(output.rows, held_rows(log, topic), view.key)
    return pieces(output, view.key, view.typed)


def held_rows(log: LogReader, topic: str) -> pa.Table | None:
    """The topic's rows as of the log's head."""
    batches = list(rows_as_of(log, topic, log.head().position, memory_bytes=PAST_BYTES))
    if not batches:
        return None
    meta = {field.name for field in META_FIELDS}
    own = [name for name in batches[0].schema.names if name not in meta]
    return pa.Table.from_batches([batch.select(own).replace_schema_metadata(None) for batch in batches])
