"""Fields of Postgres text as typed Arrow columns, of many tables at once. Pure; shared by the stream and the snapshot.

What a call costs is shared by all tables of a group: their columns are converted by one kernel into one piece of memory, of which each Arrow
array is a part. A text that its Arrow type cannot hold exactly is left NULL in the column and goes to the ``_cdc_exact`` map
(``cdc.model.batch``), so nothing is rounded, clamped or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import ProtocolError
from cdc.kernels.memory import Take, fresh
from cdc.model.batch import EXACT_TYPE
from cdc.model.pgtypes import FEW_ROWS, arrow_type
from cdc.model.table import Table
from cdc.pgvalues import values
from cdc.pgvalues.values import (
    AT,
    BEYOND_ASCII,
    ENDS_AT,
    JOB,
    KIND,
    MISFITS,
    NULLS,
    ROWS,
    SECOND,
    VALID_AT,
    VALUES_AT,
    VALUES_BYTES,
    Bytes,
    Flags,
    Jobs,
    Lengths,
    Offsets,
)

MAX_COLUMN_BYTES: Final = 2**31 - 1
"""Arrow's utf8 and binary columns have 32-bit offsets; blocks are cut long before."""

Columns = tuple[list[pa.Array], pa.Array]
"""One table's columns: one array per column in the type that ``arrow_type`` gives, and the ``_cdc_exact`` column."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One table's fields within two flat arrays (offsets, lengths): column c's of row r stand at ``at + c * stride + r``."""

    table: Table
    at: int
    stride: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of how a table's columns are typed."""

    kinds: Jobs
    """Shape (columns, 3): KIND, FIRST, SECOND."""
    types: tuple[pa.DataType, ...]
    floating: tuple[bool, ...]


def columns(data: Bytes, offsets: Offsets, lengths: Lengths, table: Table, take: Take = fresh) -> Columns:
    """Typed columns of one table.

    data: the block. offsets, lengths: shape (columns, rows). take: where the columns' memory comes from. Raises ProtocolError when a text
    is not UTF-8 or a column is too large.
    """
    rows = lengths.shape[1]
    flat = np.ascontiguousarray(offsets).reshape(-1), np.ascontiguousarray(lengths).reshape(-1)
    (found,) = columns_of(data, *flat, [Fields(table, 0, rows, rows)], take)
    return found


def columns_of(data: Bytes, offsets: Offsets, lengths: Lengths, tables: Sequence[Fields], take: Take = fresh) -> list[Columns]:
    """Typed columns of several tables, whose fields all lie in ``data``. Raises ProtocolError as ``columns`` does."""
    plans = [_plan(fields.table) for fields in tables]
    widths = np.array([len(plan.types) for plan in plans], np.int64)
    firsts = values.running(widths)
    jobs = np.zeros((int(firsts[-1]), JOB), np.int64)
    if len(jobs):
        jobs[:, KIND : SECOND + 1] = np.concatenate([plan.kinds for plan in plans])
    places = (
        np.array([(fields.at, fields.stride, fields.rows) for fields in tables], np.int64).reshape(-1, 3).repeat(widths, axis=0)
    )
    number = np.arange(len(jobs)) - firsts[:-1].repeat(widths)
    jobs[:, AT] = places[:, 0] + number * places[:, 1]
    jobs[:, ROWS] = places[:, 2]
    out, misfit = _convert(data, offsets, lengths, jobs, firsts, take)
    done = jobs.tolist()
    return [
        _columns(data, offsets, lengths, fields, plan, done[first : first + len(plan.types)], out, misfit)
        for fields, plan, first in zip(tables, plans, firsts.tolist(), strict=False)
    ]


def text(data: Bytes, offsets: Offsets, lengths: Lengths) -> pa.Array:
    """The fields as they are: utf8, NULL where the length is negative."""
    jobs = np.zeros((1, JOB), np.int64)
    jobs[0, ROWS] = len(lengths)
    out, _ = _convert(data, offsets, lengths, jobs, np.array([0, 1], np.int64), fresh)
    return array_of(jobs[0].tolist(), pa.utf8(), out)


def _convert(data: Bytes, offsets: Offsets, lengths: Lengths, jobs: Jobs, firsts: Offsets, take: Take) -> tuple[pa.Buffer, Flags]:
    """The memory in which all columns lie, and the flags of the fields that do not fit."""
    room = int(values.lay_out(lengths, jobs))
    largest = int(jobs[:, VALUES_BYTES].max(initial=0))
    if largest > MAX_COLUMN_BYTES:
        raise ProtocolError(f"one block holds {largest} bytes of one column, more than {MAX_COLUMN_BYTES}")
    out = take(room)
    misfit = take(len(lengths)).view(np.bool_)
    misfit[:] = False
    values.convert(data, offsets, lengths, jobs, firsts, out, misfit)
    return pa.py_buffer(out), misfit


@lru_cache(maxsize=4096)
def _plan(table: Table) -> _Plan:
    types = tuple(arrow_type(column) for column in table.columns)
    kinds = np.array([_kind(kind) for kind in types], np.int64).reshape(-1, 3)
    return _Plan(kinds, types, tuple(pa.types.is_floating(kind) for kind in types))


_KINDS: Final = {
    pa.int16(): values.INT2,
    pa.int32(): values.INT4,
    pa.int64(): values.INT8,
    pa.timestamp("us"): values.TIMESTAMP,
    pa.timestamp("us", tz="UTC"): values.TIMESTAMPTZ,
    pa.date32(): values.DATE,
    pa.time64("us"): values.TIME,
    pa.bool_(): values.BOOL,
    pa.binary(): values.BINARY,
    pa.utf8(): values.TEXT,
    # Arrow's own parser rounds correctly, which the shortest digits need to read back bit-equal: first their texts, then that.
    pa.float32(): values.TEXT,
    pa.float64(): values.TEXT,
}


def _kind(kind: pa.DataType) -> tuple[int, int, int]:
    if pa.types.is_decimal(kind):
        return values.DECIMAL, kind.precision, kind.scale
    return _KINDS[kind], 0, 0


def _columns(
    data: Bytes,
    offsets: Offsets,
    lengths: Lengths,
    fields: Fields,
    plan: _Plan,
    jobs: Sequence[Sequence[int]],
    out: pa.Buffer,
    misfit: Flags,
) -> Columns:
    arrays: list[pa.Array] = []
    inexact: list[tuple[str, npt.NDArray[np.int64], pa.Array]] = []
    for number, (job, kind) in enumerate(zip(jobs, plan.types, strict=True)):
        mine = slice(job[AT], job[AT] + fields.rows)
        unfit: Flags | None = misfit[mine] if job[MISFITS] else None
        if plan.floating[number]:
            array, unfit = _floats(array_of(job, pa.utf8(), out), kind)
        else:
            array = array_of(job, kind, out)
        arrays.append(array)
        if unfit is not None:
            rows = np.flatnonzero(unfit)
            texts = text(data, offsets[mine][rows], lengths[mine][rows])
            inexact.append((fields.table.columns[number].name, rows, texts))
    return arrays, exact_of(inexact, fields.rows)


def array_of(job: Sequence[int], kind: pa.DataType, out: pa.Buffer) -> pa.Array:
    """Builds the array of a job that was done in ``out``. Raises ProtocolError when a text is not UTF-8."""
    rows = job[ROWS]
    buffers = [out.slice(job[VALID_AT], (rows + 7) >> 3) if job[NULLS] else None]
    if job[KIND] in (values.TEXT, values.BINARY):
        buffers.append(out.slice(job[ENDS_AT], (rows + 1) * 4))
    buffers.append(out.slice(job[VALUES_AT], job[VALUES_BYTES]))
    array = pa.Array.from_buffers(kind, rows, buffers, job[NULLS])
    if job[BEYOND_ASCII]:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ProtocolError(
                "a value is not valid UTF-8", hint="check the database's encoding (SQL_ASCII is refused)"
            ) from error
    return array


def _floats(fields: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    try:
        return fields.cast(kind), None
    except pa.ArrowInvalid:
        return pa.nulls(len(fields), kind), np.asarray(fields.is_valid())


def exact_of(inexact: list[tuple[str, npt.NDArray[np.int64], pa.Array]], rows: int) -> pa.Array:
    """The ``_cdc_exact`` column: a map per row that has such values, NULL elsewhere."""
    if not inexact:
        return pa.nulls(rows, EXACT_TYPE)
    if rows <= FEW_ROWS:
        maps: list[list[tuple[str, str]] | None] = [None] * rows
        for name, where, texts in inexact:
            for row, value in zip(where.tolist(), texts.to_pylist(), strict=True):
                maps[row] = [*(maps[row] or ()), (name, value)]
        return pa.array(maps, EXACT_TYPE)
    at = np.concatenate([where for _, where, _ in inexact])
    order = pa.array(np.argsort(at, kind="stable"))
    names = pa.concat_arrays([pa.repeat(name, len(where)) for name, where, _ in inexact]).take(order)
    texts = pa.concat_arrays([values for _, _, values in inexact]).take(order)
    counts = np.bincount(at, minlength=rows)
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pa.MapArray.from_arrays(pa.array(ends), names, texts, type=EXACT_TYPE, mask=pa.array(counts == 0))
