"""``spark.read.format("cdc")`` and ``spark.readStream.format("cdc")``: the log as a Spark data source.

Register it once a session: ``spark.dataSource.register(CdcSource)``. Options:

=================  ==================================================================================================
``log``            the log's folder (needed)
``table``          one table, ``schema.name``: its changes as typed rows
``tables``         shell patterns, separated by commas (``!pattern`` takes out); needs ``as = slices`` unless one table matches
``as``             ``changes`` (default) or ``slices``: where the changes lie (topic, after, upto, rows) instead of the changes
``startPosition``  changes after this position (default 0: all that the log keeps)
``endPosition``    batch only: changes up to this position (default: the log's head)
``maxRows``        streaming: a micro-batch holds at most so many changes (but at least one cut)
``maxBytes``       streaming: and so many bytes of the log
``fresh``          streaming: ``true`` says that the checkpoint is new, so that ``maxRows`` holds from the first micro-batch on
``waitSeconds``    streaming: how long an idle stream waits for the log before it asks Spark again (default 1)
``sliceBytes``     size of one task's piece (default 16 MB)
=================  ==================================================================================================

Rows of ``as = changes``: ``_cdc_position`` long, ``_cdc_op`` string (c u d r t: insert, update, delete, snapshot read, truncate),
``_cdc_lsn`` long, ``_cdc_ts`` timestamp, ``_cdc_exact`` map, then the table's columns in its newest schema version; a column that a
change's own version did not have is NULL. An offset is a cut: ``{"position": n, "commit_lsn": …, "commit_ts_us": …}``.

Spark 4.1 does not tell a stream where it starts, so unless it is ``fresh`` its first micro-batch reaches to the log's head, whatever
``maxRows`` says: any earlier end might lie before the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from cdc.errors import ConfigError
from cdc.log.contract import LogReader, Slice, selected
from cdc.log.home import open_reader
from cdc.model.batch import META_FIELDS, OP, batch_schema
from cdc.model.pgtypes import canonical_text
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Table

SLICES: Final = pa.schema([("topic", pa.utf8()), ("after", pa.int64()), ("upto", pa.int64()), ("rows", pa.int64())])
_LETTERS: Final = pa.array([chr(op) for op in range(128)], pa.utf8())


class CdcSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "cdc"

    def schema(self) -> StructType:
        plan = ReadPlan.of(self.options)
        if plan.as_slices:
            return from_arrow_schema(SLICES)
        return from_arrow_schema(rows_schema(plan.one_table(plan.log())))

    def reader(self, schema: StructType) -> SparkLogReader:  # noqa: ARG002
        return SparkLogReader(ReadPlan.of(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: ARG002
        return StreamReader(ReadPlan.of(self.options))


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The options, checked."""

    dir: Path
    tables: tuple[str, ...]
    as_slices: bool
    start: Position
    end: Position | None
    max_rows: int
    max_bytes: int
    wait_s: float
    slice_bytes: int
    fresh: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadPlan:
        """Raises ConfigError, naming the option."""
        form = options.get("as") or "changes"
        if form not in ("changes", "slices"):
            raise ConfigError(f'the option as is {form!r}: format("cdc") gives changes or slices', hint='.option("as", "changes")')
        end = options.get("endPosition")
        return cls(
            dir=Path(_needed(options, "log")),
            tables=_patterns(options),
            as_slices=form == "slices",
            start=Position(_number(options, "startPosition", 0)),
            end=None if end is None else Position(_number(options, "endPosition", 0)),
            max_rows=_number(options, "maxRows", 1_000_000),
            max_bytes=_number(options, "maxBytes", 256 * 2**20),
            wait_s=float(options.get("waitSeconds") or 1),
            slice_bytes=_number(options, "sliceBytes", 16 * 2**20),
            fresh=options.get("fresh") == "true",
        )

    def log(self) -> LogReader:
        """Raises ConfigError when there is no log: a wrong path must not look like an empty table."""
        if not self.dir.is_dir():
            raise ConfigError(f"there is no log in {self.dir}", hint="name the folder that [log] dir of cdc.toml names")
        return open_reader(self.dir)

    def topics(self, log: LogReader) -> list[str]:
        return [topic.name for topic in selected(log, self.tables)]

    def one_table(self, log: LogReader) -> Table:
        found = [topic.table for topic in selected(log, self.tables)]
        if len(found) == 1:
            return found[0]
        what = "no table" if not found else f"{len(found)} tables"
        hint = 'cdc log ls names the tables; read one with .option("table", "schema.name"), or .option("as", "slices")'
        raise ConfigError(f"{', '.join(self.tables)} matches {what} of the log in {self.dir}", hint=hint)


def _needed(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(f'format("cdc") needs the option {name}', hint=f'.option("{name}", …)')
    return value


def _patterns(options: Mapping[str, str]) -> tuple[str, ...]:
    table, tables = options.get("table"), options.get("tables")
    if table:
        # One table by its exact name: a name may hold the characters of a pattern.
        return ("".join(f"[{letter}]" if letter in "*?[" else letter for letter in table),)
    if not tables:
        raise ConfigError('format("cdc") needs the option table or tables', hint='.option("table", "schema.name")')
    return tuple(json.loads(tables)) if tables.startswith('["') else tuple(part.strip() for part in tables.split(","))


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"the option {name} is not a whole number")
    return int(text)


@dataclass
class LogPiece(InputPartition):
    """One task's work."""

    topic: str
    after: int
    upto: int
    rows: int


class SparkLogReader(DataSourceReader):
    """A batch read: everything between two positions."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[LogPiece]:
        log = self._plan.log()
        end = log.head().position if self._plan.end is None else min(self._plan.end, log.head().position)
        return _pieces(self._plan, log, self._plan.start, Position(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._plan, partition)


class StreamReader(DataSourceStreamReader):
    """A stream. Lives in a Python process of its own, one thread."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._log: LogReader | None = None
        self._given_out = plan.start if plan.fresh else None
        """The last offset; None as long as nothing tells where the stream stands."""

    def initialOffset(self) -> dict[str, int]:
        return {"position": self._plan.start, "commit_lsn": 0, "commit_ts_us": 0}

    def latestOffset(self) -> dict[str, int]:
        if self._log is None:
            self._log = self._plan.log()
        if self._given_out is None:
            latest = self._log.head()
        else:
            latest = self._log.wait(self._given_out, self._plan.wait_s)
            if latest.position > self._given_out:
                latest = self._log.cut_within(self._given_out, self._plan.max_rows, self._plan.max_bytes)
            else:
                latest = Cut(self._given_out, latest.commit_lsn, latest.commit_ts_us)
        self._given_out = latest.position
        return offset_of(latest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[LogPiece]:
        if self._log is None:
            self._log = self._plan.log()
        self._given_out = Position(max(self._given_out or 0, end["position"]))
        return _pieces(self._plan, self._log, Position(start["position"]), Position(end["position"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._plan, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to release: the log keeps its own account of who still needs what."""

    def __getstate__(self) -> dict[str, Any]:
        """The log's files are not for other processes."""
        return {**self.__dict__, "_log": None}


def offset_of(cut: Cut) -> dict[str, int]:
    return {"position": cut.position, "commit_lsn": cut.commit_lsn, "commit_ts_us": cut.commit_ts_us}


def cut_at(offset: Mapping[str, int]) -> Cut:
    return Cut(Position(offset["position"]), Lsn(offset["commit_lsn"]), offset["commit_ts_us"])


def _pieces(plan: ReadPlan, log: LogReader, after: Position, upto: Position) -> Sequence[LogPiece]:
    slices: Sequence[Slice] = log.slices(plan.topics(log), after, upto, plan.slice_bytes) if upto > after else []
    # Spark wants at least one partition; one of no rows is the cheapest.
    return [LogPiece(one.topic, one.after, one.upto, one.rows) for one in slices] or [LogPiece("", 0, 0, 0)]


def _read(plan: ReadPlan, piece: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(piece, LogPiece)
    if not piece.topic:
        return
    if plan.as_slices:
        yield pa.RecordBatch.from_pydict(
            {"topic": [piece.topic], "after": [piece.after], "upto": [piece.upto], "rows": [piece.rows]}, SLICES
        )
        return
    log = plan.log()
    table = plan.one_table(log)
    schema = rows_schema(table)
    for batch in log.read(piece.topic, Position(piece.after), Position(piece.upto)):
        yield to_rows(batch, schema)


def rows_schema(table: Table) -> pa.Schema:
    """The Arrow schema of ``as = changes`` for a table at its newest version."""
    meta = [pa.field(OP, pa.utf8()) if field.name == OP else field for field in META_FIELDS]
    own = list(batch_schema(table))[len(META_FIELDS) :]
    # Spark 4.1 has no time of day.
    return pa.schema([*meta, *(pa.field(f.name, pa.utf8()) if pa.types.is_time64(f.type) else f for f in own)])


def to_rows(changes: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Changes of any schema version of a table as rows of ``schema`` (``rows_schema`` of its newest version)."""
    arrays = []
    for field in schema:
        index = changes.schema.get_field_index(field.name)
        if field.name == OP:
            arrays.append(_LETTERS.take(changes.column(OP)))
        elif index < 0:
            arrays.append(pa.nulls(changes.num_rows, field.type))
        else:
            arrays.append(_converted(changes.column(index), field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(values: pa.Array, field: pa.Field) -> pa.Array:
    if values.type == field.type:
        return values
    if pa.types.is_string(field.type):
        return canonical_text(values)
    try:
        return pc.cast(values, field.type)
    except pa.ArrowInvalid:
        hint = "read from a later startPosition: the column's type changed"
        raise ConfigError(f"earlier values of column {field.name} do not fit its newest type", hint=hint) from None
