"""The timeline and the head, as the writer has them open."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import LogCorrupt
from cdc.log.embedded.format import Head
from cdc.log.embedded.groupfiles import GroupFiles
from cdc.log.embedded.headfile import HeadFile
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.records import GroupEntry
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn
from tests.unit.log.disks import FailingDisk

GROUP = GroupEntry(first=1, last=0, commit_lsn=Lsn(7), commit_ts_us=0, epoch=0, names=(), parts=())


@pytest.fixture
def places(tmp_path: Path) -> LogPlaces:
    EmbeddedLogWriter(tmp_path / "log", seal=False).close()
    return LogPlaces(tmp_path / "log")


def head_in(places: LogPlaces) -> Head:
    file = HeadFile(places.head)
    try:
        return file.read()
    finally:
        file.close()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_group_is_published_when_the_head_goes_on(places: LogPlaces) -> None:
    before, disk = head_in(places), FailingDisk()
    files = GroupFiles(places, disk, before)
    after = files.enter(GROUP)
    assert (files.head, head_in(places)) == (before, before)
    files.advance(after)
    assert (files.head, head_in(places)) == (after, after)
    assert places.timeline(1).stat().st_size == after.timeline_bytes > before.timeline_bytes
    assert disk.calls == ["write", "write"], "syncing the entry is left to the caller"
    files.close()


def test_what_was_entered_is_taken_back(places: LogPlaces) -> None:
    before = head_in(places)
    files = GroupFiles(places, FailingDisk(), before)
    files.enter(GROUP)
    files.take_back()
    assert places.timeline(1).stat().st_size == before.timeline_bytes
    files.close()


def test_the_head_of_another_writer_or_a_damaged_one_is_not_ours(places: LogPlaces) -> None:
    files = GroupFiles(places, FailingDisk(), head_in(places))
    assert files.is_ours()
    EmbeddedLogWriter(places.root, seal=False).close()
    assert not files.is_ours()
    files.head = head_in(places)
    assert files.is_ours()
    places.head.write_bytes(bytes(len(places.head.read_bytes())))
    assert not files.is_ours()
    files.close()


def test_nothing_stays_open_when_one_of_the_files_cannot_be_opened(places: LogPlaces) -> None:
    head = head_in(places)
    before = open_files()
    places.head.unlink()
    with pytest.raises(FileNotFoundError):
        GroupFiles(places, FailingDisk(), head)
    assert open_files() == before


def test_closing_twice_is_closing_once(places: LogPlaces) -> None:
    files = GroupFiles(places, FailingDisk(), head_in(places))
    files.close()
    files.close()


def test_a_writer_that_cannot_open_the_log_lets_go_of_it(places: LogPlaces) -> None:
    before = open_files()
    places.timeline(1).rename(places.root / "elsewhere")
    places.timeline(1).symlink_to(places.root / "elsewhere")
    with pytest.raises(LogCorrupt, match="is not a file"):
        EmbeddedLogWriter(places.root)
    assert open_files() == before
    places.timeline(1).unlink()
    (places.root / "elsewhere").rename(places.timeline(1))
    EmbeddedLogWriter(places.root).close()
