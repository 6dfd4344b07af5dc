"""The log's writer hears of what is handed over, and looks at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.inbox.bell import LOOK_S, InboxBell
from cdc.inbox.folder import InboxFolder
from cdc.inbox.groupfile import GroupHeader, encode
from cdc.inbox.writerside import Inbox
from tests.unit.inbox.parts import written

LONG_S = 30.0


class Still:
    """A clock that stands: nothing is looked at again by itself."""

    def monotonic(self) -> float:
        return LOOK_S

    def wait(self, stop: threading.Event, seconds: float) -> bool:  # noqa: ARG002
        return stop.is_set()


def hand_over(folder: Path) -> None:
    InboxFolder(folder / "log").hand_over("job", 1, 0, encode(GroupHeader("job", token="0" * 32)))


@contextmanager
def hung(folder: Path, rung: threading.Event) -> Iterator[InboxBell]:
    stop = threading.Event()
    bell = InboxBell(folder / "log", rung, stop)
    bell.start()
    try:
        yield bell
    finally:
        stop.set()
        bell.join()


def test_it_rings_when_something_is_handed_over_and_wakes_whoever_is_waiting(tmp_path: Path) -> None:
    rung, woken = threading.Event(), threading.Event()
    InboxFolder(tmp_path / "log")
    with hung(tmp_path, rung) as bell:
        with bell.waking(woken.set):
            while not rung.wait(0.01):  # the watch stands a little after the thread's start
                hand_over(tmp_path)
            assert woken.wait(LONG_S)
        woken.clear()
        rung.clear()
        hand_over(tmp_path)
        assert rung.wait(LONG_S), "it rings without anybody to wake, too"
        assert not woken.is_set()


def test_the_inbox_is_looked_into_at_once_after_the_bell(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = Inbox(tmp_path / "log", writer, tmp_path / "run", source="postgres", tables=["public.*"], clock=Still())
        assert not inbox.serve()
        hand_over(tmp_path)
        assert not inbox.serve(), "it has just looked"
        inbox.looks.rung.set()
        assert inbox.serve()
        assert set(writer.marks()) == {"job"}
        assert not inbox.looks.rung.is_set()
