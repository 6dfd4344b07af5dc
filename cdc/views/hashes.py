"""Rows hashed and compared by their columns, without an object for each: a hash finds rows that may agree, and the comparison says which do. Pure.

Equality is that of ``cdc.views.cells``: NULL is equal to NULL, NaN to itself, and 0 and -0 are two values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.digests import U64, fold_column

Places = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

_GOLDEN: Final = 0x9E3779B97F4A7C15
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_WORD: Final = 0xFFFFFFFFFFFFFFFF
_DECIMAL: Final = pa.binary(16)
_BITS: Final[dict[int, pa.DataType]] = {32: pa.int32(), 64: pa.int64()}
_NUMBERED: Final = 24
"""The lowest bits of a hash, which do not count in a run: while it is sorted they hold the rows' numbers. The 40 others tell rows apart well enough, and words are
sorted several times as fast as places by words."""
_NUMBERS: Final = np.uint64((1 << _NUMBERED) - 1)


def columns_of(rows: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """These columns, each in one piece."""
    return [rows.column(name).combine_chunks() for name in names]


def hashed(columns: Sequence[pa.Array], rows: int) -> U64:
    """A hash of each row. Integers of any width that are equal have the same hash."""
    found = np.zeros(rows, np.uint64)
    if not rows:
        return found
    for number, column in enumerate(columns, 1):
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            fold_column(column, number * _GOLDEN & _WORD, found)
            continue
        for word in _words(column):
            found += np.uint64(number * _GOLDEN & _WORD)
            found ^= word
            _mix(found)
    return found


def _mix(values: U64) -> None:
    """Every bit of a value comes to be in every bit of it, in place (murmur3's last step)."""
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)


def _words(column: pa.Array) -> list[U64]:
    """The values as words of 64 bits."""
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    words: list[U64]
    if pa.types.is_decimal128(column.type):
        pairs = np.frombuffer(column.buffers()[1], np.uint64, 2 * len(column), 16 * column.offset).reshape(-1, 2)
        words = [pairs[:, 0], pairs[:, 1]]
    else:
        whole = _whole(column)
        if nulls is not None:
            whole = pc.fill_null(whole, 0)
        words = [whole.cast(pa.int64()).to_numpy().view(np.uint64)]
    return words if nulls is None else [np.where(nulls, _NULL, word) for word in words]


def _whole(column: pa.Array) -> pa.Array:
    """The values as whole numbers, which are equal where the values are."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_signed_integer(kind):
        return column
    return column.view(_BITS[kind.bit_width])


def alike(one: pa.Array, other: pa.Array) -> Truths:
    """Whether the values are equal, place by place. Integers may be of two widths, and decimals of one scale of two precisions."""
    if pa.types.is_decimal(one.type):
        one, other = one.view(_DECIMAL), other.view(_DECIMAL)
    elif pa.types.is_floating(one.type):
        one, other = _whole(one), _whole(other)
    same = pc.equal(one, other)
    if same.null_count:
        same = pc.or_(pc.fill_null(same, False), pc.and_(one.is_null(), other.is_null()))
    found: Truths = same.to_numpy(zero_copy_only=False)
    return found


def once(places: Places) -> Places:
    """In order, each once. (numpy's own ``unique`` looks each of them up in a table.)"""
    found = np.sort(places)
    return found[np.concatenate([[True], found[1:] != found[:-1]])] if len(found) else found


@dataclass(frozen=True, slots=True)
class HashRun:
    """Places of rows in the order of the rows' hashes, as far as these count; of equal ones in the order of the places."""

    hashes: U64
    places: Places

    @classmethod
    def of(cls, hashes: U64, first: int = 0) -> HashRun:
        """The run of rows that lie one after another from place ``first`` on."""
        counted = hashes & ~_NUMBERS
        if len(hashes) > int(_NUMBERS):
            order = np.argsort(counted, kind="stable")
            return cls(counted[order], order + first)
        counted |= np.arange(len(hashes), dtype=np.uint64)
        counted.sort()
        places = (counted & _NUMBERS).view(np.int64)
        places += first
        counted &= ~_NUMBERS
        return cls(counted, places)

    def pairs(self, asked: U64) -> tuple[Places, Places]:
        """Each place whose row's hash is asked for: (which of those asked, the place)."""
        if not (len(self.hashes) and len(asked)):
            return NOWHERE, NOWHERE
        low = np.searchsorted(self.hashes, asked)
        which = np.flatnonzero(self.hashes.take(low, mode="clip") == asked)
        first = low[which]
        counts = np.searchsorted(self.hashes, asked[which], "right") - first
        ends = np.cumsum(counts)
        within = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
        return np.repeat(which, counts), self.places[within]


NOWHERE: Final[Places] = np.zeros(0, np.int64)


def in_turn(numbers: Places) -> Places:
    """The order of these numbers, of which none is negative; equal ones as they come."""
    return HashRun.of(numbers.view(np.uint64) << np.uint64(_NUMBERED)).places


def agreeing(
    runs: Iterable[HashRun], asked: Sequence[pa.Array], rows: int, stored: Callable[[Places], Sequence[pa.Array]]
) -> tuple[Places, Places]:
    """All pairs (row that is asked for, place) whose values are equal. ``stored``: the columns that are asked by, at these places."""
    sought = HashRun.of(hashed(asked, rows))  # in order, so that neighbours are looked for one after another
    found = [run.pairs(sought.hashes) for run in runs]
    which = sought.places[np.concatenate([NOWHERE, *(one for one, _ in found)])]
    places = np.concatenate([NOWHERE, *(other for _, other in found)])
    if not len(which):
        return which, places
    same = np.ones(len(which), np.bool_)
    taken = pa.array(which)
    for mine, theirs in zip(asked, stored(places), strict=True):
        same &= alike(mine.take(taken), theirs)
    return (which, places) if same.all() else (which[same], places[same])


def merged(runs: Sequence[HashRun], piece: int) -> Iterable[HashRun]:
    """The places of all runs in one order, in pieces of about so many."""
    longest: Any = max(runs, key=lambda run: len(run.hashes))
    bounds = longest.hashes[piece::piece].tolist()
    starts = [0] * len(runs)
    for bound in [*bounds, None]:
        ends = [len(run.hashes) if bound is None else int(np.searchsorted(run.hashes, np.uint64(bound))) for run in runs]
        hashes = np.concatenate([run.hashes[a:b] for run, a, b in zip(runs, starts, ends, strict=True)])
        places = np.concatenate([run.places[a:b] for run, a, b in zip(runs, starts, ends, strict=True)])
        order = np.argsort(hashes, kind="stable")
        yield HashRun(hashes[order], places[order])
        starts = ends
