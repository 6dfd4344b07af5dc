"""Stream → batches → log → feedback, with the snapshot's chunks entering between two transactions.

One thread does all the work here; the stream has two of its own (receiving, answering), the snapshot's coordinator its workers. Only the
log's fsync confirms an LSN: a transaction's end LSN once its group is durable, or a keepalive's LSN once an empty group has
recorded it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from cdc.capture.continuity import Continuity
from cdc.capture.decoder import Decoder
from cdc.capture.endings import decoding, ending, notice
from cdc.capture.stream import Stream
from cdc.capture.toast import ToastMemory
from cdc.crashpoint import crashpoint
from cdc.ingest.meter import Meter
from cdc.log.contract import LogWriter
from cdc.model.batch import table_of
from cdc.model.evolution import schema_record
from cdc.model.group import Group
from cdc.model.position import Lsn
from cdc.pace import Pace
from cdc.pgvalues.values import Bytes
from snapshots.feed import SnapshotFeed, place

IDLE_RECORD_S: Final = 10.0
"""How often the position of a database without changes of ours is recorded, so that it can be confirmed and its WAL freed."""
IDLE_RECORD_BYTES: Final = 16 * 2**20
"""… or after this much WAL (one WAL file)."""
TAKE_S: Final = 0.2
"""How often an idle stream is looked after; whatever comes ends the wait at once."""
SMALL_BYTES: Final = 16 * 2**10
"""Bytes taken at once while there is no backlog. Only then …"""
PACE: Final = Pace(times=8.0, most_s=0.02)
"""… does the next group wait a little, so that small steady traffic costs an eighth of a core at most."""

_log = structlog.get_logger("capture")


class Ingest:
    """One connection's stream into the log. ``feed`` is the snapshot's side, ``memory`` completes unchanged TOAST values.

    ``continuity``: the server sends the log's end again, which has to be what the log holds; until then nothing is confirmed.
    """

    def __init__(
        self,
        stream: Stream,
        decoder: Decoder,
        writer: LogWriter,
        memory: ToastMemory,
        feed: SnapshotFeed,
        meter: Meter,
        continuity: Continuity | None = None,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._writer = writer
        self._memory = memory
        self._feed = feed
        self._meter = meter
        self._torn: list[Bytes] = []
        """Bytes that the decoder has not used up, and those that came since."""
        self._lacks = 0
        self._passing = 0
        """The number of next bytes that belong to a message of somebody else's."""
        self._recorded_at = time.monotonic()
        self._unrecorded = 0
        self._stop = threading.Event()
        self._continuity = continuity
        self._check_continuity(0)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. Raises ConnectionError, OSError or ProtocolError when the stream ends, Stopped for a stop state."""
        self._stop = stop
        while not stop.is_set():
            taken = self._stream.take(TAKE_S)
            if len(taken):
                began = time.monotonic()
                self._gather(taken)
                if len(taken) < SMALL_BYTES:
                    stop.wait(PACE.rest_s(time.monotonic() - began))
            self._feed.check()
            self._record_idle(force=False)
            self._meter.write()

    def finish(self) -> None:
        """Records how far an idle stream has come, so that a stopped service holds no WAL back that it does not need."""
        self._record_idle(force=True)

    def _gather(self, taken: Bytes) -> None:
        """A message much larger than a block is not put together again with every piece of it that comes."""
        if self._passing:
            passed = min(self._passing, len(taken))
            self._passing -= passed
            if passed == len(taken):
                return
            taken = np.concatenate([*self._torn, taken[passed:]])
            self._torn = []
        self._lacks -= len(taken)
        if self._lacks > 0:
            self._torn.append(taken.copy())
            return
        self._consume(self._stream.behind(np.concatenate(self._torn), taken) if self._torn else taken)

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
                self._meter.write()
                if self._stop.is_set():
                    return  # nothing of the transaction is durable, all of it will be sent again
        self._torn = [block[decoder.consumed :].copy()] if decoder.consumed < len(block) else []
        self._lacks = decoder.lacks
        if decoder.foreign:
            self._torn = [block[decoder.consumed : len(block) - decoder.foreign].copy()]
            self._passing, self._lacks = decoder.lacks, 0
        if batches:
            self._stream.batches = batches
        self._check_continuity(decoder.keepalive_lsn)
        if decoder.keepalive_lsn > self._writer.head.commit_lsn:
            self._unrecorded = max(self._unrecorded, decoder.keepalive_lsn)
            self._meter.status.received_lsn = max(self._meter.status.received_lsn, decoder.keepalive_lsn)
        if decoder.reply_requested:
            self._record_idle(force=True)
            self._stream.reply_now()
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
            for batch in place([*self._entering(chunk), *chunk], self._writer.next_position, end_lsn, commit_ts_us):
                self._writer.append(batch)
                self._memory.learn(batch)
        elif self._writer.next_position == self._writer.head.position + 1:
            # Nothing of ours in these transactions (the watermark is somebody else's): as good as a keepalive.
            self._unrecorded = max(self._unrecorded, end_lsn)
            self._meter.status.received_lsn = max(self._meter.status.received_lsn, end_lsn)
            return
        self._commit(end_lsn, commit_ts_us)

    def _check_continuity(self, sent_lsn: int) -> None:
        if self._continuity is None:
            return
        self._continuity.on_progress(sent_lsn)
        if self._continuity.done:
            self._continuity = None
            self._stream.confirm(self._writer.head.commit_lsn)

    def _entering(self, chunk: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """SCHEMA records that have to come before the chunk: no row of the stream has brought the definition under which it was read."""
        if not chunk:
            return []
        schema = self._decoder.schema
        records = [schema_record(change, 0, 0, 0) for change in schema.enter(table_of(chunk[0].schema))]
        for oid, joined in schema.take_again().items():
            self._feed.read_again(oid, joined=joined)
        return records

    def _commit(self, lsn: int, commit_ts_us: int) -> None:
        before = self._writer.head.position
        cut = self._writer.commit(Lsn(lsn), commit_ts_us)
        crashpoint("ingest.commit.durable")
        self._memory.commit(cut.position)
        crashpoint("ingest.commit.remembered")
        self._feed.on_durable(cut)
        crashpoint("ingest.commit.before_confirm")
        self._decoder.settle(cut.commit_lsn)
        self._stream.confirm(cut.commit_lsn)
        crashpoint("ingest.commit.confirmed")
        self._recorded_at = time.monotonic()
        state = self._meter.status
        state.position, state.commit_lsn, state.commit_ts_us = cut.position, cut.commit_lsn, cut.commit_ts_us
        state.changes += cut.position - before
        state.confirmed_lsn = cut.commit_lsn
        state.received_lsn = max(state.received_lsn, cut.commit_lsn)
        state.wire_bytes = self._stream.received

    def _record_idle(self, *, force: bool) -> None:
        head = self._writer.head
        ahead = self._unrecorded - head.commit_lsn
        if ahead <= 0 or self._writer.next_position != head.position + 1:
            return
        if force or ahead >= IDLE_RECORD_BYTES or time.monotonic() - self._recorded_at >= IDLE_RECORD_S:
            crashpoint("ingest.idle.before_record")
            self._commit(self._unrecorded, head.commit_ts_us)


def _decoded(groups: Iterator[Group]) -> Iterator[Group]:
    while True:
        with decoding():
            group = next(groups, None)
        if group is None:
            return
        yield group
