"""Transactions whose messages come before their end: what of them is kept, and what their end makes of it.

A large transaction comes in blocks while it runs (STREAM START to STREAM STOP), a two-phase one between BEGIN PREPARE and PREPARE, or in blocks
that a STREAM PREPARE ends. Its frames go to a spool as they are. Of each transaction this room knows one of three states, and each message
leads from one to another, or cannot come (``STATES``):

- NONE: no block of it has come on this connection, or it is over;
- SPOOLED: it runs. Its spool dies with the connection, and the server sends all of it again;
- KEPT: it is prepared. It is durable here, and outlives connections and processes until its end is durable in the log.

What was KEPT for an earlier connection may come again, and end again: the server sends again what we have not confirmed as durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, assert_never

from cdc.capture.control import (
    BeginPrepare,
    CommitPrepared,
    Control,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
)
from cdc.capture.inforce import InForce
from cdc.capture.messages import Aborted, Commit, Inside
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.spool import Spool, SpoolPiece, Spools
from cdc.errors import ProtocolError
from cdc.pgvalues.values import Bytes

NONE, SPOOLED, KEPT = "none", "spooled", "kept"
STATES: Final = {
    ("STREAM START, first", NONE): SPOOLED,
    ("STREAM START, first", KEPT): SPOOLED,
    ("STREAM START, next", SPOOLED): SPOOLED,
    ("STREAM ABORT, part", NONE): NONE,
    ("STREAM ABORT, part", SPOOLED): SPOOLED,
    ("STREAM ABORT, part", KEPT): KEPT,
    ("STREAM ABORT, all", NONE): NONE,
    ("STREAM ABORT, all", SPOOLED): NONE,
    ("STREAM ABORT, all", KEPT): KEPT,
    ("STREAM COMMIT", SPOOLED): NONE,
    ("BEGIN PREPARE", NONE): SPOOLED,
    ("BEGIN PREPARE", KEPT): SPOOLED,
    ("PREPARE", SPOOLED): KEPT,
    ("STREAM PREPARE", SPOOLED): KEPT,
    ("COMMIT PREPARED", KEPT): KEPT,
    ("ROLLBACK PREPARED", NONE): NONE,
    ("ROLLBACK PREPARED", SPOOLED): SPOOLED,
    ("ROLLBACK PREPARED", KEPT): NONE,
}
"""The state after each message that may come in a state; every other is a ProtocolError. A KEPT one whose end has come is so until ``settle``;
a KEPT one that comes again is SPOOLED beside that."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A transaction whose end has come: its frames, to be decoded now."""

    pieces: Iterator[SpoolPiece]
    commit: Commit
    aborted: Aborted | None
    """See ``scan_spooled``."""
    ordinal_at: Callable[[int], int]
    """When the frame at an offset of the spool was sent; see ``InForce``."""

    @property
    def doubtful(self) -> bool:
        """A message carries the top-level transaction's xid, whichever subtransaction said it (pgoutput_message in pgoutput.c), so behind one
        that was rolled back no message can be relied on."""
        return self.aborted is not None and len(self.aborted) > 0


class Deferred:
    """The transactions of one connection that wait. Without spools and a place for prepared ones, none may."""

    def __init__(self, spools: Spools | None, prepared: PreparedFiles | None, in_force: InForce) -> None:
        self._spools = spools
        self._prepared = prepared
        self._in_force = in_force
        self.inside = Inside.NOTHING
        """STREAM or PREPARED where the last bytes ended between the messages that begin and end a block of such a transaction."""
        self._filling: Spool | None = None
        """The spool of the transaction whose block it is."""

    def settle(self, durable_lsn: int) -> None:
        """The log holds every commit that ends at or before this LSN: nothing of them need be kept."""
        if self._prepared is not None:
            self._prepared.settle(durable_lsn)

    def add(self, span: Bytes) -> None:
        """Frames that come within a block."""
        self._asked_for()
        assert self._filling is not None, "a span stands behind the message that begins it"
        self._filling.add(span, self._in_force.ordinal)
        if not self._filling.prefixed:
            self._in_force.define_now(span)

    @contextmanager
    def turn(self, control: Control) -> Iterator[Replay | Commit | None]:
        """Takes the message, and yields what it frees: something to be replayed within, or a commit that the log has and of which nothing is left."""
        spools, prepared = self._asked_for()
        match control:
            case StreamStart():
                self._in_force.ordinal += 1
                self._filling = spools.begin(control.xid, first=control.first)
                yield None
            case StreamStop():
                self._in_force.ordinal += 1
                self._filling = None
                yield None
            case StreamAbort():
                spools.abort(control.xid, control.subxid)
                yield None
            case StreamCommit():
                # Also when the log has it already: the server takes the definitions in it for known from here on.
                spool = spools.ended(control.xid)
                yield Replay(spool.pieces(), _commit(control), spool.aborted if spool.prefixed else None, spool.ordinal_at)
                spools.drop(control.xid)
            case BeginPrepare():
                self._in_force.begin_prepare()
                self._filling = spools.begin(control.xid, first=True, prefixed=False)
                yield None
            case Prepare():
                self._filling = None
                definitions = b"" if control.streamed else self._in_force.needed()
                prepared.keep(spools.ended(control.xid), definitions, control.gid, control.end_lsn)
                spools.drop(control.xid)
                yield None
            case CommitPrepared():
                if control.end_lsn <= prepared.settled_lsn and not prepared.holds(control.xid):
                    yield _commit(control)
                else:
                    with prepared.ending(control.xid, control.gid, control.end_lsn) as kept:
                        yield Replay(kept.pieces(), _commit(control), kept.aborted, lambda _: -1)
            case RollbackPrepared():
                prepared.rolled_back(control.xid)
                yield None
            case _:
                assert_never(control)

    def _asked_for(self) -> tuple[Spools, PreparedFiles]:
        if self._spools is None or self._prepared is None:
            raise ProtocolError("the server sends a transaction before its end, which was not asked for")
        return self._spools, self._prepared


def _commit(control: StreamCommit | CommitPrepared) -> Commit:
    return Commit(control.xid, control.commit_lsn, control.commit_ts_us, control.end_lsn)
