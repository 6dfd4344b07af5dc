"""What a follower says of itself before its store has been opened."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cdc import status
from cdc.log.memory import MemoryLog
from cdc.spark.follower import Follower
from sinks import options_model


@pytest.mark.parametrize(("kind", "position"), [("memory", 7), ("redis", 0)])
def test_until_the_store_is_opened_it_is_where_it_was_last_seen(tmp_path: Path, kind: str, position: int) -> None:
    status.write(
        tmp_path, "follow-twin", status.FollowerStatus("twin", kind, 1, "exited", position=7, commit_lsn=70, commit_ts_us=9)
    )
    options = options_model("memory").model_validate({"kind": "memory"})
    follower = Follower("twin", options, tmp_path, MemoryLog().reader(), tmp_path, threading.Event())
    follower.report()
    told = status.read_follower(tmp_path, "twin")
    assert told is not None
    assert (told.position, told.commit_lsn, told.state, told.written) == (position, position * 10, "starting", 0)
