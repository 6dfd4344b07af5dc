"""``df.writeStream.format("cdc")`` and ``df.write.format("cdc")``: a frame's rows become a topic of the log, through its inbox.

Tasks reduce their rows to the newest of each key and send them along with their commit message; the driver hands them over once all
tasks have ended. Nothing lies anywhere until then, so a query that is killed leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cdc.errors import ConfigError, HeadwaterError, PositionGone
from cdc.inbox.definition import split_topic, table_for
from cdc.inbox.groupfile import MAX_GROUP_BYTES, MAX_GROUP_ROWS, GroupHeader, check_producer, encode
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.inbox.verdicts import InboxMark
from cdc.log.contract import LogReader, Topic, present_history
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.spark.groups import POSITION, SEQUENCE, Share, StreamMark, group_end, newest, prepared, share

_log = logging.getLogger(__name__)

_NAMES = ("log", "runDir", "topic", "key", "producer", "sequence", "timeoutSeconds", "microBatch", "checkpointLocation", "path")
_NEEDED = ("log", "runDir", "topic", "key")


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The options of a write, checked."""

    log: Path
    run_dir: Path
    topic: str
    key: tuple[str, ...]
    producer: str
    sequence: str | None
    timeout_s: float
    micro_batch: int | None
    """Of a write in batch: the number of the micro-batch whose rows they are, where ``foreachBatch`` makes it."""

    @classmethod
    def of(cls, options: Mapping[str, str], columns: Sequence[str]) -> WritePlan:
        """``columns``: of the frame. Raises ConfigError, naming the option."""
        _check_names(options)
        sequence = options.get("sequence") or (POSITION if POSITION in columns else None)
        key = tuple(name.strip() for name in options["key"].split(","))
        for name in (*key, *((sequence,) if sequence else ())):
            if name not in columns:
                raise ConfigError(f"the frame has no column {name}", hint="the options key and sequence name its columns")
        topic = options["topic"]
        try:
            split_topic(topic)
            producer = check_producer(options.get("producer") or f"spark:{topic}")
            timeout_s = float(options.get("timeoutSeconds") or 60)
            micro_batch = int(options["microBatch"]) if options.get("microBatch") else None
        except ValueError as error:
            raise ConfigError(f"an option of the write is wrong: {error}") from None
        if not Path(options["log"]).is_dir():
            raise ConfigError(f"there is no log in {options['log']}: name the folder that [log] dir of cdc.toml names")
        return cls(Path(options["log"]), Path(options["runDir"]), topic, key, producer, sequence, timeout_s, micro_batch)


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.casefold() for name in _NAMES}
    for name in options:
        if name.casefold() not in known:
            raise ConfigError(f'a write to format("cdc") has no option {name}: it has {", ".join(_NAMES[:8])}')
    for name in _NEEDED:
        if not options.get(name):
            raise ConfigError(f'a write to format("cdc") needs the option {name}')


@dataclass
class TaskRows(WriterCommitMessage):
    """One task's rows, as a compressed Arrow stream."""

    raw: bytes


class TopicWriter:
    """Common to the writers of a stream and of a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises ConfigError for what cannot be written: options, columns, types."""
        if overwrite:
            raise ConfigError(
                'a topic cannot be overwritten: write with mode("append") or outputMode("append")',
                hint="a query in update mode writes in foreachBatch, with the option microBatch",
            )
        with said_in_full():
            self._plan = plan = WritePlan.of(options, schema.names)
            try:
                empty = prepared(to_arrow_schema(schema).empty_table(), plan.key, plan.sequence)
                table_for(plan.topic, _stored(empty), plan.key)
            except (ValueError, pa.ArrowException) as error:
                raise ConfigError(f"the frame's rows cannot be those of {plan.topic}: {error}") from None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's share. Runs where the task does."""
        plan = self._plan
        with said_in_full():
            parts = [prepared(pa.Table.from_batches([batch]), plan.key, plan.sequence) for batch in iterator]
            if not parts:
                return TaskRows(b"")
            rows = newest(pa.concat_tables(parts), plan.key)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(rows)
        return TaskRows(sink.getvalue().to_pybytes())

    def _hand_over(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        """All tasks' rows. Returns once the log has them. Runs in the driver, once for each micro-batch. ``batch``: see ``groups.share``."""
        parts = [pa.ipc.open_stream(one.raw).read_all() for one in messages if isinstance(one, TaskRows) and one.raw]
        with said_in_full():
            rows = newest(pa.concat_tables(parts), self._plan.key) if parts else None
            _Delivery(self._plan).bring(rows, batch)


class TopicStreamWriter(TopicWriter, DataSourceStreamArrowWriter):
    """``writeStream``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises ConfigError as ``TopicWriter``."""
        super().__init__(options, schema, overwrite)
        if self._plan.micro_batch is not None:
            raise ConfigError("writeStream numbers its micro-batches itself", hint="microBatch is for write in foreachBatch")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._hand_over(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back: nothing was handed over."""


class TopicBatchWriter(TopicWriter, DataSourceArrowWriter):
    """``write``: nobody repeats it by himself, so what the log would pass over is refused. But ``foreachBatch`` does."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._hand_over(messages, self._plan.micro_batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to take back: nothing was handed over."""


class _Delivery:
    """Brings one micro-batch into the log."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._deadline = HandoverDeadline.within(plan.timeout_s)
        self._handover = Handover(plan.log, plan.run_dir, plan.producer)

    def bring(self, rows: pa.Table | None, batch: int | None) -> None:
        """Raises what ``Handover`` does, and ConfigError as ``groups.share`` and for a cycle."""
        plan, handover = self._plan, self._handover
        source = ""
        if rows is not None and len(rows) and plan.sequence == POSITION:
            with closing(open_reader(plan.log)) as log:
                source = origin(log, plan.topic, int(rows.column(SEQUENCE).to_numpy()[-1]))
        mark = StreamMark.of(handover.open(self._deadline).to, plan.sequence is not None)
        if rows is None:
            if batch is not None and mark.sequenced and batch <= mark.batch and mark.reached >= 0:
                self._move(replace(mark, batch=batch, reached=-1))
            return
        todo = share(mark, batch, rows, source)
        if todo.fewer:
            _log.warning(
                "%s: micro-batch %s comes again with fewer rows than the log has of it; it stays as it is", plan.topic, batch
            )
        if todo.conflict:
            self._dispute(mark, todo.rows)
        elif len(todo.rows):
            self._give(mark, todo)
        elif todo.mark != mark:
            self._move(todo.mark)

    def _give(self, mark: StreamMark, todo: Share) -> None:
        rows, begin, step = todo.rows, 0, MAX_GROUP_ROWS
        while begin < len(rows):
            end = group_end(rows, begin, step)
            part = rows.slice(begin, end - begin)
            mark = _mark_behind(mark, todo.mark, part)
            batches = _batches(part)
            raw = encode(self._handover.header(mark.text, self._plan.topic, self._plan.key, batches), batches)
            if len(raw) > MAX_GROUP_BYTES or len(part) > MAX_GROUP_ROWS:
                if step == 1:
                    raise ConfigError(f"rows of one sequence are more than a group may hold ({MAX_GROUP_BYTES} bytes)")
                step = (min(step, len(rows) - begin) + 1) // 2
                continue
            self._handover.give_encoded(raw, mark.text, self._plan.topic, self._deadline)
            begin = end

    def _move(self, mark: StreamMark) -> None:
        self._handover.give(mark.text, "", (), (), self._deadline)

    def _dispute(self, mark: StreamMark, rows: pa.Table) -> None:
        """Lets the log's writer see both contents of one step, and stop the producer."""
        batches = _batches(rows)
        header = GroupHeader(self._plan.producer, "", mark.text, self._plan.topic, self._plan.key, len(rows))
        self._handover.give_encoded(encode(header, batches), mark.text, self._plan.topic, self._deadline)


def _mark_behind(before: StreamMark, last: StreamMark, part: pa.Table) -> StreamMark:
    """The mark behind a group of a micro-batch that ends with ``last``."""
    number = int(part.column(SEQUENCE).to_numpy()[-1]) if last.sequenced else before.held + 1
    return replace(last, reached=number, held=number)


def _stored(rows: pa.Table) -> list[pa.Field]:
    return [field for field in list(rows.schema)[1:] if field.name != SEQUENCE]


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    stored = rows.drop_columns([SEQUENCE]) if SEQUENCE in rows.column_names else rows
    return list(stored.combine_chunks().to_batches())


def origin(log: LogReader, topic: str, position: int) -> str:
    """The topic that has this position; empty where it is not known. Raises ConfigError when that one is derived from ``topic``, by
    whatever way.
    """
    topics = {one.name: one for one in log.topics()}
    history, marks = present_history(log), log.marks()
    found = next((one.name for one in topics.values() if _has(log, one, position, history)), "")
    way, name = [topic], found
    while name in topics and name not in way[1:]:
        way.append(name)
        if name == topic:
            raise ConfigError(
                f"topic {topic} would be derived from itself: {' → '.join(reversed(way))}",
                hint="write to another topic",
            )
        known = StreamMark.read(InboxMark.decode(marks.get(topics[name].producer)).to) if topics[name].table.derived else None
        name = known.source if known else ""
    return found


def _has(log: LogReader, topic: Topic, position: int, history: str | None) -> bool:
    """Whether the topic still has a change there. What has gone of any topic is no reason to refuse rows that were read long before."""
    if position < topic.kept_from or not topic.first <= position <= topic.last:
        return False
    with suppress(PositionGone):
        return bool(log.slices([topic.name], Position(max(position - 1, 0)), Position(position), 1, history))
    return False


@contextmanager
def said_in_full() -> Iterator[None]:
    """Puts a hint into the error's text: Spark shows nothing else."""
    try:
        yield
    except HeadwaterError as error:
        if error.hint is None:
            raise
        raise HeadwaterError(error.line()) from None
