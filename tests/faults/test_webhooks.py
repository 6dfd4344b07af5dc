"""Whoever sends events is killed, or fails, at any step: the receiver gets each of them, each key's in order, and what comes twice is the same."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from cdc.crashpoint import CrashKind
from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from sinks.events.webhook import Options
from sinks.events.webhook.kept import KEPT
from tests.contract.rows import ORDERS, batch, order
from tests.faults import points
from tests.faults.points import EVERYTHING, broken_off
from tests.receivers import Answer, Received, ScriptedReceiver

COMMITS: Final = 30
ROWS: Final = 7
WITHIN_S: Final = 60.0


def write(folder: Path) -> int:
    """A log of some transactions that change the same few rows. Returns how many changes there are."""
    with closing(EmbeddedLogWriter(folder / "log")) as log:
        for number in range(COMMITS):
            at = log.next_position
            rows = [
                (Op.INSERT if number < ROWS else Op.UPDATE, at + one, order((number + one) % ROWS, f"s{number}"))
                for one in range(3)
            ]
            log.append(batch(ORDERS, rows))
            log.commit(Lsn(int(at) * 8 + 8), 0)
        return int(log.head.position)


def follow(folder: Path, options: Options) -> str | None:
    """To the log's head, in ranges of a few transactions, and on until everything was taken. Returns what stopped it."""
    with closing(EmbeddedLogReader(folder / "log")) as reader:
        follower = Follower("billing", options, folder / "log", reader, folder / "run", threading.Event())
        try:
            follower.start()
            follower.follow_to(reader.head())
            deadline = time.monotonic() + WITHIN_S
            while follower.status.stop is None and time.monotonic() < deadline:
                follower.idle()
                kept = KEPT.load(folder / "kept" / "billing.json")
                if kept is not None and not kept.waiting and kept.standing.cut.position == reader.head().position:
                    break
                time.sleep(0.05)
            return follower.status.stop
        finally:
            follower.close()
            follower.release_lease()


@pytest.fixture
def receiver() -> Iterator[ScriptedReceiver]:
    """One that does not take some events at first."""
    seen: set[str] = set()

    def script(one: Received) -> Answer:
        if int(one.id.partition(":")[2]) % 5 == 0 and one.id not in seen:
            seen.add(one.id)
            return Answer(503)
        return Answer()

    with ScriptedReceiver(script) as made:
        yield made


@pytest.mark.faults
@pytest.mark.parametrize("nth", [1, 2, 5, 20] if EVERYTHING else [2])
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.ERROR])
@pytest.mark.parametrize("point", points.of("webhook"))
def test_no_event_is_lost(point: str, kind: CrashKind, nth: int, receiver: ScriptedReceiver, tmp_path: Path) -> None:
    given = {"kind": "webhook", "url": receiver.url, "begin": "start", "batch_rows": 12, "state_dir": tmp_path / "kept"}
    options = Options.model_validate({**given, "retry": {"first_s": 0.05, "most_s": 0.2}, "in_flight": 4})
    expected = write(tmp_path)
    nth = 1 if point == "webhook.begin" else nth if point.startswith("webhook.sen") else min(nth, 5)
    broken_off(lambda: follow(tmp_path, options), point, kind, nth)
    assert follow(tmp_path, options) is None
    bodies: dict[str, set[bytes]] = defaultdict(set)
    taken: dict[int, list[int]] = defaultdict(list)
    for one in receiver.received:
        bodies[one.id].add(one.body)
        taken[json.loads(one.body)["after"]["id"]].append(int(one.id.partition(":")[2]))
    assert sorted(bodies, key=lambda one: int(one.partition(":")[2])) == [f"public%2Eorders:{at}" for at in range(1, expected + 1)]
    assert {len(one) for one in bodies.values()} == {1}
    for positions in taken.values():
        assert list(dict.fromkeys(positions)) == sorted(set(positions)), "out of order"
