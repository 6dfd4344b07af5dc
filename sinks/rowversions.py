"""Versions of rows, in a table beside the current one: from which change to which each was the row, by position and by commit time. Pure.

A version is open (``TO_POSITION`` is NULL) until a change of its key closes it, so the open versions are the current rows. A row that comes again as it is, as
in a snapshot, begins none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.batch import OP, Op
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import SEPARATOR, join_key, row_keys, row_text

FROM_POSITION: Final = "valid_from_position"
TO_POSITION: Final = "valid_to_position"
FROM: Final = "valid_from"
TO: Final = "valid_to"
_HISTORY: Final = " (history)"
SPAN: Final = (FROM_POSITION, TO_POSITION, FROM, TO)


def history_topic(topic: str) -> str:
    """The topic by which a store knows the history of this one."""
    return f"{topic}{_HISTORY}"


def is_history(topic: str) -> bool:
    """Whether ``history_topic`` has made it."""
    return topic.endswith(_HISTORY)


def refuse(store: str, schema: TopicSchema) -> None:
    """Raises ConfigError where the source has a column of a name that the history needs."""
    taken = next((name for name in schema.names if name.lower() in SPAN), None)
    if taken is not None:
        raise ConfigError(
            f"stores.{store}: {schema.topic} has a column {taken}, as its history has", hint="rename it for this store (rename)"
        )


@dataclass(frozen=True, slots=True)
class VersionedChanges:
    """Changes of one definition that begin or end versions, by key. ``rows``: numbers within the batch; a version ends where the key's next change is."""

    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    first: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """The key's first here: what is open of it in the table ends, or is this one."""
    ends: pa.Array
    """int64, the number of the row that ends it within the batch; NULL: none."""


def versioned(batch: pa.RecordBatch, schema: TopicSchema) -> VersionedChanges:
    """Leaves out what says again what the key's change before has said."""
    texts = row_text(batch, schema)
    codes = row_keys(texts, batch, schema).dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    again = np.zeros(len(order), np.bool_)
    pairs = np.flatnonzero(sorted_codes[1:] == sorted_codes[:-1]) + 1
    if len(pairs):
        going = gone(batch)
        said = join_key([*(texts.columns or [pa.array([""] * len(batch))])], SEPARATOR)
        now, before = order[pairs], order[pairs - 1]
        equal = pc.equal(said.take(pa.array(now)), said.take(pa.array(before))).to_numpy(zero_copy_only=False)
        again[pairs] = np.where(going[now] | going[before], going[now] & going[before], equal)
    rows, kept_codes = order[~again], sorted_codes[~again]
    first = np.ones(len(rows), np.bool_)
    first[1:] = kept_codes[1:] != kept_codes[:-1]
    following = np.append(rows[1:], 0)
    ends = pa.array(following, mask=np.append(first[1:], True))
    return VersionedChanges(rows, first, ends)


def gone(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True for each DELETE."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = batch.column(OP).to_numpy() == int(Op.DELETE)
    return found
