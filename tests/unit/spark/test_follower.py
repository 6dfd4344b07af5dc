"""What a follower says of itself before its store has been opened, and how far one request takes it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cdc import status
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.spark.follower import Follower
from sinks import options_model
from sinks.memory import Options
from tests.contract.rows import ORDERS, batch, order


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


class _Gathering(Options):
    """Options of a store that likes few commits."""

    commit_interval_ms: int = 1000


@pytest.mark.parametrize(("gathers", "reached"), [(False, 2), (True, 1)])
def test_a_request_goes_on_with_what_comes_next_unless_the_store_gathers(tmp_path: Path, gathers: bool, reached: int) -> None:
    log = MemoryLog()
    writer = log.writer()
    cuts = []
    for position in (1, 2):
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        cuts.append(writer.commit(Lsn(position), position))
    options = _Gathering(kind="memory") if gathers else Options(kind="memory")
    follower = Follower(tmp_path.name.lower(), options, tmp_path, log.reader(), tmp_path, threading.Event())
    follower.follow_to(cuts[0])
    assert follower.applied == cuts[reached - 1]
