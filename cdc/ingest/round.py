"""One connection's streaming into the log, from the log's last durable cut on. The process begins each of its connections here; so does the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa
import structlog

from cdc.capture.authenticity import Expected
from cdc.capture.continuity import Continuity
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.capture.eventmessages import EventMessages
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.rows import Hold
from cdc.capture.spool import Spools
from cdc.ingest.intake import Intake
from cdc.ingest.loop import Ingest
from cdc.ingest.ports import Wire
from cdc.log.home import open_reader
from cdc.model.batch import table_of
from cdc.pgvalues.values import Flags
from snapshots.feed import SnapshotFeed

_log = structlog.get_logger("capture")


@dataclass(frozen=True, slots=True)
class Round:
    """A connection, and what it brings along."""

    wire: Wire
    """Its stream has begun, and confirms nothing until the log's end has been recognised."""
    definitions: Definitions
    since_lsn: int
    """Where the slot stood when the log began."""
    confirmed_lsn: int
    """What the server has confirmed of the slot, while this connection has it."""


@contextmanager
def begun(intake: Intake, brought: Round) -> Iterator[Ingest]:
    """The loop of this connection, ready to run. What it spools on the disk is gone afterwards."""
    head = intake.writer.head
    prepared = PreparedFiles(intake.folder)
    prepared.settle(head.commit_lsn)
    with closing(open_reader(intake.folder)) as log:
        last = log.last_commit()
    # The changes that the log holds and the server will send again.
    continuity = Continuity(last, head, max(brought.since_lsn, brought.confirmed_lsn))
    durable_lsn = head.commit_lsn if continuity.done else max(last.commit_lsn, continuity.start_lsn)
    with closing(Spools(intake.folder)) as spools:
        feed = intake.feed
        decoder = Decoder(
            brought.definitions, intake.memory, _hold(feed), durable_lsn, spools, prepared, _expected(intake), head.commit_lsn
        )
        yield Ingest(intake, brought.wire, decoder, continuity)


def _expected(intake: Intake) -> Expected:
    if intake.events is None:
        return Expected(intake.feed.expects)
    # Whatever the log has come past is decided, also where nobody made events of messages then.
    return Expected(intake.feed.expects, EventMessages(intake.events.prefix, intake.writer.head.commit_lsn, intake.events.refuse))


def _hold(feed: SnapshotFeed) -> Hold:
    def hold(rows: pa.RecordBatch, missing: Mapping[str, Flags]) -> None:
        table = table_of(rows.schema)
        if not feed.unresolved(table.oid):
            # A column was renamed, the identity changed, or the memory was lost: the database still has the values.
            _log.warning("reads rows back whose unchanged values the log does not hold", table=table.qualified, rows=len(rows))
        feed.hold(rows, missing)

    return hold
