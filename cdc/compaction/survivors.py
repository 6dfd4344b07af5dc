"""The changes of one topic that stay. Pure, in bounded memory whatever the number of keys (``sinks.newest``).

A topic's changes are divided into *chapters* by what changes the meaning of keys: a TRUNCATE, a SCHEMA record that empties the topic, and one after which
the key is another. Keys are compared within a chapter only. Of each chapter the last change of each key stays, and

- a DELETE goes once it is below the floor, as long as no earlier chapter has left a row: that row might be what it deletes;
- once what emptied the topic is below the floor, the chapters before it go wholly, and with them a TRUNCATE itself;
- SCHEMA records always stay: they say how what follows is to be read.

Topics whose rows have no key, or only all of their columns together, keep everything: there equal rows may be several.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import META_FIELDS, OP, Op, first_position, is_truncate, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.topic import TopicSchema
from sinks.barrier import emptied
from sinks.newest import Newest, PositionSet
from sinks.render.rowtext import keys

MEMORY_BYTES: Final = 64 << 20
"""What the keys may take, batches being read not counted."""


def only_keys(schema: pa.Schema) -> pa.Schema:
    """The columns of a batch that ``Survivors`` looks at."""
    names = {field.name for field in META_FIELDS} | {field.name for field in topic_schema(schema).key}
    return pa.schema([field for field in schema if field.name in names], metadata=schema.metadata)


def compactable(schema: TopicSchema) -> bool:
    """Whether a later change can be known to be one of the same row."""
    whole_rows = schema.identity == "row" and all(field.key for field in schema.fields)
    return bool(schema.key) and not whole_rows


class Survivors:
    """Takes all changes of a topic below ``clean_from``, in order (``only_keys`` of them will do), then says which of them stay.

    ``floor``: DELETEs and TRUNCATEs at positions below it may go.
    """

    def __init__(self, clean_from: int, floor: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self._clean_from = clean_from
        self._floor = floor
        self._memory_bytes = memory_bytes
        self._chapter = Newest(memory_bytes)
        self._stay = PositionSet(0, clean_from, memory_bytes)
        self._definitions: list[int] = []
        self._held: TopicSchema | None = None
        self._rows_stay = False
        """Whether an earlier chapter has left a row."""

    def take(self, batch: pa.RecordBatch) -> None:
        """A batch that stands wholly below the clean point; a change of the table as a whole alone in it."""
        schema, change = topic_schema(batch.schema), topic_change_of(batch)
        at = first_position(batch)
        if is_truncate(batch):
            self._empty(at, stays=at >= self._floor)
        elif change is not None:
            if emptied(self._held, change):
                self._empty(at, stays=True)
            elif self._held is not None and self._held.key != schema.key:
                self._end_chapter()
            self._definitions.append(at)
        elif compactable(schema):
            deleted = pc.equal(batch.column(OP), int(Op.DELETE)).cast(pa.int64())
            self._chapter.add(keys(batch, schema), pc.add(pc.multiply(batch.column(0), 2), deleted))
        else:
            self._stay.add(batch.column(0).to_numpy())
            self._rows_stay = True
        self._held = schema

    def chosen(self) -> PositionSet:
        """The positions that stay. Ends it."""
        self._end_chapter()
        self._chapter.close()
        self._stay.add(np.array(self._definitions, np.int64))
        return self._stay

    def close(self) -> None:
        self._chapter.close()

    def _empty(self, at: int, *, stays: bool) -> None:
        """The topic was emptied here. ``stays``: the change that says so does."""
        if at < self._floor:
            self._chapter.close()
            self._chapter = Newest(self._memory_bytes)
            self._stay = PositionSet(0, self._clean_from, self._memory_bytes)
            self._rows_stay = False
        else:
            self._end_chapter()
        if stays:
            self._stay.add(np.array([at], np.int64))

    def _end_chapter(self) -> None:
        rows_stay = False
        with closing(self._chapter) as chapter:
            for found in chapter.highest():
                positions, lives = found >> 1, found & 1 == 0
                stay = lives | self._rows_stay | (positions >= self._floor)
                self._stay.add(positions[stay])
                rows_stay |= bool(lives.any())
        self._rows_stay |= rows_stay
        self._chapter = Newest(self._memory_bytes)
