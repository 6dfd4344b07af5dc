"""The disk refuses, a second writer comes, a writer is killed again and again."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from cdc.crashpoint import armed
from cdc.errors import ConfigError, HeadwaterError, LogCorrupt
from cdc.log.embedded import openfiles
from cdc.log.embedded import writer as writer_module
from cdc.log.embedded.names import folder_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import ZERO_CUT, Lsn, Position
from tests.unit.log.changes import NOTES, ORDERS, USERS, changes, everything, expected, positions_in
from tests.unit.log.disks import FailingDisk, QuickDisk


def test_a_folder_that_cannot_be_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"log\.dir: cannot write in .*file/log: Not a directory") as failure:
        EmbeddedLogWriter(tmp_path / "file" / "log")
    assert failure.value.hint


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def log(tmp_path: Path, disk: FailingDisk) -> EmbeddedLogWriter:
    writer = EmbeddedLogWriter(tmp_path / "log", disk=disk, seal=False)
    writer.append(changes(ORDERS, [1, 2]))
    writer.commit(Lsn(1), 0)
    return writer


BEFORE = expected([changes(ORDERS, [1, 2])], [ORDERS])


def stage_and_commit(log: EmbeddedLogWriter) -> None:
    log.append(changes(USERS, [3]))
    log.append(changes(ORDERS, [4]))
    log.commit(Lsn(2), 0)


def test_a_full_disk_at_append_drops_what_is_staged_and_a_later_append_works(
    tmp_path: Path, log: EmbeddedLogWriter, disk: FailingDisk
) -> None:
    for fails_at in range(4):
        # Writes: the segment's header and the frame of USERS, then the frame of ORDERS.
        disk.fail("write", errno.ENOSPC, after=fails_at)
        with pytest.raises(OSError, match="No space left"):
            stage_and_commit(log)
        assert log.next_position == 3
        assert everything(EmbeddedLogReader(tmp_path / "log")) == BEFORE
        assert len(list((tmp_path / "log").rglob("*.seg"))) == 1
    log.append(changes(USERS, [3]))
    log.append(changes(ORDERS, [4]))
    log.commit(Lsn(2), 0)
    after = expected([changes(USERS, [3]), changes(ORDERS, [4])], [USERS, ORDERS])
    assert everything(EmbeddedLogReader(tmp_path / "log")) == BEFORE | after
    log.close()
    reopened = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    assert reopened.next_position == 5
    reopened.close()


@pytest.mark.parametrize(("call", "after"), [("sync", 0), ("sync", 1), ("sync", 2), ("sync_folder", 0), ("sync_folder", 1)])
def test_a_failed_sync_ends_the_writer(tmp_path: Path, log: EmbeddedLogWriter, disk: FailingDisk, call: str, after: int) -> None:
    log.append(changes(ORDERS, [3]))
    log.append(changes(USERS, [4]))
    timeline = tmp_path / "log" / "timeline-00000001"
    entered = timeline.stat().st_size
    disk.fail(call, errno.EIO, after)
    with pytest.raises(OSError) as caught:
        log.commit(Lsn(2), 0)
    assert caught.value.errno == errno.EIO
    assert timeline.stat().st_size == entered, "an entry that was not synced does not stay"
    for use in (lambda: log.append(changes(ORDERS, [3])), lambda: log.commit(Lsn(2), 0), log.rollback):
        with pytest.raises(HeadwaterError, match="EIO"):
            use()
    assert everything(EmbeddedLogReader(tmp_path / "log")) == BEFORE
    log.close()
    reopened = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    assert reopened.next_position == 3, "what no sync confirmed is not there"
    reopened.append(changes(NOTES, [3]))
    reopened.commit(Lsn(3), 0)
    reopened.close()
    assert positions_in(EmbeddedLogReader(tmp_path / "log").read("app.Notes & ½", Position(0), Position(9))) == [3]


def test_a_rollback_that_fails_ends_the_writer(log: EmbeddedLogWriter, disk: FailingDisk) -> None:
    log.append(changes(ORDERS, [3]))
    disk.fail("truncate", errno.EIO)
    with pytest.raises(OSError):
        log.rollback()
    with pytest.raises(HeadwaterError):
        log.append(changes(ORDERS, [3]))
    log.close()


def test_the_entry_stands_before_anything_is_synced_and_the_head_goes_on_behind_all(
    log: EmbeddedLogWriter, disk: FailingDisk
) -> None:
    disk.calls.clear()
    log.append(changes(ORDERS, [3]))
    log.commit(Lsn(2), 0)
    assert disk.calls == ["write", "write", "sync", "sync", "write"], "frame, entry, their syncs at the same time, head"
    log.close()


def test_a_large_batch_becomes_several_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SPLIT_BYTES", 2000)
    writer = EmbeddedLogWriter(tmp_path / "log", segment_bytes=4096, disk=QuickDisk())
    batch = changes(ORDERS, range(1, 301))
    writer.append(batch)
    writer.commit(Lsn(1), 0)
    assert everything(EmbeddedLogReader(tmp_path / "log")) == expected([batch], [ORDERS])
    writer.drain_seals()
    assert len(list((tmp_path / "log").rglob("*.parquet"))) > 5
    assert everything(EmbeddedLogReader(tmp_path / "log")) == expected([batch], [ORDERS])
    writer.close()


def test_a_group_over_several_segments_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SPLIT_BYTES", 2000)
    writer = EmbeddedLogWriter(tmp_path / "log", segment_bytes=4096, disk=QuickDisk(), seal=False)
    batch, first = changes(ORDERS, range(1, 301)), changes(USERS, [301])
    reader = EmbeddedLogReader(tmp_path / "log")
    nothing = everything(reader)

    def segments() -> int:
        return len(list((tmp_path / "log").rglob("*.seg")))

    writer.append(batch)
    assert segments() > 3
    assert everything(reader) == nothing
    writer.close()  # the process ends before the commit
    writer = EmbeddedLogWriter(tmp_path / "log", segment_bytes=4096, disk=QuickDisk(), seal=False)
    assert segments() == 0
    assert everything(reader) == nothing
    writer.append(batch)
    writer.append(first)
    assert everything(reader) == nothing
    writer.commit(Lsn(1), 0)
    assert segments() > 3
    assert everything(reader) == expected([batch, first], [ORDERS, USERS])
    reader.close()
    writer.close()


def test_many_topics_in_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(openfiles, "OPEN_FILES", 5)
    writer = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    tables = [replace(USERS, oid=1000 + n, name=f"t{n:03d} {'long' * 30}") for n in range(60)]
    for turn in range(3):
        for number, table in enumerate(tables):
            writer.append(changes(table, [turn * 60 + number + 1]))
        writer.commit(Lsn(turn + 1), 0)
    assert len([fd for fd in Path("/proc/self/fd").iterdir() if str(fd.resolve()).startswith(str(tmp_path))]) < 15
    reader = EmbeddedLogReader(tmp_path / "log")
    assert sorted(everything(reader)) == list(range(1, 181))
    assert [topic.rows for topic in reader.topics()] == [3] * 60
    writer.close()


def test_every_one_of_many_files_is_synced_before_the_head_goes_on(tmp_path: Path) -> None:
    from dataclasses import replace

    synced: list[str] = []
    heads: set[bytes] = set()

    class WatchedDisk(QuickDisk):
        def sync(self, fd: int) -> None:
            heads.add((root / "head").read_bytes() if (root / "head").exists() else b"")
            synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

        def sync_folder(self, path: Path) -> None:
            synced.append(str(path))

    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, disk=WatchedDisk())
    synced.clear()
    heads.clear()
    before = (root / "head").read_bytes()
    for number in range(100):
        writer.append(changes(replace(USERS, oid=1000 + number, name=f"t{number}"), [number + 1]))
    writer.commit(Lsn(1), 0)
    segments = sorted(map(str, root.glob("topics/*/*.seg")))
    folders = sorted(map(str, root.glob("topics/*")))
    assert len(segments) == len(folders) == 100
    assert sorted(synced[:100]) == folders, "names before anything names them"
    assert synced[100] == str(root / "topics")
    assert sorted(synced[101:]) == sorted([*segments, str(root / "timeline-00000001")])
    assert heads == {before} != {(root / "head").read_bytes()}
    writer.close()


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root)
    with pytest.raises(HeadwaterError, match=str(os.getpid())):
        EmbeddedLogWriter(root)
    other = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from pathlib import Path; from cdc.log.embedded.writer import EmbeddedLogWriter as W; W(Path({str(root)!r}))",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert f"process {os.getpid()} already writes" in other.stderr
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(1), 0)
    writer.close()
    EmbeddedLogWriter(root).close()


def test_a_zombies_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lock does not hold (some network file systems), the epoch in the head does."""
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    zombie = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    zombie.append(changes(ORDERS, [1]))
    zombie.commit(Lsn(1), 0)
    zombie.append(changes(ORDERS, [2]))
    heir = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    with pytest.raises(HeadwaterError, match="taken the log over"):
        zombie.commit(Lsn(2), 0)
    zombie.close()
    heir.append(changes(USERS, [2]))
    heir.commit(Lsn(3), 0)
    heir.close()
    assert positions_in(EmbeddedLogReader(tmp_path / "log").read("public.orders", Position(0), Position(9))) == [1]


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced by a copy", "moved with its parent"])
def test_a_log_that_was_moved_while_it_is_written_confirms_nothing(tmp_path: Path, how: str) -> None:
    """Written by descriptor, changes would go on to where nobody looks for them."""
    folder = tmp_path / "var" / "log"
    writer = EmbeddedLogWriter(folder, seal=False)
    writer.append(changes(ORDERS, [1, 2]))
    writer.commit(Lsn(1), 0)
    if how == "deleted":
        shutil.rmtree(folder)
    elif how == "moved with its parent":
        folder.parent.rename(tmp_path / "elsewhere")
    else:
        folder.rename(tmp_path / "elsewhere")
        if how == "replaced by a copy":
            shutil.copytree(tmp_path / "elsewhere", folder)
    writer.append(changes(ORDERS, [3]))
    with pytest.raises(HeadwaterError, match="was moved, deleted or replaced while it was being written") as failure:
        writer.commit(Lsn(2), 0)
    assert failure.value.hint
    with pytest.raises(HeadwaterError, match="its folder was moved, deleted or replaced"):
        writer.append(changes(ORDERS, [4]))
    writer.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "log"
    EmbeddedLogWriter(root).close()
    (root / "timeline-00000001").rename(tmp_path / "elsewhere")
    (root / "timeline-00000001").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogCorrupt, match="timeline-00000001: is not a file"):
        EmbeddedLogWriter(root)


WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn
from tests.unit.log.changes import ORDERS, USERS, changes
writer = EmbeddedLogWriter(Path(sys.argv[1]), segment_bytes=20_000)
changes(USERS, [1])  # what is slow once is done before the race begins
print("open", flush=True)
while True:
    start = writer.next_position
    writer.append(changes(ORDERS, range(start, start + 7)))
    writer.append(changes(USERS, range(start + 7, start + 10)))
    print(writer.commit(Lsn(start), 0).position, flush=True)
"""


@pytest.mark.faults
def test_killed_writers_under_a_following_reader(quick_folder: Path, seed: int) -> None:
    """A reader that lives through every kill sees each position once, and never one that is gone afterwards."""
    root, chance = quick_folder / "log", random.Random(seed)
    reader = EmbeddedLogReader(root)
    seen: list[int] = []
    acknowledged = 0

    def follow() -> None:
        after = seen[-1] if seen else 0
        head = reader.head()
        new = sorted(
            position
            for topic in ("public.orders", "public.users")
            for position in positions_in(reader.read(topic, Position(after), head.position))
        )
        assert new == list(range(after + 1, head.position + 1))
        seen.extend(new)

    assert reader.head() == ZERO_CUT
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", WRITE_UNTIL_KILLED, str(root)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        before, give_up = len(seen), time.monotonic() + 60
        stop = time.monotonic() + chance.uniform(0.02, 0.3)
        while time.monotonic() < give_up and (time.monotonic() < stop or len(seen) == before):
            reader.wait(Position(seen[-1] if seen else 0), 0.05)
            follow()
        child.send_signal(signal.SIGKILL)
        child.wait()
        lines = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        acknowledged = max([acknowledged, *lines])
        child.stdout.close()
        follow()
        assert reader.head().position >= acknowledged
    writer = EmbeddedLogWriter(root)
    assert writer.head.position >= seen[-1]
    writer.close()
    assert len(seen) >= 50
    assert sorted(everything(EmbeddedLogReader(root))) == list(range(1, writer.head.position + 1))


@pytest.mark.parametrize("point", ["log.commit.published", "log.segment.closed"])
def test_an_error_behind_the_commit_takes_nothing_back(tmp_path: Path, point: str) -> None:
    """The caller rolls back after every error; what is durable by then has to stay."""
    writer = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk(), seal=False, segment_bytes=1)
    writer.append(changes(ORDERS, [1, 2]))
    with armed(f"{point}=error"), pytest.raises(OSError, match="crash point"):
        writer.commit(Lsn(1), 0)
    writer.rollback()
    writer.append(changes(ORDERS, [3]))
    writer.commit(Lsn(2), 0)
    writer.close()
    EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk(), seal=False).close()
    assert everything(EmbeddedLogReader(tmp_path / "log")) == expected(
        [changes(ORDERS, [1, 2]), changes(ORDERS, [3])], [ORDERS] * 2
    )


def test_longer_segments_go_on_behind_a_sealed_one(tmp_path: Path) -> None:
    short = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk(), segment_bytes=1)
    short.append(changes(ORDERS, [1, 2]))
    short.commit(Lsn(1), 0)
    short.drain_seals()
    short.close()
    assert not list((tmp_path / "log").rglob("*.seg"))
    longer = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    longer.append(changes(ORDERS, [3]))
    longer.commit(Lsn(2), 0)
    longer.close()
    assert everything(EmbeddedLogReader(tmp_path / "log")) == expected(
        [changes(ORDERS, [1, 2]), changes(ORDERS, [3])], [ORDERS] * 2
    )


class NotingDisk(QuickDisk):
    """Notes the folders that were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_folder(self, path: Path) -> None:
        self.synced.append(path.name)


def test_a_segment_that_was_taken_back_is_gone_for_good_before_its_positions_are_anothers(tmp_path: Path) -> None:
    """A power loss brings back a file whose removal was not synced, and nobody would know of it."""
    disk = NotingDisk()
    with closing(EmbeddedLogWriter(tmp_path, disk=disk, seal=False)) as log:
        log.append(changes(ORDERS, [1]))
        log.rollback()
        log.append(changes(USERS, [1]))
        disk.synced.clear()
        log.commit(Lsn(1), 0)
        assert {folder_of("public.orders"), folder_of("public.users")} <= set(disk.synced)
        log.append(changes(USERS, [2]))
        disk.synced.clear()
        log.commit(Lsn(2), 0)
        assert disk.synced == []
