"""A view's net changes as groups for the inbox: of bounded size, and the same bytes for the same changes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.derive.ports import TextTypes
from cdc.errors import Stopped, StopState
from cdc.inbox.definition import table_for
from cdc.inbox.rowchecks import DELETE, UPSERT
from cdc.inbox.rows import topic_columns
from cdc.model.batch import EXACT, OP
from cdc.model.table import Table
from cdc.views.contract import Delta

_NONE: Final[TextTypes] = {}
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 24 * 2**20
"""The size of one group, as Arrow counts it; the inbox takes 64 MiB."""


def pieces(delta: Delta, key: Sequence[str], typed: TextTypes = _NONE) -> list[list[pa.RecordBatch]]:
    """The groups, each as batches with ``OP`` first: rows in their order, then the keys that are gone. Raises Stopped for a key that is NULL."""
    rows = _as_topic(delta.rows, typed)
    for name in key:
        if rows.column(name).null_count or delta.gone.column(name).null_count:
            raise Stopped(
                StopState.VIEW_REFUSED,
                f"column {name} of the view's key is NULL in one of its rows",
                hint="choose a key whose columns are never NULL, such as coalesce(…); then cdc resume VIEW_REFUSED",
            )
    gone = _with_every_column(delta.gone.select(list(key)), rows.schema)
    whole = pa.concat_tables([_with_op(rows, UPSERT), _with_op(gone, DELETE)])
    # Taken, values beneath a NULL are zero: the same rows are the same bytes.
    whole = whole.take(pa.array(np.arange(len(whole)))).combine_chunks()
    step = _step(whole)
    return [whole.slice(at, step).combine_chunks().to_batches() for at in range(0, len(whole), step)]


def rowless(rows: pa.Table, typed: TextTypes = _NONE) -> list[pa.RecordBatch]:
    """The batches of a group that tells how such rows are defined, and has none."""
    schema = _with_op(_as_topic(rows.slice(0, 0), typed), UPSERT).schema
    return [pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)]


def _step(whole: pa.Table) -> int:
    """The number of rows in a group."""
    if not len(whole):
        return 1
    each = whole.nbytes / len(whole)
    return max(1, min(MAX_ROWS, int(MAX_BYTES / max(each, 1.0))))


def topic_table(topic: str, rows: pa.Table, key: Sequence[str], typed: TextTypes = _NONE) -> Table:
    """The topic's definition as rows of these columns bring it."""
    return table_for(topic, list(_as_topic(rows.slice(0, 0), typed).schema), key)


def _with_op(rows: pa.Table, op: str) -> pa.Table:
    return rows.add_column(0, pa.field(OP, pa.utf8()), pa.repeat(op, len(rows)))


def _with_every_column(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    arrays = [
        keys.column(field.name).cast(field.type) if field.name in keys.column_names else pa.nulls(len(keys), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_topic(rows: pa.Table, typed: TextTypes) -> pa.Table:
    if EXACT in rows.column_names:
        if rows.column(EXACT).null_count < len(rows):
            raise _not_exact(rows)
        rows = rows.drop_columns([EXACT])
    found = topic_columns(rows, None)
    fields = [one.with_metadata(dict(typed[one.name])) if one.name in typed else one for one in found.schema]
    return found.cast(pa.schema(fields))


def _not_exact(rows: pa.Table) -> Stopped:
    names = {name for entries in rows.column(EXACT).drop_null().to_pylist() for name, _ in entries}
    return Stopped(
        StopState.VIEW_REFUSED,
        f"column {min(names, default='?')} of the view has a value that a topic cannot hold, such as infinity",
        hint="correct it at the source, or leave the column out of the view; then cdc resume VIEW_REFUSED",
    )


def difference(now: pa.Table, held: pa.Table | None, key: Sequence[str]) -> Delta:
    """The changes that lead from the rows that the topic holds to those that the view has now. ``held``: None where the topic holds none yet."""
    if EXACT in now.column_names:
        raise _not_exact(now)
    now = topic_columns(now, None)
    if held is None or not len(held):
        return Delta(now, now.select(list(key)).slice(0, 0))
    left = now.select(list(key)).append_column("__now", pa.array(np.arange(len(now))))
    right = held.select(list(key)).cast(left.select(list(key)).schema).append_column("__held", pa.array(np.arange(len(held))))
    met = left.join(right, keys=list(key), join_type="inner")
    at_now, at_held = met.column("__now").to_numpy(), met.column("__held").to_numpy()
    alike = np.ones(len(met), np.bool_)
    one, other = now.take(pa.array(at_now)), held.take(pa.array(at_held))
    for name in now.column_names:
        if name not in held.column_names or not one.column(name).type.equals(other.column(name).type):
            alike[:] = False
            break
        alike &= _equal(one.column(name), other.column(name))
    if EXACT in held.column_names:
        alike &= other.column(EXACT).is_null().to_numpy()
    changed = np.ones(len(now), np.bool_)
    changed[at_now[alike]] = False
    lost = np.ones(len(held), np.bool_)
    lost[at_held] = False
    return Delta(now.filter(pa.array(changed)), held.select(list(key)).filter(pa.array(lost)))


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    both_null = pc.and_(one.is_null(), other.is_null())
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.or_(pc.fill_null(pc.equal(one, other), False), both_null).to_numpy()
    return found
