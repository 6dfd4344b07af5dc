"""``spark.read.format("cdc")`` and ``spark.readStream.format("cdc")``: the log as a Spark data source.

Register it once a session: ``spark.dataSource.register(CdcSource)``. Options:

=================  ==================================================================================================
``log``            the log's folder (needed)
``table``          one table, ``schema.name``: its changes as typed rows
``tables``         shell patterns, separated by commas (``!pattern`` takes out); needs ``as = slices`` unless one table matches
``as``             ``changes`` (default), ``changefeed``, ``rows``, or ``slices``: where the changes lie (topic, after, upto, rows)
``asOf``           batch only: a position, an LSN or a time; the rows of the table as they were there (``as = rows``)
``preimages``      ``as = changefeed``: ``true`` looks up the rows that updates and deletes replaced
``columns``        only these columns, separated by commas or as a JSON list
``startPosition``  changes after this position (default 0: all that the log keeps)
``endPosition``    batch only: changes up to this position (default: the log's head)
``ranges``         batch only, in place of these two: a JSON list of pairs [after, upto]
``history``        the log's history in which the reader came to where it begins, as an offset names it: for one that goes on by itself where
                   compaction may have dropped DELETEs since it began at 0
``maxRows``        streaming: a micro-batch holds at most so many changes (but at least one cut)
``maxBytes``       streaming: and so many bytes of the log
``checkpoint``     streaming: the folder that ``checkpointLocation`` names, so that ``maxRows`` holds from the first micro-batch on
``fresh``          streaming: ``true`` says that the checkpoint is new, to the same end
``waitSeconds``    streaming: how long an idle stream waits for the log before it asks Spark again (default 1)
``sliceBytes``     size of one task's piece (default 16 MB; with ``preimages`` 128 MB)
=================  ==================================================================================================

Rows of ``as = changes``: ``_cdc_position`` long, ``_cdc_op`` string (c u d r t s: insert, update, delete, snapshot read, truncate, new definition),
``_cdc_lsn`` long, ``_cdc_ts`` timestamp, ``_cdc_exact`` map, then the table's columns in its newest definition; a column that a
change's own definition did not have is NULL. Rows of ``changefeed`` and ``rows``: ``cdc.replay.rows``. An offset is a cut, and the history in
which the stream came there: ``{"position": n, "commit_lsn": …, "commit_ts_us": …, "history": …}``.

Spark 4.1 does not tell a stream where it starts, so unless it knows its ``checkpoint`` or is ``fresh``, its first micro-batch reaches to the log's
head, whatever ``maxRows`` says: any earlier end might lie before the checkpoint.

Writing: ``cdc.spark.sink``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.position import START, Cut, Lsn, Position
from cdc.replay.place import upto
from cdc.replay.query import LogQuery
from cdc.replay.rows import SLICES, chosen, feed_schema, rows_schema, state_schema, to_feed, to_rows
from cdc.replay.state import definition_at, rows_as_of
from cdc.spark.options import ReadPlan, RowForm
from cdc.spark.sink import TopicBatchWriter, TopicStreamWriter

Offset = dict[str, int | str]


class CdcSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "cdc"

    def schema(self) -> StructType:
        return from_arrow_schema(PinnedRows.of(ReadPlan.of(self.options)).schema)

    def reader(self, schema: StructType) -> SparkLogReader:
        plan = ReadPlan.of(self.options)
        return SparkLogReader(plan, _loaded(PinnedRows.of(plan), schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        plan = ReadPlan.of(self.options)
        if plan.form is RowForm.ROWS or plan.ranges is not None or plan.end is not None:
            raise ConfigError(
                "asOf, endPosition and ranges are for reading in batch", hint="spark.read in place of spark.readStream"
            )
        return StreamReader(plan, _loaded(PinnedRows.of(plan), schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        return TopicBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        return TopicStreamWriter(self.options, schema, overwrite)


@dataclass(frozen=True)
class PinnedRows:
    """The rows of a read, fixed when its reader is made: all its tasks give the same columns, whatever happens to the table meanwhile."""

    schema: pa.Schema
    """… with the definition that the values come under (``cdc.replay.rows``)."""
    as_of: Position | None
    """The position that the option ``asOf`` stood for."""

    @classmethod
    def of(cls, plan: ReadPlan) -> PinnedRows:
        """Raises ConfigError."""
        with closing(plan.log()) as log:
            if plan.as_of is None:
                return cls(_newest_schema(plan, log), None)
            topic = plan.one_topic(log)
            as_of = upto(log, plan.as_of)
            schema = state_schema(definition_at(log, topic.name, as_of) or topic.schema)
            return cls(chosen(schema, plan.columns), as_of)


def _loaded(rows: PinnedRows, schema: StructType) -> PinnedRows:
    """The rows, if Spark has the same columns of them. Raises ConfigError where the definition has changed since it asked."""
    if from_arrow_schema(rows.schema).simpleString() != schema.simpleString():
        raise _changed()
    return rows


def _changed() -> ConfigError:
    # All in the text: of a hint Spark tells nothing.
    return ConfigError("the table's definition has changed since this was loaded: load it again, or start the stream again")


@dataclass
class LogPiece(InputPartition):
    """One task's work."""

    topic: str
    after: int
    upto: int
    rows: int
    history: str | None = None


class SparkLogReader(DataSourceReader):
    """A batch read: everything between two positions."""

    def __init__(self, plan: ReadPlan, rows: PinnedRows) -> None:
        self._plan = plan
        self._rows = rows

    def partitions(self) -> Sequence[LogPiece]:
        with closing(self._plan.log()) as log:
            if self._rows.as_of is not None:
                topic = self._plan.one_topic(log)
                return [LogPiece(topic.name, 0, self._rows.as_of, topic.rows)]
            return _pieces(self._plan, log, self._plan.wanted(log), self._plan.history)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._plan, self._rows, partition)


class StreamReader(DataSourceStreamReader):
    """A stream. Lives in a Python process of its own, one thread."""

    def __init__(self, plan: ReadPlan, rows: PinnedRows) -> None:
        self._plan = plan
        self._rows = rows
        self._log: LogReader | None = None
        self._given_out = plan.stream.known_start(plan.start)
        """The last offset; None as long as nothing tells where the stream stands."""

    def initialOffset(self) -> Offset:
        return offset_of(Cut(self._plan.start, Lsn(0), 0), begun_in(self._opened(), self._plan.start, self._plan.history))

    def _opened(self) -> LogReader:
        if self._log is None:
            self._log = self._plan.log()
        return self._log

    def latestOffset(self) -> Offset:
        log = self._log = self._opened()
        stream = self._plan.stream
        # Before the cut: what is read up to there is compared with what had been dropped by now.
        history = begun_in(log, START)
        if self._given_out is None:
            latest = self._log.head()
        else:
            latest = self._log.wait(self._given_out, stream.wait_s)
            if latest.position > self._given_out:
                latest = self._log.cut_within(self._given_out, stream.max_rows, stream.max_bytes)
            else:
                latest = Cut(self._given_out, latest.commit_lsn, latest.commit_ts_us)
        self._given_out = latest.position
        return offset_of(latest, history)

    def partitions(self, start: Offset, end: Offset) -> Sequence[LogPiece]:
        begun, cut = cut_at(start), cut_at(end)
        self._given_out = max(self._given_out or START, cut.position)
        return _pieces(self._plan, self._opened(), [(begun.position, cut.position)], str(start["history"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._plan, self._rows, partition)

    def commit(self, end: Offset) -> None:
        """Nothing to release: the log keeps its own account of who still needs what."""

    def __getstate__(self) -> dict[str, Any]:
        """The log's files are not for other processes."""
        return {**self.__dict__, "_log": None}


def offset_of(cut: Cut, history: str | None) -> Offset:
    return {
        "position": cut.position,
        "commit_lsn": cut.commit_lsn,
        "commit_ts_us": cut.commit_ts_us,
        "history": history or "",
    }


def cut_at(offset: Mapping[str, int | str]) -> Cut:
    return Cut(Position(int(offset["position"])), Lsn(int(offset["commit_lsn"])), int(offset["commit_ts_us"]))


def begun_in(log: LogReader, after: Position, history: str | None = None) -> str | None:
    """The history for ``LogReader.read``: whoever begins at 0 has missed nothing so far."""
    lineage = log.lineage() if after == START else None
    return history if lineage is None else lineage.history


def _pieces(plan: ReadPlan, log: LogReader, ranges: Iterable[tuple[Position, Position]], history: str | None) -> Sequence[LogPiece]:
    """``history``: in which whoever asks came to where the ranges begin."""
    pieces = []
    for after, end in ranges:
        if end > after:
            known = begun_in(log, after, history)
            slices = log.slices(plan.topics(log), after, end, plan.slice_bytes, known)
            pieces += [LogPiece(one.topic, one.after, one.upto, one.rows, known) for one in slices]
    # Spark wants at least one partition; one of no rows is the cheapest.
    return pieces or [LogPiece("", 0, 0, 0)]


def _newest_schema(plan: ReadPlan, log: LogReader) -> pa.Schema:
    """… of the rows that a read of changes gives: at the table's newest definition."""
    if plan.form is RowForm.SLICES:
        return SLICES
    shape = plan.one_topic(log).schema
    return chosen(feed_schema(shape) if plan.form is RowForm.CHANGEFEED else rows_schema(shape), plan.columns)


def _read(plan: ReadPlan, rows: PinnedRows, piece: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(piece, LogPiece)
    if not piece.topic:
        return
    if plan.form is RowForm.SLICES:
        yield pa.RecordBatch.from_pydict(
            {"topic": [piece.topic], "after": [piece.after], "upto": [piece.upto], "rows": [piece.rows]}, SLICES
        )
        return
    # Spark's workers live on, and leave a generator where it stands when nobody wants the rest.
    with closing(plan.log()) as log:
        # As of a place the definition is the one of then for ever.
        if rows.as_of is None and _newest_schema(plan, log) != rows.schema:
            raise _changed()
        yield from _rows(plan, rows.schema, log, piece)


def _rows(plan: ReadPlan, schema: pa.Schema, log: LogReader, piece: LogPiece) -> Iterator[pa.RecordBatch]:
    after, end = Position(piece.after), Position(piece.upto)
    if plan.form is RowForm.CHANGEFEED:
        for replaced in LogQuery(after, end, sent=True, former=plan.preimages, history=piece.history).of(log, piece.topic):
            fed = to_feed(replaced, schema)
            if fed is not None:
                yield fed
        return
    for batch in (
        rows_as_of(log, piece.topic, end) if plan.form is RowForm.ROWS else log.read(piece.topic, after, end, piece.history)
    ):
        yield to_rows(batch, schema)
