"""What waits for its end: each message in each state of its transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.capture.control import (
    BeginPrepare,
    CommitPrepared,
    Control,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamStart,
)
from cdc.capture.deferral import KEPT, NONE, SPOOLED, STATES, Deferred, Replay
from cdc.capture.definitions import Definitions
from cdc.capture.inforce import InForce
from cdc.capture.messages import Commit
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.spool import Spools
from cdc.errors import ProtocolError

XID = 700
MESSAGES: dict[str, Control] = {
    "STREAM START, first": StreamStart(XID, first=True),
    "STREAM START, next": StreamStart(XID, first=False),
    "STREAM ABORT, part": StreamAbort(XID, XID + 1),
    "STREAM ABORT, all": StreamAbort(XID, XID),
    "STREAM COMMIT": StreamCommit(XID, 100, 140, 0),
    "BEGIN PREPARE": BeginPrepare(XID, "g"),
    "PREPARE": Prepare(XID, 140, "g", streamed=False),
    "STREAM PREPARE": Prepare(XID, 140, "g", streamed=True),
    "COMMIT PREPARED": CommitPrepared(XID, 200, 240, 0, "g"),
    "ROLLBACK PREPARED": RollbackPrepared(XID, "g"),
}
REPLAYED = {"STREAM COMMIT", "COMMIT PREPARED"}


class Room:
    """One connection's transactions that wait, led into a state."""

    def __init__(self, folder: Path, state: str) -> None:
        self.spools, self.prepared = Spools(folder), PreparedFiles(folder)
        self.deferred = Deferred(self.spools, self.prepared, InForce(Definitions(lambda _: None)))
        if state != NONE:
            self.come("STREAM START, first")
        if state == KEPT:
            self.come("STREAM PREPARE")

    def come(self, message: str) -> Replay | Commit | None:
        with self.deferred.turn(MESSAGES[message]) as ended:
            return ended

    @property
    def state(self) -> str:
        try:
            self.spools.ended(XID)
        except ProtocolError:
            return KEPT if self.prepared.holds(XID) else NONE
        return SPOOLED


@pytest.mark.parametrize("state", [NONE, SPOOLED, KEPT])
@pytest.mark.parametrize("message", MESSAGES)
def test_the_states_are_a_table(tmp_path: Path, message: str, state: str) -> None:
    room = Room(tmp_path, state)
    try:
        assert room.state == state
        if (message, state) in STATES:
            ended = room.come(message)
            assert isinstance(ended, Replay) == (message in REPLAYED)
            assert room.state == STATES[message, state]
        else:
            with pytest.raises(ProtocolError):
                room.come(message)
            assert room.state == state
    finally:
        room.spools.close()


def test_a_commit_that_the_log_has_needs_nothing_that_was_kept(tmp_path: Path) -> None:
    room = Room(tmp_path, KEPT)
    assert isinstance(room.come("COMMIT PREPARED"), Replay)
    room.deferred.settle(239)
    assert room.state == KEPT
    room.deferred.settle(240)
    assert room.state == NONE
    assert room.come("COMMIT PREPARED") == Commit(XID, 200, 0, 240)


@pytest.mark.parametrize("message", MESSAGES)
def test_nothing_waits_where_nobody_asked_for_it(message: str) -> None:
    deferred = Deferred(None, None, InForce(Definitions(lambda _: None)))
    with pytest.raises(ProtocolError, match="not asked for"), deferred.turn(MESSAGES[message]):
        pass
