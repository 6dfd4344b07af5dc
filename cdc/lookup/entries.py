"""Pairs of a key's digest and a position, as two arrays sorted by both: what a run is made of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.digests import digests

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """One pair for each change, sorted by digest, those of one digest by position."""

    hashes: U64
    positions: I64

    @property
    def pairs(self) -> int:
        return len(self.hashes)


_NUMBER_BITS: Final = 20
_NUMBER: Final = np.uint64((1 << _NUMBER_BITS) - 1)
NO_ENTRIES = Entries(np.empty(0, np.uint64), np.empty(0, np.int64))


def hashed(keys: pa.Array, seed: int) -> U64:
    """The digest of each key (utf8, as ``sinks.render.rowtext.keys`` gives them). Its last bits are 0, where sorting puts rows' numbers."""
    return digests(pa.RecordBatch.from_arrays([keys], names=["key"]), (0,), seed).high & ~_NUMBER


def sorted_entries(hashes: U64, positions: I64) -> Entries:
    """positions: rising. Up to 2**20 of them are sorted fast."""
    if len(hashes) > 1 << _NUMBER_BITS:
        order = np.argsort(hashes, kind="stable")
        return Entries(hashes[order], positions[order])
    numbered = np.sort(hashes | np.arange(len(hashes), dtype=np.uint64))
    return Entries(numbered & ~_NUMBER, positions[(numbered & _NUMBER).astype(np.int64)])


def newest_below(entries: Entries, wanted: U64, below: I64) -> I64:
    """For each digest the highest of its positions that is lower than its ``below``; 0 where there is none. Fastest where ``wanted`` rises."""
    hashes, positions = entries
    if not len(hashes):
        return np.zeros(len(wanted), np.int64)
    first = hashes.searchsorted(wanted, "left")
    low, high = first.copy(), first.copy()
    there = np.flatnonzero(hashes[np.minimum(first, len(hashes) - 1)] == wanted)
    high[there] = hashes.searchsorted(wanted[there], "right")
    while len(there):
        # A binary search in each digest's stretch, all of them a step at a time.
        there = there[low[there] < high[there]]
        middle = (low[there] + high[there]) >> 1
        earlier = positions[middle] < below[there]
        low[there[earlier]] = middle[earlier] + 1
        high[there[~earlier]] = middle[~earlier]
    return np.where(low > first, positions[np.maximum(low - 1, 0)], 0)


def newest(runs: Sequence[Entries], wanted: U64, below: I64) -> I64:
    """The same over several: each holds higher positions than those before it, or the same."""
    found = np.zeros(len(wanted), np.int64)
    missing = np.arange(len(wanted))
    for entries in reversed(runs):
        if not len(missing):
            break
        found[missing] = newest_below(entries, wanted[missing], below[missing])
        missing = missing[found[missing] == 0]
    return found


def merged(runs: Sequence[Entries], most: int) -> Iterator[Entries]:
    """All pairs of these runs, in pieces of at most about twice ``most`` that follow one another; each run's positions are higher than those of the runs
    before."""
    step = max(1, most // len(runs))
    marks = [one.hashes[step::step] for one in runs]
    # A digest that fills a step by itself, as one key's does that changes over and over, is taken alone: its pairs are in order already.
    alone = np.unique(np.concatenate([mark[1:][mark[1:] == mark[:-1]] for mark in marks]))
    bounds = np.unique(np.concatenate([*marks, alone, alone + np.uint64(1)]))
    ends = [np.append(one.hashes.searchsorted(bounds, "left"), one.pairs) for one in runs]
    begins = [0] * len(runs)
    for piece in range(len(bounds) + 1):
        parts = [(one, begin, int(end[piece])) for one, begin, end in zip(runs, begins, ends, strict=True)]
        begins = [end for _, _, end in parts]
        if piece and bounds[piece - 1] in alone:
            for one, begin, end in parts:
                yield from (_part(one, at, min(at + most, end)) for at in range(begin, end, most))
            continue
        found = Entries(*(np.concatenate(arrays) for arrays in zip(*(_part(*part) for part in parts), strict=True)))
        order = np.argsort(found.hashes, kind="stable")  # fast where long stretches are sorted already
        yield Entries(found.hashes[order], found.positions[order])


def _part(run: Entries, begin: int, end: int) -> Entries:
    return Entries(run.hashes[begin:end], run.positions[begin:end])
