"""The cache's fence on the real server: what is written when the ledger is lost, older, another's, or has seen a later writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.spark.follower import Follower
from sinks import options_model
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts

# -- with a follower ---------------------------------------------------------------------------------------------------


class Following:
    """A follower of a log in memory, into the server."""

    def __init__(self, url: str, folder: Path) -> None:
        self.log = MemoryLog()
        self.writer = self.log.writer()
        options = options_model("redis").model_validate({"kind": "redis", "url": url})
        self.follower = Follower("cache", options, folder / "log", self.log.reader(), folder / "run", threading.Event())

    def write(self, *batches: Any) -> None:
        for one in batches:
            self.writer.append(one)
        self.writer.commit(Lsn(int(self.writer.next_position) * 10), 0)
        self.follower.follow_to(self.writer.head)

    def close(self) -> None:
        self.follower.close()


@pytest.fixture
def following(valkey: Any, tmp_path: Path) -> Iterator[Following]:
    with closing(Following(valkey.url, tmp_path)) as one:
        yield one


def test_a_server_that_is_flushed_while_changes_come_is_filled_again(valkey: Any, following: Following) -> None:
    """The table that changes is not the one that would be missing."""
    pairs = [{"a": str(i), "b": "", "v": "0"} for i in range(500)]
    following.write(upserts(ORDERS, 1, [order(i) for i in range(3000)]), upserts(PAIRS, 3001, pairs))
    with valkey.client() as client:
        client.flushdb()
        for n in range(5):
            following.write(batch(PAIRS, [(Op.UPDATE, 3501 + n, {**pairs[n], "v": "1"})]))
        assert following.follower.applied == following.writer.head
        assert following.follower.status.stop is None
        assert len(client.keys("public.orders:*")) == 3000
        assert len(client.keys("public.pairs:*")) == 500
