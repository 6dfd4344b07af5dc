"""How often each of the application's events has come to those who read them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import redis

from cdc.demo.stage import EVENT_STORES, STREAM, Stage

WAIT_S: Final = 60.0


def arrived(stage: Stage) -> dict[str, Counter[str]]:
    """Event store → how often each event is there, by its id."""
    with redis.Redis.from_url(stage.valkey.url) as client:
        entries: Any = client.xrange(STREAM)
    stream = Counter(fields[b"id"].decode() for _, fields in entries)
    return dict(zip(EVENT_STORES, (stream, Counter(stage.receiver.taken)), strict=True))


def judged(stage: Stage, committed: Collection[str], wait_s: float = WAIT_S) -> dict[str, Any]:
    """``committed``: how many there were; event store → {``missing``, ``twice``}. Waits until none is missing, or the time is over."""
    until = time.monotonic() + wait_s
    while True:
        found = {
            store: {"missing": sum(not taken[one] for one in committed), "twice": sum(taken[one] > 1 for one in committed)}
            for store, taken in arrived(stage).items()
        }
        if time.monotonic() >= until or not any(one["missing"] for one in found.values()):
            return {"committed": len(committed), **found}
        time.sleep(0.2)
