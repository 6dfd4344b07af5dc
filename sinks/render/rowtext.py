"""A batch's rows as the text that Postgres gives: what audits compare, keys are made of, and text-only stores hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT, POSITION
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicSchema
from sinks.render.texts import binary_view

ESCAPE: Final = "\\"
SEPARATOR: Final = ":"
NULL_PART: Final = "\\N"
EMPTY_KEY: Final = "\\E"
FEW_ROWS: Final = 32
"""What is made of so many rows is made faster row by row than by Arrow's functions, which cost the same for one row as for hundreds."""


@dataclass(frozen=True, slots=True)
class ExactValues:
    """One column's values that its Arrow type cannot hold: ``texts[i]`` belongs to row ``rows[i]``, rows rising."""

    rows: npt.NDArray[np.int64]
    texts: pa.Array

    def put_into(self, column: pa.Array) -> pa.Array:
        """``column`` (of the texts' type) with these rows replaced."""
        mask = np.zeros(len(column), np.bool_)
        mask[self.rows] = True
        return pc.replace_with_mask(column, pa.array(mask), self.texts)


def exact_values(batch: pa.RecordBatch) -> Mapping[str, ExactValues]:
    """The batch's ``_cdc_exact`` maps by column name; empty for nearly every batch."""
    maps = batch.column(EXACT)
    if maps.null_count == len(maps):
        return {}
    if len(maps) <= FEW_ROWS:
        return _few_exact(maps.to_pylist())
    valid = np.flatnonzero(maps.is_valid().to_numpy(zero_copy_only=False))
    maps = maps.take(pa.array(valid))  # drops the slice's offset and the NULLs, so that offsets and entries agree
    offsets = maps.offsets.to_numpy()
    rows = np.repeat(valid, np.diff(offsets))
    names, texts = maps.keys.slice(offsets[0], len(rows)), maps.items.slice(offsets[0], len(rows))
    found = {}
    for name in pc.unique(names).to_pylist():
        mine = pc.equal(names, name)
        found[name] = ExactValues(rows[mine.to_numpy(zero_copy_only=False)], texts.filter(mine))
    return found


def _few_exact(maps: list[list[tuple[str, str]] | None]) -> Mapping[str, ExactValues]:
    at: dict[str, list[tuple[int, str]]] = {}
    for row, entries in enumerate(maps):
        for name, text in entries or ():
            at.setdefault(name, []).append((row, text))
    return {
        name: ExactValues(np.array([row for row, _ in mine], np.int64), pa.array([text for _, text in mine], pa.utf8()))
        for name, mine in at.items()
    }


def column_text(batch: pa.RecordBatch, name: str, exact: Mapping[str, ExactValues]) -> pa.Array:
    """One column of the batch as canonical text (utf8); NULL is SQL NULL or, in a delete, "not sent"."""
    text = canonical_text(batch.column(name))
    return exact[name].put_into(text) if name in exact else text


def row_text(batch: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
    """Every column of the batch as canonical text. Schema: ``sinks.contract.audit_schema(schema)``."""
    if not schema.names:
        return rows_of_nothing(len(batch))
    exact = exact_values(batch)
    return pa.RecordBatch.from_arrays([column_text(batch, name, exact) for name in schema.names], names=list(schema.names))


def rows_of_nothing(count: int) -> pa.RecordBatch:
    """Makes ``count`` rows of a table without columns (its last one was dropped); from no arrays Arrow makes no rows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def keys(batch: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """Each row's identity as one text (utf8, never NULL or empty): equal exactly when the key's values are equal.

    The key's columns in table order, joined by ``:``; a backslash or colon inside a value has a backslash before it, NULL is
    ``\\N``, the empty key ``\\E``. A table without identity only knows inserts: there the position tells rows apart.
    """
    exact = exact_values(batch)
    parts = [column_text(batch, column.name, exact) for column in schema.key]
    return join_key(parts, SEPARATOR if len(parts) > 1 else "") if parts else batch.column(POSITION).cast(pa.utf8())


def row_keys(texts: pa.RecordBatch, batch: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """The same as ``keys``, where ``row_text`` has been asked already."""
    parts = [texts.column(column.name) for column in schema.key]
    return join_key(parts, SEPARATOR if len(parts) > 1 else "") if parts else batch.column(POSITION).cast(pa.utf8())


def rows_with_keys(batches: Iterable[pa.RecordBatch], keys: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
    """The rows of texts that have these keys (columns named as the key's)."""
    wanted = set(zip(*(column.to_pylist() for column in keys.columns), strict=True))
    arrow_schema = pa.schema([pa.field(name, pa.utf8()) for name in schema.names])
    found = []
    for rows in batches:
        texts = zip(*(rows.column(name).to_pylist() for name in keys.schema.names), strict=True)
        found.append(rows.filter(pa.array([key in wanted for key in texts], pa.bool_())))
    whole = pa.Table.from_batches(found, arrow_schema).combine_chunks()
    return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], arrow_schema)


def join_key(parts: list[pa.Array], separator: str) -> pa.Array:
    """The key's columns, given as text, as one text each (see ``keys``)."""
    if len(parts[0]) <= FEW_ROWS:
        rows = zip(*(part.to_pylist() for part in parts), strict=True)
        return pa.array([_key_of(row, separator) for row in rows], pa.utf8())
    texts = [key_part(part, separator) for part in parts]
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, separator)
    empty = pc.equal(pc.binary_length(joined), 0)
    return pc.if_else(empty, EMPTY_KEY, joined) if pc.any(empty).as_py() else joined


def split_keys(texts: pa.Array, schema: TopicSchema) -> pa.RecordBatch:
    """The way back from ``keys``: the columns of the key that each text names, NULL where it names none of this key."""
    found = [_parts_of(text, len(schema.key)) for text in texts.to_pylist()]
    columns = [pa.array([parts[at] for parts in found], pa.utf8()) for at in range(len(schema.key))]
    return pa.RecordBatch.from_arrays(columns, names=[column.name for column in schema.key])


def _parts_of(text: str, count: int) -> Sequence[str | None]:
    if count == 1:
        parts = ["" if text == EMPTY_KEY else text]
    else:
        found = _PART.findall(text)
        parts = [part for part, _ in found[: next(at for at, (_, after) in enumerate(found) if not after) + 1]]
    if len(parts) != count:
        return [None] * count
    return [None if part == NULL_PART else _ESCAPED.sub(r"\1", part) for part in parts]


_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_PART: Final = re.compile(rf"((?:[^\\{SEPARATOR}]|\\.)*)({SEPARATOR}|\Z)", re.DOTALL)


def _key_of(row: tuple[str | None, ...], separator: str) -> str:
    texts = []
    for text in row:
        escaped = NULL_PART if text is None else text.replace(ESCAPE, ESCAPE + ESCAPE)
        texts.append(escaped.replace(separator, ESCAPE + separator) if separator and text is not None else escaped)
    return separator.join(texts) or EMPTY_KEY


def key_part(part: pa.Array, separators: str) -> pa.Array:
    """One column of a key with every backslash and every character of ``separators`` escaped, and NULL as ``\\N``."""
    for character in ESCAPE + separators:
        if _holds(part, character):
            part = pc.replace_substring(part, character, ESCAPE + character)
    return part.fill_null(NULL_PART) if part.null_count else part


def _holds(part: pa.Array, character: str) -> bool:
    """Whether the character may stand in one of the values. No byte of another character is one of ASCII's."""
    if not character.isascii():
        return bool(pc.any(pc.match_substring(part, character)).as_py())
    data, offsets = binary_view(part)
    return bool(np.any(data[offsets[0] : offsets[-1]] == ord(character)))
