"""Documents that are written from a known state only, against a cluster that answers as scripted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cdc.errors import StoreError
from sinks.retry import ATTEMPTS_MAX
from sinks.search.conditional import Change, Guarded, send
from sinks.search.wire import Answer, Cluster

BUSY = Answer(429, {"error": {"type": "es_rejected_execution_exception"}})


class Busy:
    """Turns every request away."""

    store = "search"

    def __init__(self) -> None:
        self.requests = 0

    def send(self, *_: Any, **__: Any) -> Answer:
        self.requests += 1
        return BUSY

    def error(self, doing: str, answer: Answer) -> StoreError:
        return StoreError(f"{doing}: {answer.status}", retryable=True)


def test_nobody_waits_for_a_busy_cluster_that_is_not_asked_again() -> None:
    cluster, pauses = Busy(), list[float]()
    change = Change(Guarded("alias", "index", "id"), lambda nonce: {"nonce": nonce}, "n")

    with pytest.raises(StoreError, match="writing: 429"):
        send(cast("Cluster", cluster), "writing", [change], sleep=pauses.append)

    assert cluster.requests == ATTEMPTS_MAX
    assert len(pauses) == ATTEMPTS_MAX - 1
