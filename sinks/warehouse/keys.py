"""Which row is which: keys as comparable arrays, the last change of each, and where keys stand in a data file. Pure.

Three shapes of key, chosen from the table alone so that a file written years ago and a batch of today always agree:
a single integer column is int64; a single text column is its text; everything else is an injective text of all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicSchema
from sinks.warehouse.columns import exact_texts, iceberg_kind

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NULL_TEXT: Final = "n"


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """How a table's keys are compared. ``names``: the source's column names; ``numeric``: a single integer column."""

    names: tuple[str, ...]
    numeric: bool = False
    plain: bool = False
    """A single text column that is never NULL and never in ``_cdc_exact``: compared as it is."""


def key_plan(schema: TopicSchema) -> KeyPlan | None:
    """None for a table whose rows cannot be told apart: it is only ever appended to."""
    if not schema.key:
        return None
    names = tuple(column.name for column in schema.key)
    if len(names) > 1 or schema.identity == "row":
        return KeyPlan(names)
    kind = schema.key[0].type
    return KeyPlan(
        names, numeric=pa.types.is_integer(kind), plain=pa.types.is_string(kind) and iceberg_kind(schema.key[0]) == "string"
    )


def encode(plan: KeyPlan, column: Callable[[str], pa.Array], rows: int) -> Int64s | pa.Array:
    """The keys of ``rows`` rows; ``column`` gives a column by its source name, and ``_cdc_exact``."""
    if plan.numeric:
        # A TRUNCATE's key is NULL, and one NULL would make numpy hold them all as floats.
        return pc.fill_null(column(plan.names[0]).cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if plan.plain:
        return column(plan.names[0])
    exact = exact_texts(column(EXACT))
    parts = [_part(column(name), exact.get(name)) for name in plan.names]
    return pc.binary_join_element_wise(*parts, "") if rows else pa.array([], pa.utf8())


def _part(values: pa.Array, exact: Mapping[int, str] | None) -> pa.Array:
    """``length:text`` per value, so that parts joined stay apart; NULL and exact texts are marked."""
    text = _comparable(values)
    length = pc.utf8_length(text).cast(pa.utf8())
    marked = pc.fill_null(pc.binary_join_element_wise(length, text, ":"), _NULL_TEXT)
    if not exact:
        return marked
    texts = marked.to_pylist()
    for row, value in exact.items():
        texts[row] = f"x{len(value)}:{value}"
    return pa.array(texts, pa.utf8())


def _comparable(values: pa.Array) -> pa.Array:
    """Text that is equal for equal values, whatever widening the column has seen."""
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(pa.utf8())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.int64()).cast(pa.utf8())
    if pa.types.is_time64(kind):
        return canonical_text(values)  # as it stands in the table, which has no type for it
    if pa.types.is_floating(kind):
        return values.cast(pa.float64()).cast(pa.utf8())
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.utf8())
    return values.cast(pa.utf8())


def last_of_each(keys: Int64s | pa.Array, positions: Int64s) -> Mask:
    """True for the row with the highest position of each key. A row that occurs twice (same position) is kept once."""
    codes = codes_of(keys)
    order = np.lexsort((positions, codes)) if np.any(positions[1:] <= positions[:-1]) else np.argsort(codes, kind="stable")
    ordered = codes[order]
    last = np.ones(len(ordered), bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    kept = np.zeros(len(codes), bool)
    kept[order[last]] = True
    return kept


def first_of_each_position(positions: Int64s) -> Mask:
    """For rows without a key: every position once."""
    kept = np.zeros(len(positions), bool)
    kept[np.unique(positions, return_index=True)[1]] = True
    return kept


def codes_of(keys: Int64s | pa.Array) -> Int64s:
    """A number for each, equal for equal keys."""
    return keys if isinstance(keys, np.ndarray) else _codes(keys)


def _codes(keys: pa.Array) -> Int64s:
    codes: Int64s = pc.dictionary_encode(keys).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


class FileKeys:
    """The keys of one data file, ready to be searched."""

    def __init__(self, keys: Int64s | pa.Array) -> None:
        self._text: pa.Array | None = None
        if isinstance(keys, np.ndarray):
            # Rows mostly come in key order, and then the file's order is the sorted one.
            self._order = None if np.all(keys[1:] >= keys[:-1]) else np.argsort(keys, kind="stable")
            self._sorted = keys if self._order is None else keys[self._order]
            self.bytes = self._sorted.nbytes + (0 if self._order is None else self._order.nbytes)
        else:
            self._text = keys
            self.bytes = keys.nbytes

    def find(self, wanted: Int64s | pa.Array) -> Int64s:
        """The positions in the file, rising, of every row whose key is wanted."""
        if self._text is not None:
            rows: Int64s = (
                pc.indices_nonzero(pc.is_in(self._text, value_set=wanted)).to_numpy(zero_copy_only=False).astype(np.int64)
            )
            return rows
        if not len(wanted) or not len(self._sorted):
            return np.empty(0, np.int64)
        ranked = np.sort(wanted)
        ranked = ranked[np.searchsorted(ranked, self._sorted[0]) : np.searchsorted(ranked, self._sorted[-1], side="right")]
        low = np.searchsorted(self._sorted, ranked)
        high = np.searchsorted(self._sorted, ranked, side="right")
        at = _expand(low, high)
        if self._order is not None:
            at = np.sort(self._order[at])
        return at


def _expand(low: Int64s, high: Int64s) -> Int64s:
    """Every index of the half-open ranges [low, high); they don't overlap and rise."""
    counts = high - low
    if counts.max(initial=0) <= 1:
        return np.asarray(low[counts == 1], np.int64)
    return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in zip(low, high, strict=True) if b > a])


def concatenate(pieces: Sequence[Int64s | pa.Array]) -> Int64s | pa.Array:
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    return pa.concat_arrays(pieces)


def select(keys: Int64s | pa.Array, kept: Mask) -> Int64s | pa.Array:
    return keys[kept] if isinstance(keys, np.ndarray) else keys.filter(pa.array(kept))
