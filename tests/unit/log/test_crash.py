"""The power goes at every single operation of a scripted run; then recovery finds a prefix of the commits, with all that was acknowledged."""

from __future__ import annotations

import errno
import itertools
import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealer import seal
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Cut, Lsn
from cdc.model.table import Table
from tests.sim.disk import ModelDisk
from tests.unit.log.changes import NOTES, ORDERS, ORDERS_WIDER, USERS, changes, everything, expected
from tests.unit.log.disks import Crash, CrashDisk, Loss, QuickDisk

SEGMENT_BYTES = 6_000

GROUPS: list[list[tuple[Table, list[int]]]] = [
    [(ORDERS, [1, 2, 3])],
    [(ORDERS, [4, 6]), (USERS, [5, 7])],
    [(ORDERS_WIDER, [8, 9])],
    [],
    [(USERS, [10]), (NOTES, [11, 12]), (ORDERS, [13])],
    [(ORDERS, list(range(14, 60)))],
    [(ORDERS, [60]), (ORDERS, [61]), (ORDERS, [62])],
    [(USERS, [63])],
]


@dataclass
class Run:
    """What the script did before the power went."""

    acknowledged: list[Cut] = field(default_factory=list)


def script(disk: CrashDisk, run: Run) -> None:
    """Commits, a rollback, segments that roll, sealing, a writer that ends and another that goes on."""
    writer = EmbeddedLogWriter(disk.root, segment_bytes=SEGMENT_BYTES, seal=False, disk=disk)
    try:
        for number, group in enumerate(GROUPS, 1):
            if number == 3:
                writer.append(changes(USERS, range(8, 100)))
                writer.append(changes(NOTES, [100]))
                writer.rollback()
            for table, positions in group:
                writer.append(changes(table, positions))
            run.acknowledged.append(writer.commit(Lsn(number * 10), number))
            if number == 6:
                writer.close()
                writer = EmbeddedLogWriter(disk.root, segment_bytes=SEGMENT_BYTES, seal=False, disk=disk)
                seal_closed(disk)
    finally:
        writer.close()


def seal_closed(disk: CrashDisk, segment_bytes: int = SEGMENT_BYTES) -> None:
    reader = EmbeddedLogReader(disk.root)
    timeline = reader.timeline
    assert timeline is not None
    for index in timeline.topics.values():
        for run in index.segments():
            if run.end >= segment_bytes and not reader.is_sealed(index.name, run):
                seal(LogPlaces(disk.root), disk, SegmentPlace(timeline.log_id, index.number, index.name, run.segment), run)
    reader.close()


def batches_of(groups: int) -> tuple[list[pa.RecordBatch], list[Table]]:
    flat = [(table, positions) for group in GROUPS[:groups] for table, positions in group]
    return [changes(table, positions) for table, positions in flat], [table for table, _ in flat]


def run_until(crash_at: int, root: Path, chance: random.Random) -> tuple[CrashDisk, Run]:
    disk, run = CrashDisk(root, crash_at, chance), Run()
    try:
        script(disk, run)
    except Crash:
        pass
    return disk, run


def nothing_uncommitted_is_left(root: Path) -> None:
    reader = EmbeddedLogReader(root)
    timeline = reader.timeline
    assert timeline is not None
    lengths = {
        LogPlaces(root).segment(index.name, run.segment): run.end for index in timeline.topics.values() for run in index.segments()
    }
    assert LogPlaces(root).timeline(timeline.number).stat().st_size == timeline.length
    for path in root.rglob("*.seg"):
        assert path.stat().st_size == lengths[path]
    reader.close()


def test_the_script_does_what_it_should(quick_folder: Path) -> None:
    disk, run = run_until(10**9, quick_folder / "log", random.Random(0))
    assert len(run.acknowledged) == len(GROUPS)
    assert len(list((quick_folder / "log").rglob("*.parquet"))) >= 2
    assert everything(EmbeddedLogReader(disk.root)) == expected(*batches_of(len(GROUPS)))


@pytest.mark.parametrize(("loss", "variant"), [("lost", 0), ("kept", 0), *(("torn", variant) for variant in range(4))])
def test_power_loss_at_every_operation(quick_folder: Path, loss: Loss, variant: int, seed: int) -> None:
    power_is_lost_at_every_operation(quick_folder, loss, variant, seed, least=60)


@pytest.mark.parametrize(("loss", "variant"), [("lost", 0), ("torn", 0)])
def test_power_loss_while_batches_are_written_early(
    quick_folder: Path, loss: Loss, variant: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is written as a large one is: before its header, and in portions."""
    for name in ("message.LARGE_BYTES", "writer.LARGE_BYTES", "disk.EARLY_BYTES"):
        monkeypatch.setattr(f"cdc.log.embedded.{name}", 64)
    power_is_lost_at_every_operation(quick_folder, loss, variant, seed, least=150)


def power_is_lost_at_every_operation(quick_folder: Path, loss: Loss, variant: int, seed: int, *, least: int) -> None:
    """``least``: so many operations there are."""
    total, _ = run_until(10**9, quick_folder / "whole", random.Random(0))
    assert total.operations > least
    for crash_at in range(1, total.operations + 1):
        chance = random.Random(f"{seed}:{variant}:{crash_at}")
        disk, run = run_until(crash_at, quick_folder / f"before-{crash_at}", chance)
        root = quick_folder / f"after-{crash_at}"
        disk.after_power_loss(root, loss)
        writer = EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, seal=False, disk=QuickDisk())
        nothing_uncommitted_is_left(root)
        survived = writer.head.commit_lsn // 10
        assert survived >= len(run.acknowledged), f"operation {crash_at}: an acknowledged commit is gone (seed {seed})"
        assert survived <= len(run.acknowledged) + 1
        batches, tables = batches_of(survived)
        next_one = writer.next_position
        writer.append(changes(ORDERS, [next_one, next_one + 1]))
        writer.commit(Lsn(10_000), 0)
        writer.close()
        reader = EmbeddedLogReader(root)
        found = everything(reader)
        reader.close()
        assert found == expected([*batches, changes(ORDERS, [next_one, next_one + 1])], [*tables, ORDERS])
        assert not list(root.rglob(".aside-*.parquet"))


@pytest.mark.parametrize("refused", [(2,), (2, 3), (3,), (3, 4)])
def test_names_that_a_former_start_could_not_make_durable(tmp_path: Path, refused: tuple[int, ...]) -> None:
    """A folder's fsync is refused while the log is made, and perhaps again: whoever opens it at last makes all names durable."""
    disk, count = ModelDisk(tmp_path, random.Random(0)), itertools.count(1)

    def meet(what: str) -> None:
        if what == "sync_folder" and next(count) in refused:
            raise OSError(errno.EIO, "refused")

    disk.meet = meet
    for _ in range(1 + len(refused)):
        try:
            writer = EmbeddedLogWriter(tmp_path / "log", seal=False, disk=disk)
        except OSError:
            continue
        writer.close()
    commit_one(tmp_path, disk)


def test_a_folder_of_topics_that_a_power_loss_took_is_made_durable(tmp_path: Path) -> None:
    disk = ModelDisk(tmp_path, random.Random(0))
    EmbeddedLogWriter(tmp_path / "log", seal=False, disk=disk).close()
    topics = tmp_path / "log" / "topics"
    topics.rmdir()
    for names in (disk._names, disk._durable_names):
        del names[str(topics)]
    commit_one(tmp_path, disk)


@pytest.mark.parametrize("taken_back", ["by the writer", "at the next start"])
def test_a_segment_that_was_taken_back_stays_away(tmp_path: Path, taken_back: str) -> None:
    """Its name is durable when the commit fails, and whoever removes it dies before that is: nothing shows it to the start after, and the log goes
    on beyond the segment's positions. A power loss may not bring it back."""
    disk = ModelDisk(tmp_path, random.Random(0))
    refused = "write" if taken_back == "by the writer" else "sync"

    def entry_is_refused(what: str) -> None:
        if what == "sync_folder":
            disk.meet = names_were_durable

    def names_were_durable(what: str) -> None:
        if what == refused:
            disk.meet = lambda _: None
            raise OSError(errno.ENOSPC, "refused")

    def removal_is_refused(what: str) -> None:
        if what == "sync_folder":
            raise OSError(errno.EIO, "refused")

    writer = EmbeddedLogWriter(tmp_path / "log", seal=False, disk=disk)
    writer.append(changes(USERS, [1]))
    disk.meet = entry_is_refused
    with pytest.raises(OSError, match="refused"):
        writer.commit(Lsn(10), 0)
    [segment] = [Path(name) for name in disk._durable_names if name.endswith(".seg")]
    assert disk.durable(segment) is not None, "a power loss would leave it"
    assert segment.exists() == (taken_back == "at the next start")
    writer.abandon()
    if taken_back == "at the next start":
        disk.meet = removal_is_refused
        with pytest.raises(OSError, match="refused"):
            EmbeddedLogWriter(tmp_path / "log", seal=False, disk=disk)
        disk.meet = lambda _: None
    assert not segment.exists()
    with closing(EmbeddedLogWriter(tmp_path / "log", seal=False, disk=disk)) as writer:
        writer.append(changes(ORDERS, [1, 2]))
        writer.commit(Lsn(20), 0)
    disk.lose_power("lost")
    with closing(EmbeddedLogWriter(tmp_path / "log", seal=False, disk=disk)) as writer:
        assert writer.head.position == 2


def commit_one(folder: Path, disk: ModelDisk) -> None:
    """Everything that was committed would survive a power loss."""
    with closing(EmbeddedLogWriter(folder / "log", seal=False, disk=disk)) as writer:
        [batch, *_], _ = batches_of(1)
        writer.append(batch)
        writer.commit(Lsn(10), 0)
        [segment] = (folder / "log" / "topics").rglob("*.seg")
        for path in (folder / "log" / "timeline-00000001", segment):
            assert not disk.lacks(path, path.stat().st_size), path
