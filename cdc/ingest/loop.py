"""Stream → batches → log → feedback, with the snapshot's chunks entering between two transactions.

One thread does all the work here; the stream has two of its own (receiving, answering), the snapshot's coordinator its workers. Only the
log's fsync confirms an LSN: a transaction's end LSN once its group is durable, or a keepalive's LSN once an empty group has
recorded it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import structlog

from cdc.capture.continuity import Continuity
from cdc.capture.decoder import Decoder
from cdc.capture.endings import decoding, ending, notice
from cdc.crashpoint import crashpoint
from cdc.ingest.idle import Idle
from cdc.ingest.intake import Intake
from cdc.ingest.ports import Wire
from cdc.ingest.torn import Remainder, Torn
from cdc.model.batch import table_of
from cdc.model.evolution import Kind, schema_change_of, schema_record
from cdc.model.group import EmittedMessages, Group
from cdc.model.position import Lsn
from cdc.pace import Pace
from cdc.pgvalues.values import Bytes
from snapshots.feed import place

TAKE_S: Final = 0.2
"""How often an idle stream is looked after; whatever comes ends the wait at once."""
SMALL_BYTES: Final = 16 * 2**10
"""Bytes taken at once while there is no backlog. Only then …"""
PACE: Final = Pace(times=8.0, most_s=0.02)
"""… does the next group wait a little, so that small steady traffic costs an eighth of a core at most."""

_log = structlog.get_logger("capture")


class Ingest:
    """One connection's stream into the log.

    ``continuity``: the server sends the log's end again, which has to be what the log holds; until then nothing is confirmed.
    """

    def __init__(self, intake: Intake, wire: Wire, decoder: Decoder, continuity: Continuity | None = None) -> None:
        self._writer = intake.writer
        self._intake = intake
        self._feed = intake.feed
        self._gauge = intake.gauge
        self._clock = intake.clock
        self._wire = wire
        self._decoder = decoder
        self._torn = Torn()
        self._idle = Idle(self._clock.monotonic())
        self._stop = threading.Event()
        self._handed_over = False
        self._continuity = continuity
        self._check_continuity(0)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. Raises ConnectionError, OSError or ProtocolError when the stream ends, Stopped for a stop state."""
        self._stop = stop
        while not stop.is_set():
            self.turn()

    def turn(self) -> None:
        """Takes what has come, once. Raises as ``run`` does."""
        taken = self._wire.take(0.0 if self._handed_over else TAKE_S)
        if len(taken):
            began = self._clock.worked()
            block = self._torn.join(taken, self._wire.behind)
            if block is not None:
                self._consume(block)
            if len(taken) < SMALL_BYTES:
                self._intake.rest(self._stop, PACE.rest_s(self._clock.worked() - began))
        self._feed.check()
        self._record_idle(force=False)
        # One group, and then the source's changes come first again.
        self._handed_over = self._intake.serve_inbox()
        self._gauge.write()

    def finish(self) -> None:
        """Records how far an idle stream has come, so that a stopped service holds no WAL back that it does not need."""
        self._record_idle(force=True)

    def _consume(self, block: Bytes) -> None:
        decoder = self._decoder
        with decoding():
            groups = decoder.groups(block, 0, len(block), lambda: self._writer.next_position)
        batches = 0
        for fields in decoder.notices:
            _log.warning("the server says", notice=notice(fields))  # before anything that came with it becomes durable
        for group in _decoded(groups):
            self._append(group)
            batches += len(group.batches)
            if not group.complete:
                self._gauge.write()
                if self._stop.is_set():
                    return  # nothing of the transaction is durable, all of it will be sent again
        self._torn.keep(block, Remainder(decoder.consumed, decoder.lacks, decoder.foreign))
        if batches:
            self._wire.batches = batches
        self._check_continuity(decoder.keepalive_lsn)
        if decoder.keepalive_lsn > self._writer.head.commit_lsn:
            self._idle.passed(decoder.keepalive_lsn)
            self._gauge.status.received_lsn = max(self._gauge.status.received_lsn, decoder.keepalive_lsn)
        if decoder.reply_requested:
            self._record_idle(force=True)
            self._wire.reply_now()
        if decoder.ended >= 0:
            raise ending(block[decoder.ended :].tobytes())

    def _append(self, group: Group) -> None:
        crashpoint("ingest.group.decoded")
        if self._continuity is not None:
            self._continuity.on_group(group)
        self._feed.on_group(group, self._writer.head.commit_lsn)
        for oid, joined in group.again.items():
            self._feed.read_again(oid, joined=joined)
        for batch in group.batches:
            self._writer.append(batch)
        self._append_events(group.batches, group.messages)
        if not group.complete:
            return
        crashpoint("ingest.group.appended")
        transactions = group.transactions
        end_lsn, commit_ts_us = int(transactions.end_lsn[-1]), int(transactions.commit_ts_us[-1])
        if end_lsn <= self._writer.head.commit_lsn:
            return  # the log's own end, sent again
        chunk = self._feed.chunk_at(group.watermark) if group.watermark is not None else None
        if chunk and table_of(chunk[0].schema).oid in self._decoder.schema.passed_over:
            chunk = []  # the stream does not know yet that it can be captured again, and lets it be read again when it does
        if chunk is not None:
            entered = place(self._entering(chunk), self._writer.next_position, end_lsn, commit_ts_us)
            for batch in entered:
                self._writer.append(batch)
                self._intake.memory.learn(batch)
            self._append_events(entered)
        elif self._writer.next_position == self._writer.head.position + 1:
            # Nothing of ours in these transactions (the watermark is somebody else's): as good as a keepalive.
            self._idle.passed(end_lsn)
            self._gauge.status.received_lsn = max(self._gauge.status.received_lsn, end_lsn)
            return
        self._commit(end_lsn, commit_ts_us)

    def _append_events(self, batches: Sequence[pa.RecordBatch], messages: EmittedMessages | None = None) -> None:
        if self._intake.events is not None:
            self._intake.events.append(batches, messages)

    def _check_continuity(self, sent_lsn: int) -> None:
        if self._continuity is None:
            return
        self._continuity.on_progress(sent_lsn)
        if self._continuity.done:
            self._continuity = None
            self._wire.confirm(self._writer.head.commit_lsn)

    def _entering(self, chunk: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The chunk, behind the SCHEMA records that have to come before it: no row of the stream has brought the definition under which it was
        read. One that found no row tells how the table is defined, where the log does not know it yet."""
        if not chunk:
            return []
        schema, table = self._decoder.schema, table_of(chunk[0].schema)
        change = schema_change_of(chunk[0])
        rowless = change is not None and change.kind is Kind.ALTERED
        if rowless and (not self._intake.rowless or schema.logs(table.oid)):
            return []
        records = [schema_record(change, 0, 0, 0) for change in schema.enter(table)]
        for oid, joined in schema.take_again().items():
            self._feed.read_again(oid, joined=joined)
        if rowless and (records or table.oid in schema.passed_over):
            return records
        return [*records, *chunk]

    def _commit(self, lsn: int, commit_ts_us: int) -> None:
        before = self._writer.head.position
        if self._feed.fell_behind():
            self._gauge.lack()
        cut = self._writer.commit(Lsn(lsn), commit_ts_us)
        crashpoint("ingest.commit.durable")
        if self._intake.events is not None:
            self._intake.events.committed()
        self._intake.memory.commit(cut.position)
        crashpoint("ingest.commit.remembered")
        self._feed.on_durable(cut)
        crashpoint("ingest.commit.before_confirm")
        self._decoder.settle(cut.commit_lsn)
        self._wire.confirm(cut.commit_lsn)
        crashpoint("ingest.commit.confirmed")
        self._idle.recorded(self._clock.monotonic())
        state = self._gauge.status
        state.position, state.commit_lsn, state.commit_ts_us = cut.position, cut.commit_lsn, cut.commit_ts_us
        state.changes += cut.position - before
        state.confirmed_lsn = cut.commit_lsn
        state.received_lsn = max(state.received_lsn, cut.commit_lsn)
        state.wire_bytes = self._wire.received

    def _record_idle(self, *, force: bool) -> None:
        head = self._writer.head
        if self._writer.next_position != head.position + 1:
            return
        self._writer.commit()  # nearly always of nothing: compaction may wait for it
        lsn = self._idle.due(head.commit_lsn, self._clock.monotonic(), force=force)
        if lsn is not None:
            crashpoint("ingest.idle.before_record")
            self._commit(lsn, head.commit_ts_us)


def _decoded(groups: Iterator[Group]) -> Iterator[Group]:
    while True:
        with decoding():
            group = next(groups, None)
        if group is None:
            return
        yield group
