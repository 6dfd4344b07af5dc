"""The rows of a view's topic, and what the topic lacks of a state's rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdc.derive.computation import Computation
from cdc.derive.pieces import difference, pieces, rowless
from cdc.derive.sourcerows import rows_at_head
from cdc.inbox.definition import numbered, refuses, rekeyed
from cdc.log.contract import LogReader
from cdc.model.batch import EXACT, META_FIELDS
from cdc.views.contract import Delta

Groups = list[list[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class LackingRows:
    """The groups that make of the topic's rows those of a state. ``redefines``: the first of them changes the topic's key, or the types of columns that stay."""

    groups: Groups
    redefines: bool = False


def lacking_rows(log: LogReader, topic: str, one: Computation) -> LackingRows:
    """The groups of what the topic lacks of this state's rows, and of what it has beyond them. Raises Stopped for a row that a topic cannot hold."""
    view, rows = one.view.view, one.kernel.rows()
    known = next((known.table for known in log.topics() if known.name == topic), None)
    redefines = known is not None and refuses(known, view.table) is not None
    # Under another key the earlier rows are gone with the definition (``cdc.inbox.changes``).
    held = None if known is None or rekeyed(known, view.table) else held_rows(log, topic)
    found = pieces(difference(rows, held, view.key), view.key, view.typed)
    if not found and (known is None or redefines or numbered(view.table, known, one.cut) != known):
        found = [rowless(rows, view.typed)]  # what reads the view, or holds it, has to know how it is defined
    return LackingRows(found, redefines)


def output_groups(log: LogReader, topic: str, one: Computation, output: Delta) -> Groups:
    """The groups of what came out of a step. Raises Stopped as above."""
    view = one.view.view
    if output.emptied:
        output = difference(output.rows, held_rows(log, topic), view.key)
    return pieces(output, view.key, view.typed)


def held_rows(log: LogReader, topic: str) -> pa.Table | None:
    """The topic's rows as of the log's head, with their exact texts: those have rows only that came before the topic was redefined."""
    batches = rows_at_head(log, topic)
    if not batches:
        return None
    meta = {field.name for field in META_FIELDS} - {EXACT}
    own = [name for name in batches[0].schema.names if name not in meta]
    return pa.Table.from_batches([batch.select(own).replace_schema_metadata(None) for batch in batches])
