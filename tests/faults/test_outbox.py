"""Capture is killed, or the disk refuses, at any step that events take: each row of the outbox table is exactly one event, in the order of commits."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdc.crashpoint import KILLED, CrashKind
from cdc.embedded.postgres import Postgres
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.position import Position
from cdc.outbox import OutboxMessages, emit
from tests import counters
from tests.faults import points
from tests.faults.lab import DEADLINE_S, Lab, lab
from tests.faults.nursery import Nursery
from tests.faults.points import EVERYTHING
from tests.integration.outbox.capturing import CREATE, write

BESIDE: Final = (
    "ingest.group.appended",
    "log.append.written",
    "log.commit.fsynced",
    "log.commit.published",
    "ingest.commit.durable",
    "ingest.commit.confirmed",
)
"""Points that every change takes, where an event may be lost or come twice."""


def events(folder: Path) -> tuple[list[str], dict[str, list[int]], list[int]]:
    """The ids of all events; for each key the numbers in their payloads, in the log's order; and every position."""
    ids: list[str] = []
    numbers: dict[str, list[int]] = defaultdict(list)
    positions: list[int] = []
    with closing(EmbeddedLogReader(folder / "log")) as log:
        head = log.head().position
        for topic in log.topics():
            for batch in log.read(topic.name, Position(0), head):
                positions += batch.column(0).to_pylist()
                for row in batch.to_pylist() if topic.name.startswith("outbox.") else ():
                    ids.append(str(row["id"]))
                    numbers[topic.name + row["key"]].append(json.loads(row["payload"])["n"])
    return ids, numbers, sorted(positions)


def traffic(connection: psycopg.Connection[Any], first: int, count: int) -> list[str]:
    """A transaction for each few rows; some events are gone from the table as soon as they are there."""
    ids = []
    for number in range(first, first + count, 3):
        with connection.transaction():
            ids += [write(connection, "ab"[at % 2], str(at % 5), {"n": at}) for at in range(number, min(number + 3, first + count))]
            if number % 2:
                connection.execute("delete from public.outbox where id = %s", [ids[-1]])
    return ids


@pytest.mark.faults
@pytest.mark.parametrize("kind", [CrashKind.KILL, *([CrashKind.ERROR] if EVERYTHING else [])])
@pytest.mark.parametrize("point", [*points.of("outbox"), *BESIDE])
def test_each_row_is_one_event(point: str, kind: CrashKind, fault_server: Postgres, nursery: Nursery, server_folder: Path) -> None:
    with lab(fault_server, nursery, server_folder / f"outbox-{point}-{kind}") as one:
        one.connection.execute(CREATE)
        expected = traffic(one.connection, 0, 40)
        gone = len(expected) - one.connection.execute("select id from public.outbox").rowcount
        there = {str(row[0]) for row in one.connection.execute("select id from public.outbox").fetchall()}
        assert gone
        expected = [id for id in expected if id in there]  # what was gone before capture began nobody has seen
        nth = 2 if point.startswith("outbox") else 4
        mark = one.folder / "reached"
        first = start(one, f"{point}={kind}:{nth}@{mark}")
        deadline = time.monotonic() + DEADLINE_S
        number = 40
        while not mark.exists():
            assert time.monotonic() < deadline, f"{point} was not reached\n{one.told}"
            # The slot has to be there before what is gone again at once can be seen.
            if one.has_slot():
                expected += traffic(one.connection, number, 6)
                number += 6
            time.sleep(0.02)
        if kind is CrashKind.KILL:
            assert first.wait(DEADLINE_S) == KILLED
        expected += traffic(one.connection, number, 12)
        end = one.wal_end()

        def all_of_it() -> bool:
            if one.ended:  # by the kill, or a moment after the error
                assert one.process is first, f"capture ended again\n{one.told}"
                start(one)
            return one.heard_of(end)()

        one.until(all_of_it, "all of it")
        one.until(lambda: len(events(one.folder)[0]) >= len(expected), "the events")
        one.until(lambda: one.connection.execute("select from public.outbox").rowcount == 0, "the table to be empty")
        assert one.ask_to_stop() == 0
        ids, numbers, positions = events(one.folder)
        assert sorted(ids) == sorted(expected)
        assert positions == list(range(1, len(positions) + 1))
        streamed = {key: [n for n in found if n >= 40] for key, found in numbers.items()}
        assert streamed == {key: sorted(found) for key, found in streamed.items()}
    counters.add("crash points", str(kind))


def start(one: Lab, crash: str | None = None) -> Any:
    return one.start(crash=crash, outbox={})


MESSAGE_POINTS: Final = ("outbox.events.begun", "outbox.events.appended", "log.commit.fsynced", "ingest.commit.durable")


@pytest.mark.faults
@pytest.mark.parametrize("point", MESSAGE_POINTS if EVERYTHING else MESSAGE_POINTS[1:3])
def test_each_message_is_one_event(point: str, fault_server: Postgres, nursery: Nursery, server_folder: Path) -> None:
    """Nothing but messages: a message is nowhere else, so what is lost or comes twice has nobody to repair it."""
    with lab(fault_server, nursery, server_folder / f"outbox-messages-{point}") as one:
        one.connection.execute("create table plain (id int primary key)")
        mark = one.folder / "reached"
        outbox = {"prefix": "outbox"}
        first = one.start(crash=f"{point}={CrashKind.KILL}:4@{mark}", outbox=outbox)
        deadline = time.monotonic() + DEADLINE_S
        expected: list[str] = []
        while not mark.exists():
            assert time.monotonic() < deadline, f"{point} was not reached\n{one.told}"
            if one.has_slot():
                expected += messages(one.connection, len(expected), 3)
            time.sleep(0.02)
        assert first.wait(DEADLINE_S) == KILLED
        expected += messages(one.connection, len(expected), 12)
        one.start(outbox=outbox)
        one.until(one.heard_of(one.wal_end()), "all of it")
        one.until(lambda: len(events(one.folder)[0]) >= len(expected), "the events")
        assert one.ask_to_stop() == 0
        ids, numbers, positions = events(one.folder)
        assert ids == expected
        assert numbers == {"outbox.a1": list(range(len(expected)))}
        assert positions == list(range(1, len(positions) + 1))
    counters.add("crash points", str(CrashKind.KILL))


def messages(connection: psycopg.Connection[Any], first: int, count: int) -> list[str]:
    """One transaction. Returns the events' ids."""
    with connection.transaction():
        return [
            str(emit(connection, "a.said", 1, {"n": number}, outbox=OutboxMessages("outbox")))
            for number in range(first, first + count)
        ]
