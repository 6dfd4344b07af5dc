"""A store beside a ``Capture``: one cache in a real server, brought along when the test says so."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from typing import Any

from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from sinks import options_model
from tests.integration.capture.running import Capture


class Cache:
    """Its follower is started again for every step, as a process is. ``dead``: how many changes it has set aside."""

    def __init__(self, capture: Capture, valkey: Any) -> None:
        self.valkey = valkey
        self.dead = 0
        self._settings = capture.settings
        self._options = options_model("redis").model_validate({"kind": "redis", "url": valkey.url})

    def follow(self) -> dict[str, Any]:
        """Brings it as far as the log goes. Returns the column ``v`` of all that it holds, by key; None of a table without it."""
        with closing(EmbeddedLogReader(self._settings.log.dir)) as reader:
            follower = Follower("cache", self._options, self._settings.log.dir, reader, self._settings.run_dir, threading.Event())
            with closing(follower):
                end = reader.head()
                follower.follow_to(end)
                assert (follower.status.stop, follower.applied) == (None, end)
                self.dead = follower.status.dead
        with self.valkey.client() as client:
            keys = list(client.scan_iter("public.*", count=10_000))
            values = client.mget(keys) if keys else []
        return {key.decode(): json.loads(value).get("v") for key, value in zip(keys, values, strict=True)}
