"""Rows from before their topic was redefined, as rows of its present types: what a change replaced may have been of other types than the row that came. Pure.

Such values stand beside the row, as the texts that they were (``sinks.reshape.conformed``). To whoever compares, or prints, the row before they are values of the
present type where that has them, as ``7`` is ``7.00`` of a ``numeric(12,2)``, and NULL where it has not, as in every store until the rows come again.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT, topic_schema
from sinks.render.fromtext import exact_column, retyped
from sinks.render.rowtext import exact_values


def of_their_types(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, whose exact texts are none but those that their columns' types have."""
    texts, schema = exact_values(rows), topic_schema(rows.schema)
    fields = [one for one in schema.fields if one.name in texts and not pa.types.is_string(one.type)]
    if not fields:
        return rows
    left: dict[str, Mapping[int, str]] = {
        name: dict(zip(one.rows.tolist(), one.texts.to_pylist(), strict=True)) for name, one in texts.items()
    }
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for field in fields:
        given = left.pop(field.name)
        values, odd = retyped(pa.array([given.get(row) for row in range(len(rows))], pa.utf8()), field)
        columns[field.name] = pc.coalesce(columns[field.name], values)
        left[field.name] = odd
    columns[EXACT] = exact_column(len(rows), left)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)
