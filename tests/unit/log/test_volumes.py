"""The timeline's files: where one is long the next begins with a checkpoint, and readers go back to earlier ones only when they are asked."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.crashpoint import CrashKind, armed
from cdc.errors import HeadwaterError, LogCorrupt
from cdc.log.embedded import checkpoint, groupfiles
from cdc.log.embedded import writer as writer_module
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import Damaged, Head, crc32c
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import RECORD_BYTES, RecordKind
from cdc.log.embedded.segment import Segment
from cdc.log.embedded.timeline import Timeline
from cdc.log.embedded.verdicts import EarlierFileEvidence, is_whole
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn, Position
from tests.unit.log.changes import ORDERS, USERS, changes, everything, positions_in
from tests.unit.log.disks import FailingDisk, QuickDisk
from tests.unit.log.test_recover import named


@pytest.fixture(autouse=True)
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FILE_BYTES", 1000)


def opened(root: Path, disk: Disk | None = None) -> EmbeddedLogWriter:
    return EmbeddedLogWriter(root, seal=False, disk=disk or QuickDisk())


def fill(writer: EmbeddedLogWriter, groups: int) -> None:
    for _ in range(groups):
        at = writer.next_position
        writer.append(changes(ORDERS, [at, at + 1]))
        writer.append(changes(USERS, [at + 2]))
        writer.mark("view", str(at).encode())
        writer.commit(Lsn(at * 10), at)


@pytest.fixture
def root(quick_folder: Path) -> Path:
    """Sixty groups, in several files of the timeline; one segment of each topic."""
    with closing(opened(quick_folder / "log")) as writer:
        fill(writer, 60)
    assert len(LogPlaces(quick_folder / "log").timelines()) > 4
    return quick_folder / "log"


def read_all(root: Path) -> dict[int, dict[str, object]]:
    with closing(EmbeddedLogReader(root)) as reader:
        return everything(reader)


def test_a_reader_opens_the_newest_file_only(root: Path) -> None:
    places = LogPlaces(root)
    for number in places.timelines()[:-1]:
        places.timeline(number).rename(root / f"away-{number}")
    with closing(EmbeddedLogReader(root)) as reader:
        assert reader.head().position == 180
        assert positions_in(reader.read(USERS.qualified, Position(0), Position(180))) == list(range(3, 181, 3))
        assert [(topic.name, topic.rows) for topic in reader.topics()] == [(ORDERS.qualified, 120), (USERS.qualified, 60)]
        assert reader.last_commit() == reader.head()
        assert reader.marks()["view"] == b"178"
        for question in (
            lambda: reader.cut_at_lsn(Lsn(10)),
            lambda: reader.cut_within(Position(0), 1, 1),
            lambda: reader.marks(Position(3)),
            lambda: reader.last_change(USERS.qualified, Position(3)),
        ):
            with pytest.raises(LogCorrupt, match="timeline-00000001: missing"):
                question()
    with pytest.raises(LogCorrupt, match="timeline-00000001"):
        opened(root)


def test_earlier_files_answer_about_their_cuts(root: Path) -> None:
    with closing(EmbeddedLogReader(root)) as reader:
        for group in range(60):
            end = Position(group * 3 + 3)
            at = group * 3 + 1
            cut = reader.cut_at_lsn(Lsn(at * 10))
            assert cut is not None
            assert cut.position == end
            assert reader.cut_before_lsn(Lsn(at * 10)).position == group * 3
            assert reader.marks(end) == {"postgres": f"0/{at * 10:X}".encode(), "view": str(at).encode()}
            assert reader.last_change(ORDERS.qualified, end) == at + 1
            assert reader.cut_within(Position(group * 3), 1, 1) == cut
            for groups in (1, 2, 7, 30, 100):
                within = reader.cut_within(Position(group * 3), groups * 3 + 1, 2**40)
                assert within.position == min(180, (group + groups) * 3)
        assert [cut.position for cut in reader.cuts()] == list(range(3, 181, 3))
        assert [cut.position for cut in reader.cuts(50)] == list(range(153, 181, 3))


def test_a_follower_crosses_from_file_to_file(quick_folder: Path) -> None:
    root = quick_folder / "log"
    with closing(opened(root)) as writer, closing(EmbeddedLogReader(root)) as reader:
        seen: list[int] = []
        for turn in range(100):
            fill(writer, 1 + turn % 3)
            seen += positions_in(reader.read(ORDERS.qualified, Position(seen[-1] if seen else 0), reader.head().position))
        assert seen == [position for position in range(1, writer.head.position) if position % 3]
        assert reader.timeline is not None
        assert reader.timeline.number > 4


def test_a_little_behind_the_newest_file_only_what_is_wanted_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    batches = Segment.batches
    monkeypatch.setattr(Segment, "batches", lambda segment, run: taken.append(run.rows) or batches(segment, run))
    with closing(EmbeddedLogReader(root)) as reader:
        begun = reader.timeline.before.head.position if reader.timeline else 0
        after = Position(begun - 6)
        assert positions_in(reader.read(USERS.qualified, after, Position(180))) == list(range(begun - 3, 181, 3))
        assert sum(taken) == (180 - after) // 3, "not the whole segment"


@pytest.mark.parametrize("how", ["missing", "short", "long", "another"])
def test_an_earlier_file_that_is_not_what_it_was(root: Path, how: str) -> None:
    path = LogPlaces(root).timeline(2)
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "another":
        path.write_bytes(LogPlaces(root).timeline(1).read_bytes())
    else:
        path.write_bytes(data[:-1] if how == "short" else data + b"x")
    if how != "another" or len(data) != path.stat().st_size:
        with pytest.raises(LogCorrupt, match="timeline-00000002"):
            opened(root)
    path.write_bytes(data)
    opened(root).close()


def test_damage_in_an_earlier_file_is_met_where_it_is_read(root: Path) -> None:
    path = LogPlaces(root).timeline(2)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        with closing(EmbeddedLogReader(root)) as reader:
            try:
                assert reader.cuts()[-1] == reader.head()
            except LogCorrupt as corrupt:
                named(corrupt, path)
            else:
                assert at % RECORD_BYTES >= RECORD_BYTES - 4, "the chain runs over what a checksum protects"


def test_a_checkpoint_is_never_taken_for_a_torn_tail(root: Path) -> None:
    places = LogPlaces(root)
    path = places.timeline(places.timelines()[-1])
    data = path.read_bytes()
    begun = Timeline.beginning(data).begun
    places.head.unlink()
    for length in range(RECORD_BYTES, begun, 5):
        path.write_bytes(data[:length])
        with pytest.raises(LogCorrupt, match=path.name):
            opened(root)
        assert path.stat().st_size == length
    path.write_bytes(data[: begun + 10])
    with closing(opened(root)) as writer:
        assert writer.head == Timeline.beginning(data).head


def test_a_head_of_before_the_newest_file_is_brought_up_to_date(quick_folder: Path) -> None:
    """The head is not synced with each commit, so a power loss may leave one that names an earlier file."""
    copy = quick_folder / "copy"
    with closing(opened(copy)) as writer:
        heads = []
        for _ in range(40):
            fill(writer, 1)
            heads.append((copy / "head").read_bytes())
    rows = read_all(copy)
    for head in heads:
        (copy / "head").write_bytes(head)
        with closing(opened(copy)) as writer:
            assert writer.head.position == 120
        assert read_all(copy) == rows
    (copy / "head").write_bytes(heads[3])
    places = LogPlaces(copy)
    *_, newest = places.timelines()
    places.timeline(newest).rename(copy / "away")
    places.timeline(newest - 1).rename(copy / "away too")
    with closing(opened(copy)) as writer:  # as if they had never been, which no head contradicts
        assert writer.head.position < 120


def test_a_disk_without_room_for_the_next_file_lets_this_one_grow(quick_folder: Path) -> None:
    root, refused = quick_folder / "log", [0]

    class Full(QuickDisk):
        def create(self, path: Path) -> int:
            if path == LogPlaces(root).aside_timeline and len(LogPlaces(root).timelines()):
                refused[0] += 1
                raise OSError(errno.ENOSPC, "no room")
            return super().create(path)

    with closing(opened(root, Full())) as writer:
        fill(writer, 60)
        assert LogPlaces(root).timelines() == [1]
        assert 1 < refused[0] < 30, "it tries again, but not with every group"
    rows = read_all(root)
    with closing(opened(root)) as writer:
        fill(writer, 1)
    assert len(LogPlaces(root).timelines()) == 2
    assert {position: row for position, row in read_all(root).items() if position <= 180} == rows


@pytest.mark.parametrize("point", ["created", "written", "named", "begun"])
def test_errors_while_the_next_file_begins_lose_nothing(quick_folder: Path, point: str) -> None:
    root, writer = quick_folder / "log", opened(quick_folder / "log")
    with armed(f"log.rollover.{point}={CrashKind.ERROR}") as hit:
        try:
            fill(writer, 60)
        except OSError:
            assert point in ("named", "begun"), "what is written aside can be left there"
        assert hit.hit
    head = writer.head
    writer.close()
    assert sorted(read_all(root)) == list(range(1, head.position + 1))
    with closing(opened(root)) as writer:
        assert writer.head == head
        assert not LogPlaces(root).aside_timeline.exists()
        fill(writer, 30)
        assert sorted(read_all(root)) == list(range(1, writer.head.position + 1))


def test_a_failed_sync_of_the_folder_ends_the_writer(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = opened(tmp_path / "log", disk)
    fill(writer, 8)
    while not writer._published.full:
        fill(writer, 1)
    disk.fail("sync_folder", errno.EIO)
    with pytest.raises(OSError, match="cannot write the log"):
        fill(writer, 1)
    with pytest.raises(HeadwaterError, match="takes nothing more"):
        fill(writer, 1)
    head = writer.head
    writer.close()
    with closing(opened(tmp_path / "log")) as again:
        assert again.head == head


def test_a_checkpoint_that_contradicts_itself_is_damaged(root: Path) -> None:
    places = LogPlaces(root)
    data = places.timeline(places.timelines()[-1]).read_bytes()
    whole = Timeline.beginning(data)
    assert (whole.groups, len(whole.before.volumes)) == (whole.before.groups, whole.number - 1)
    kinds = [data[at] for at in range(0, whole.begun, RECORD_BYTES)]
    for kind, at in ((RecordKind.CHECKPOINT, 8), (RecordKind.COUNTS, 8), (RecordKind.VOLUME, 8), (RecordKind.CHECKPOINT, 4)):
        changed = bytearray(data[: whole.begun])
        place = (len(kinds) - 1 - kinds[::-1].index(kind)) * RECORD_BYTES + at
        changed[place] ^= 1
        previous = 0
        for start in range(0, len(changed), RECORD_BYTES):
            previous = crc32c(bytes(changed[start : start + RECORD_BYTES - 4]), previous)
            changed[start + RECORD_BYTES - 4 : start + RECORD_BYTES] = previous.to_bytes(4, "little")
        with pytest.raises(Damaged):
            Timeline.beginning(bytes(changed))


def test_the_next_file_says_what_this_one_said(root: Path) -> None:
    places = LogPlaces(root)
    for number in places.timelines():
        timeline = Timeline.whole(places.timeline(number).read_bytes())
        following = Timeline.beginning(checkpoint.encode(timeline)[0])
        assert (following.head, following.groups, following.appended, following.epoch, following.last_commit(), following.marks()) == (
            timeline.head, timeline.groups, timeline.appended, timeline.epoch, timeline.last_commit(), timeline.marks(),
        )  # fmt: skip
        for topic in timeline.topics.values():
            other = following.topics[topic.number]
            assert (other.segments(), other.rows, other.bytes, other.first, other.last, other.producer) == (
                topic.segments(), topic.rows, topic.bytes, topic.first, topic.last, topic.producer,
            )  # fmt: skip


def test_a_log_of_format_2_is_refused_by_name(quick_folder: Path) -> None:
    root = quick_folder / "log"
    opened(root).close()
    header = bytearray(LogPlaces(root).timeline(1).read_bytes()[:RECORD_BYTES])
    header[2] = 2
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    shutil.rmtree(root)
    root.mkdir(mode=0o700)
    (root / "timeline").write_bytes(header)
    for _ in range(2):
        with pytest.raises(HeadwaterError, match="log format 2; this Headwater reads format 3") as caught:
            opened(root)
        assert not isinstance(caught.value, LogCorrupt)
        assert (root / "timeline").read_bytes() == bytes(header)
        (root / "timeline").write_bytes(bytes(header))
    head = bytearray(Head(1, 1, 0, 0, 0, 1, RECORD_BYTES, 7).encode())
    head[8] = 2
    (root / "head").write_bytes(bytes(head[:-4]) + crc32c(bytes(head[:-4])).to_bytes(4, "little"))
    with pytest.raises(HeadwaterError, match="log format 2"):
        EmbeddedLogReader(root).head()


def test_the_earlier_files_decision_table_is_whole() -> None:
    for length, published, same in itertools.product((None, 90, 100, 110), (None, 90, 100, 110), (False, True)):
        whole = is_whole(EarlierFileEvidence(length, 100, published, same))
        assert whole == (length == 100 and (published in (None, 90) or (published == 100 and same)))


def test_files_are_long_enough_for_their_checkpoints(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FILE_BYTES", 1)
    with closing(opened(quick_folder / "log")) as writer:
        fill(writer, 200)
    places = LogPlaces(quick_folder / "log")
    for number in places.timelines()[1:-1]:
        data = places.timeline(number).read_bytes()
        assert Timeline.beginning(data).begun <= len(data) / 2, "no more is written twice than once"
    assert groupfiles.FILE_BYTES == 8 * 2**20


# --- others at the same log ----------------------------------------------------------------------------------------------


def test_a_writer_that_was_replaced_begins_no_file_over_its_successors(quick_folder: Path) -> None:
    folder = quick_folder / "log"
    first = opened(folder)
    while not first._published.full:
        fill(first, 1)
    (folder / "lock").unlink()
    with closing(opened(folder)) as second:
        fill(second, 30)
        durable, file = second.head, LogPlaces(folder).timeline(2).read_bytes()
        with pytest.raises(HeadwaterError, match="another writer has taken the log over"):
            first.commit(Lsn(10**6), 1)
        assert LogPlaces(folder).timeline(2).read_bytes() == file
    with closing(opened(folder)) as third:
        assert third.head == durable


def test_power_lost_in_the_recovery_of_a_killed_rollover(quick_folder: Path) -> None:
    """The name of the file that the head comes to name has to be durable before the head says it."""
    calls: list[str] = []

    class Listening(QuickDisk):
        def sync_folder(self, path: Path) -> None:
            calls.append(f"sync {path.name}")
            super().sync_folder(path)

        def write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
            calls.append("write")
            super().write(fd, parts, offset)

    folder = quick_folder / "log"
    writer = opened(folder)
    with armed(f"log.rollover.named={CrashKind.ERROR}"), pytest.raises(OSError):
        fill(writer, 60)
    writer.abandon()
    assert LogPlaces(folder).timelines() == [1, 2]
    with closing(opened(folder, Listening())):
        pass
    assert "sync log" in calls[: calls.index("write")], "the head named a file whose name the power could take"


def test_a_reader_does_not_follow_a_log_of_another_past(quick_folder: Path) -> None:
    folder, copy = quick_folder / "log", quick_folder / "copy"
    with closing(opened(folder)) as writer:
        fill(writer, 8)
    shutil.copytree(folder, copy)
    with closing(opened(folder)) as writer:
        fill(writer, 2)
    with closing(EmbeddedLogReader(folder)) as reader:
        known = reader.head()
        with closing(opened(copy)) as writer:
            for at in range(30):
                writer.append(changes(USERS, [writer.next_position]))
                writer.commit(Lsn(10_000 + at), at)
            assert writer.head.position > known.position
        for path in copy.iterdir():  # as cp does: files that are there keep their inode
            if path.is_file():
                (folder / path.name).write_bytes(path.read_bytes())
        with pytest.raises(LogCorrupt, match="an older copy of the log was restored"):
            reader.head()


def test_rows_behind_a_new_file_are_counted_and_not_those_of_its_checkpoint(root: Path) -> None:
    with closing(opened(root)) as writer, closing(EmbeddedLogReader(root)) as reader:
        for _ in range(40):
            fill(writer, 1)
            head = reader.head().position
            pieces = reader.slices(["public.orders", "public.users"], Position(head - 6), head, 2**40)
            assert sum(piece.rows for piece in pieces) == 6
            assert sum(piece.bytes for piece in pieces) < 20_000


def test_damage_that_a_rollover_finds_ends_the_writer(quick_folder: Path) -> None:
    folder = quick_folder / "log"
    with closing(opened(folder)) as writer:
        while not writer._published.full:
            fill(writer, 1)
        path = LogPlaces(folder).timeline(1)
        with path.open("r+b") as file:
            file.seek(2 * RECORD_BYTES + 8)
            file.write(b"\xff")
        with pytest.raises(LogCorrupt):
            fill(writer, 1)
        with pytest.raises(HeadwaterError, match="takes nothing more"):
            writer.commit(Lsn(10**6), 1)
