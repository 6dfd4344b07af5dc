"""The rows that a query writes, as groups of the inbox: the newest row of each key, in order, and how far a producer has come.
Pure.

A query's rows are ordered by a *sequence*: a whole number that rises from micro-batch to micro-batch, such as the position of
the change that a row comes from. The producer's mark says up to which number the log has them, so a micro-batch that comes
again, cut as before or not, brings only what is missing. The number of the micro-batch only tells one that comes
again from a new one, in which nothing may lie at or below the numbers that came before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.inbox.rowchecks import DELETE, UPSERT
from cdc.inbox.rows import topic_columns
from cdc.model.batch import OP

SEQUENCE: Final = "_cdc_sequence"
"""The last column of rows on their way: int64, not stored."""
POSITION: Final = "_cdc_position"
EXACT: Final = "_cdc_exact"
OURS: Final = "_cdc_"

_FEED: Final = "_change_type"
_OPS: Final = {"c": UPSERT, "u": UPSERT, "r": UPSERT, "d": DELETE}
_DEFINED: Final = "s"
_MAX_SOURCE_BYTES: Final = 300
_MARK: Final = re.compile(r"([sn])(\d{1,18})\.(-1|\d{1,19})\.(-1|\d{1,19})\.([0-9a-f]{32})(?:#(\d{1,18}))?\.(.*)")
_ANOTHER: Final = "name another producer, and another topic"

Columns = Sequence[str]


@dataclass(frozen=True, slots=True)
class StreamMark:
    """How far the log holds what a query writes."""

    sequenced: bool
    batch: int = -1
    """The number of the last micro-batch."""
    reached: int = -1
    """The highest number in it, as far as it was handed over."""
    held: int = -1
    """The highest number that the log has. Beyond ``reached`` while a query without its checkpoint comes along once more. Without a
    sequence: how many groups there were.
    """
    digest: str = "0" * 32
    """Of that micro-batch's rows."""
    source: str = ""
    """The topic that the rows were last derived from, where known."""
    rows: int = -1
    """How many that micro-batch has; -1 where a mark does not say."""

    @property
    def text(self) -> str:
        """As a mark."""
        source = self.source if len(self.source.encode()) <= _MAX_SOURCE_BYTES and self.source.isprintable() else ""
        rows = "" if self.rows < 0 else f"#{self.rows}"
        return f"{'s' if self.sequenced else 'n'}{self.batch}.{self.reached}.{self.held}.{self.digest}{rows}.{source}"

    @classmethod
    def read(cls, mark: str) -> Self | None:
        """None for a mark that no query made."""
        found = _MARK.fullmatch(mark)
        if found is None:
            return None
        rows = -1 if found[6] is None else int(found[6])
        return cls(found[1] == "s", int(found[2]), int(found[3]), int(found[4]), found[5], found[7], rows)

    @classmethod
    def of(cls, mark: str, sequenced: bool) -> Self:
        """Where the producer stands. Raises ConfigError for a producer that has brought something else."""
        if not mark:
            return cls(sequenced)
        found = cls.read(mark)
        if found is None:
            raise ConfigError("this producer's groups come from another program than a Spark query", hint=_ANOTHER)
        if found.sequenced != sequenced:
            raise ConfigError(
                f"this producer's rows came {'with' if found.sequenced else 'without'} a sequence until now", hint=_ANOTHER
            )
        return found


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a micro-batch that has to be handed over. ``rows``: sorted. ``conflict``: the log has this very step, with other rows.
    ``fewer``: it has it with more rows, of which the source has dropped some since."""

    mark: StreamMark
    """The mark once all of it is in the log; without ``rows`` and another than before, it has to be moved."""
    rows: pa.Table
    conflict: bool = False
    fewer: bool = False


def prepared(rows: pa.Table, key: Columns, sequence: str | None) -> pa.Table:
    """A frame's rows as rows of the topic: ``OP``, the topic's columns, and ``SEQUENCE`` if there is one. Raises ConfigError, naming
    the column, for rows that cannot be a topic's.
    """
    if _FEED in rows.column_names:
        raise ConfigError("rows of a change feed cannot be written", hint='read the source with as = "changes"')
    rows = _without_definitions(rows)
    ops = _ops(rows)
    stored = [name for name in rows.column_names if not name.startswith(OURS)]
    _refuse_exact(rows, stored)
    try:
        found = topic_columns(rows.select(stored), None)
    except (ValueError, pa.ArrowException):
        raise ConfigError("a column holds what a topic cannot hold", hint="docs/inbox.md lists what it can") from None
    gone = pc.equal(ops, DELETE)
    for at, field in enumerate(found.schema):
        if field.name not in key:
            found = found.set_column(at, field, pc.if_else(gone, pa.scalar(None, field.type), found.column(at)))
    found = found.add_column(0, pa.field(OP, pa.utf8()), ops)
    if sequence is None:
        return found
    numbers = rows.column(sequence).cast(pa.int64())
    if numbers.null_count or pc.any(pc.less(numbers, 0)).as_py():
        raise ConfigError(f"column {sequence}, the sequence, is NULL or negative in a row", hint="every row needs its number")
    return found.append_column(pa.field(SEQUENCE, pa.int64()), numbers)


def _without_definitions(rows: pa.Table) -> pa.Table:
    """Without the records of new definitions, which bring no row."""
    if OP not in rows.column_names:
        return rows
    defines = pc.fill_null(pc.equal(rows.column(OP), _DEFINED), False)
    if not pc.any(defines).as_py():
        return rows
    records = rows.filter(defines)
    facts = records.column(EXACT).to_pylist() if EXACT in rows.column_names else [None]
    if any(fact is None or "empties" in dict(fact) for fact in facts):
        raise ConfigError(
            "the source's table was emptied (an s record), which a derived topic cannot follow",
            hint=f"keep {EXACT} in the frame if it was not; else leave out the rows where {OP} = 's', and write to another topic",
        )
    return rows.filter(pc.invert(defines))


def _ops(rows: pa.Table) -> pa.Array:
    if OP not in rows.column_names:
        return pa.array([UPSERT], pa.utf8()).take(pa.array(np.zeros(len(rows), np.int64)))
    given = rows.column(OP).combine_chunks().cast(pa.utf8())
    at = pc.index_in(given, pa.array(list(_OPS)))
    if at.null_count:
        if pc.any(pc.equal(given, "t")).as_py():
            raise ConfigError(
                "the source's table was emptied by a TRUNCATE, which a derived topic cannot follow",
                hint=f"leave out the rows where {OP} = 't', and delete the topic's rows by their keys ({OP} = 'd')",
            )
        raise ConfigError(f"column {OP} holds something else than c, u, r or d", hint="u writes a row, d deletes it")
    return pa.array(list(_OPS.values())).take(at)


def _refuse_exact(rows: pa.Table, stored: Columns) -> None:
    if EXACT not in rows.column_names:
        return
    for fact in rows.column(EXACT).drop_null().to_pylist():
        for name, _ in fact if isinstance(fact, list) else fact.items():
            if name in stored:
                raise ConfigError(
                    f"column {name} has a value that its type cannot hold; its text is in {EXACT}",
                    hint="write the text in a column of your own, or leave the row out",
                )


def newest(rows: pa.Table, key: Columns) -> pa.Table:
    """The newest row of each key, sorted by sequence and key, so that equal rows give equal bytes. Raises ConfigError where two rows could
    be it.
    """
    sequenced = SEQUENCE in rows.column_names
    order = [(name, "ascending") for name in ((SEQUENCE, *key) if sequenced else key)]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    numbered = rows.select([name for name, _ in order]).append_column("_cdc_row", pa.array(np.arange(len(rows))))
    each = numbered.group_by([name for name, _ in order]).aggregate([("_cdc_row", "max"), ("_cdc_row", "count")])
    last = each.group_by(list(key)).aggregate([("_cdc_row_max", "max")]).column("_cdc_row_max_max")
    alike = np.zeros(len(rows), np.int64)
    alike[each.column("_cdc_row_max").to_numpy()] = each.column("_cdc_row_count").to_numpy()
    kept = np.sort(last.to_numpy())
    if (alike[kept] > 1).any():
        what = "the same key and the same sequence" if sequenced else "the same key, and no sequence says which is newer"
        raise ConfigError(f"two rows of a micro-batch have {what}", hint="group the rows by the key, or name a sequence")
    return rows.take(pa.array(kept)).combine_chunks()


def digest(rows: pa.Table) -> str:
    """The same for the same rows, whatever lies in memory beneath a NULL."""
    hashed = hashlib.blake2b(digest_size=16)
    for field, values in zip(rows.schema, rows.columns, strict=True):
        hashed.update(pc.is_valid(values).to_numpy().tobytes())
        sink = pa.BufferOutputStream()
        column = pa.table([values.drop_null().combine_chunks()], schema=pa.schema([pa.field(field.name, field.type)]))
        with pa.ipc.new_stream(sink, column.schema) as stream:
            stream.write_table(column)
        hashed.update(sink.getvalue())
    return hashed.hexdigest()


def share(mark: StreamMark, batch: int | None, rows: pa.Table, source: str) -> Share:
    """The part of a micro-batch that the log lacks. ``rows``: as ``newest`` gives them. ``batch``: None for a write in batch. Raises
    ConfigError when a new micro-batch brings numbers that have passed, and when such a write does.
    """
    after = replace(mark, batch=batch or 0, digest=digest(rows), source=source or mark.source, rows=len(rows))
    if not mark.sequenced:
        return Share(after if len(rows) else mark, rows)
    numbers = rows.column(SEQUENCE).to_numpy()
    first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (-1, -1)
    if batch is None:
        if not len(numbers):
            return Share(mark, rows)
        if first <= mark.held and after.digest != mark.digest:
            raise _passed_over(int(np.searchsorted(numbers, mark.held, "right")), mark.held)
    elif batch > mark.batch:
        if not len(numbers):
            return Share(mark, rows)
        if first <= mark.reached:
            raise ConfigError(
                f"the sequence falls back: micro-batch {batch} has {first}, an earlier one had {mark.reached}",
                hint="name a column that rises from micro-batch to micro-batch",
            )
    elif (batch, last) == (mark.batch, mark.reached):
        if last < mark.held or after.digest == mark.digest:
            return Share(mark, rows.slice(0, 0))
        # Compaction of the source takes away rows that later ones have superseded; a query that gives others instead gives no fewer.
        fewer = len(rows) < mark.rows
        return Share(mark, rows.slice(0, 0), fewer=True) if fewer else Share(mark, rows, conflict=True)
    missing = rows.slice(int(np.searchsorted(numbers, mark.held, "right")))
    return Share(replace(after, reached=last, held=max(last, mark.held)), missing)


def _passed_over(count: int, held: int) -> ConfigError:
    return ConfigError(
        f"the log has this producer's rows up to number {held}, and would pass over {count} rows of this frame, at or below it",
        hint=f"write only rows beyond {held}, or write to another topic, with another producer",
    )


def group_end(rows: pa.Table, begin: int, step: int) -> int:
    """Where the next group ends: about ``step`` rows behind ``begin``, but never between two rows of one number."""
    end = min(begin + step, len(rows))
    if end == len(rows) or SEQUENCE not in rows.column_names:
        return end
    numbers = rows.column(SEQUENCE).to_numpy()
    whole = int(np.searchsorted(numbers, numbers[end], "left"))
    return whole if whole > begin else int(np.searchsorted(numbers, numbers[begin], "right"))
