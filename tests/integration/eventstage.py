"""One event store, a log that is written by hand, and whoever follows it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc.follow.follower import Follower
from cdc.settings.models import StoreOptions
from tests.logs import LooseLog


class EventStage:
    """Its store is called "bus"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = LooseLog()

    def options(self, **more: Any) -> StoreOptions:
        raise NotImplementedError

    def put(self, *batches: pa.RecordBatch) -> None:
        for one in batches:
            self.log.put(one)

    def follow(self, **more: Any) -> Follower:
        """To the log's head, as a process that ends then."""
        follower = Follower("bus", self.options(**more), self.folder, self.log.reader(), self.folder, threading.Event())
        follower.start()
        follower.follow_to(self.log.head)
        follower.close()
        follower.release_lease()
        return follower
