"""Whole columns of Postgres's text as JSON literals: by kernels where they can, value by value (``literals``) for what they leave."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.render import linekernels as kernels
from sinks.render.documentkernels import document_lines
from sinks.render.kinds import Kind, Leaf, List
from sinks.render.literals import literal, survives
from sinks.render.texts import NOTHING, Texts, binary_view, raw_texts, readonly
from sinks.render.tokenkernels import LiteralLines, doubtful_numbers

Mask = npt.NDArray[np.bool_]
Doubts = npt.NDArray[np.int64]

_SCALARS: Final = {Leaf.NUMBER: kernels.AS_NUMBER, Leaf.BOOL: kernels.AS_BOOL, Leaf.MOMENT: kernels.AS_MOMENT}
_DOCUMENTS: Final = {Leaf.JSON: False, Leaf.LOOSE_JSON: False, Leaf.JSONB: True}


def literal_texts(values: pa.Array, kind: Kind, *, doubles: bool = False) -> Texts:
    """Each value (utf8) as ``literals.literal`` has it; anything where it is NULL."""
    source, offsets = binary_view(values)
    if isinstance(kind, Leaf) and kind in _DOCUMENTS:
        found = document_lines(source, offsets, _DOCUMENTS[kind], doubles)
    elif isinstance(kind, Leaf) and kind in _SCALARS:
        found = kernels.scalar_lines(source, offsets, _SCALARS[kind], doubles)
    elif isinstance(kind, List) and kind.delimiter == "," and (kind.element in _SCALARS or kind.element is Leaf.TEXT):
        how = _SCALARS.get(kind.element, kernels.AS_TEXT)
        found = kernels.array_lines(source, offsets, how, doubles)
    else:
        left = np.ones(len(values), np.bool_)
        found = LiteralLines(NOTHING, np.zeros(len(values) + 1, np.int64), left, np.empty((0, 3), np.int64))
    data, ends, left, doubts = found
    if len(doubts):
        left[lossy_rows(data, doubts)] = True
    left &= values.is_valid().to_numpy(zero_copy_only=False)
    return _completed(Texts(data, ends), left, values, kind, doubles)


def _completed(texts: Texts, left: Mask, values: pa.Array, kind: Kind, doubles: bool) -> Texts:
    """``texts`` with what the kernels have left."""
    if not left.any():
        return texts
    ours = [literal(kind, text, doubles=doubles).encode() for text in values.filter(pa.array(left)).to_pylist()]
    return raw_texts(pc.replace_with_mask(texts.to_array(), pa.array(left), pa.array(ours, pa.large_binary())))


def lossy_numbers(texts: Texts) -> npt.NDArray[np.int64]:
    """The rows, each of which holds one number, whose number does not come back from a store that reads doubles."""
    left, doubts = doubtful_numbers(texts.data, texts.offsets)
    rows = np.flatnonzero(left)
    if len(rows):
        numbers = texts.to_array().take(pa.array(rows)).to_pylist()
        rows = rows[[not survives(number.decode()) for number in numbers]]
    return np.concatenate([rows, lossy_rows(texts.data, doubts)]) if len(doubts) else rows


def lossy_rows(data: npt.NDArray[np.uint8], doubts: Doubts) -> npt.NDArray[np.int64]:
    """The rows with a doubtful number that is indeed lost in a double."""
    ends = np.empty(2 * len(doubts) + 1, np.int64)  # the numbers, and what stands between them
    ends[0], ends[1::2], ends[2::2] = 0, doubts[:, 1], doubts[:, 2]
    numbers = Texts(readonly(data), ends).to_array().take(pa.array(np.arange(1, 2 * len(doubts), 2))).cast(pa.utf8())
    # Nearly all are the shortest text of their double, which Arrow can tell at once.
    same = pc.equal(numbers.cast(pa.float64()).cast(pa.utf8()), numbers).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(~same)
    lost = np.array([not survives(number) for number in numbers.take(pa.array(odd)).to_pylist()], np.bool_)
    rows: npt.NDArray[np.int64] = np.unique(doubts[odd[lost], 0])
    return rows


def trimmed(values: pa.Array) -> pa.Array:
    """Numbers without the zeros at the end of their fraction."""
    return pc.replace_substring_regex(values, pattern=r"^(-?\d+)(?:\.0+|(\.\d*[1-9])0+)$", replacement=r"\1\2")


def warm_up() -> None:
    """Compiles or loads the kernels (see ``jsonrows.warm_up``)."""
    nothing, start = readonly(np.empty(0, np.uint8)), readonly(np.zeros(1, np.int64))
    document_lines(nothing, start, True, True)
    kernels.scalar_lines(nothing, start, kernels.AS_NUMBER, True)
    kernels.array_lines(nothing, start, kernels.AS_NUMBER, True)
    doubtful_numbers(nothing, start)
