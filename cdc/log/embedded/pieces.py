"""Single changes out of a topic's files, wherever they stand. Files are decoded in pieces, and the pieces that were decoded last are kept: a look at
thousands of changes, and the next one, pay for each piece once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.log.embedded.sealedsegment import SealedSegment
from cdc.log.embedded.segment import Segment
from cdc.log.embedded.topicindex import SegmentRun, TopicIndex
from cdc.log.views import joined, picked
from cdc.model.oldrows import without_old_rows

KEPT_BYTES: Final = 256 * 2**20
CHUNK_BYTES: Final = 2**20
"""About so much of a segment that is not sealed yet is decoded at once."""
FEW: Final = 4
"""Where fewer than one in so many of a chunk's groups are wanted, these alone are decoded."""

Positions = npt.NDArray[np.int64]
Key = tuple[int, ...]


class Pieces:
    """Decoded pieces, at most ``most_bytes`` of them and the newest always. Several threads may ask at the same time."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Key, tuple[list[pa.RecordBatch], int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key, decode: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found[0]
        batches = decode()
        size = sum(batch.nbytes for batch in batches)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = batches, size
                self._bytes += size
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return batches

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0


def of_sealed(pieces: Pieces, key: Key, source: SealedSegment, wanted: Positions) -> Iterator[pa.RecordBatch]:
    """The sealed segment's changes at these positions. ``key``: what tells the segment apart. Raises LogCorrupt."""
    for number, group, first, last in source.row_groups(wanted):
        mine = wanted[wanted.searchsorted(first) : wanted.searchsorted(last, "right")]
        if len(mine):
            batches = pieces.get((*key, number, group), partial(_row_group, source, number, group))
            yield from _picked(batches, mine)


def of_segment(
    pieces: Pieces, key: Key, source: Segment, parts: tuple[TopicIndex, int, int], wanted: Positions
) -> Iterator[pa.RecordBatch]:
    """The same of a segment that is not sealed. ``parts``: the index, and which of its parts are the segment's. Raises LogCorrupt."""
    index, low, high = parts
    lasts, ends = index.parts["last"][low:high], index.parts["bytes"][low:high]
    before = int(index.parts["bytes"][low - 1]) if low else 0
    chunks = (ends - before - 1) // CHUNK_BYTES
    holders = lasts.searchsorted(wanted)
    wanted, holders = wanted[holders < len(lasts)], holders[holders < len(lasts)]
    for chunk in np.unique(chunks[holders]).tolist():
        begin, end = int(chunks.searchsorted(chunk, "left")), int(chunks.searchsorted(chunk, "right"))
        mine = wanted[(holders >= begin) & (holders < end)]
        needed = np.unique(holders[(holders >= begin) & (holders < end)]).tolist()
        if FEW * len(needed) < end - begin:
            for one in needed:
                yield from _picked(_run(source, index.run(low + one, low + one + 1)), mine)
            continue
        run = index.run(low + begin, low + end)
        yield from _picked(pieces.get((*key, run.start, run.end), partial(_run, source, run)), mine)


def _row_group(source: SealedSegment, file: int, number: int) -> list[pa.RecordBatch]:
    return [source.row_group(file, number)]


def _run(source: Segment, run: SegmentRun) -> list[pa.RecordBatch]:
    return list(joined(map(without_old_rows, source.batches(run))))


def _picked(batches: Sequence[pa.RecordBatch], wanted: Positions) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        first, last = int(batch.column(0)[0].as_py()), int(batch.column(0)[-1].as_py())
        mine = wanted[wanted.searchsorted(first) : wanted.searchsorted(last, "right")]
        if len(mine) and len(found := picked(batch, mine)):
            yield found
