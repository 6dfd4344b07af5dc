"""The row before a change and the one after it, as parts of the change's JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.batch import OP, Op
from sinks.condition import ReplacedRows
from sinks.render.jsonkernels import ABSENT, NULL, VALUE
from sinks.render.jsonrows import Piece
from sinks.render.texts import NOTHING, Texts


class RowMarks(NamedTuple):
    """The bytes in front of each of the two rows, in front of one that is there, and in the place of one that is not."""

    before: bytes = b'"before":'
    after: bytes = b',"after":'
    value: bytes = b""
    null: bytes = b"null"


JSON: Final = RowMarks()


def before_and_after(
    changes: pa.RecordBatch, replaced: ReplacedRows, documents: Callable[[pa.RecordBatch], Texts], marks: RowMarks = JSON
) -> list[Piece]:
    """``"before":…,"after":…``, or as ``marks`` says. The row before is whole where it is known; of a DELETE else it has what the DELETE says, of anything else it is null.
    ``documents``: makes the object of each row."""
    rows = len(changes)
    ops = changes.column(OP).to_numpy()
    deleted, none = ops == int(Op.DELETE), ops == int(Op.TRUNCATE)
    row = nothing(rows) if none.any() else documents(changes)
    _, _, value, null = marks
    pieces = [
        Piece(nothing(rows), before=marks.before),
        Piece(row, before=value, null=null, states=_states(deleted & ~replaced.has, ~deleted & ~replaced.has)),
    ]
    if replaced.rows is not None:
        before = _spread(documents(replaced.rows), replaced.has)
        pieces.append(Piece(before, before=value, states=_states(replaced.has, np.zeros(rows, np.bool_))))
    after = Piece(row, before=marks.after + value, null=marks.after + null, states=_states(~deleted & ~none, deleted | none))
    return [*pieces, after]


def nothing(rows: int) -> Texts:
    """An empty text for each row."""
    return Texts(NOTHING, np.zeros(rows + 1, np.int64))


def _spread(texts: Texts, has: npt.NDArray[np.bool_]) -> Texts:
    """Each text at its row, and an empty one at the others."""
    lengths = np.zeros(len(has), np.int64)
    lengths[has] = np.diff(texts.offsets)
    offsets = np.zeros(len(has) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Texts(texts.data, offsets)


def _states(value: npt.NDArray[np.bool_], null: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.where(value, VALUE, np.where(null, NULL, ABSENT)).astype(np.uint8)
