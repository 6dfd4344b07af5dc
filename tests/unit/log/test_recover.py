"""Damage: a small log is cut at every byte and flipped at every byte. Then there are three outcomes: the same data, a clean cut at
the tail, LogCorrupt. And what is corrupt is left as it is."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc.errors import HeadwaterError, LogCorrupt
from cdc.log.embedded import headfile
from cdc.log.embedded.format import HEAD_BYTES
from cdc.log.embedded.names import folder_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import RECORD_BYTES
from cdc.log.embedded.verdicts import (
    LastGroupEvidence,
    SegmentEvidence,
    SegmentVerdict,
    TimelineEvidence,
    TimelineVerdict,
    is_torn,
    judge_segment,
    judge_timeline,
)
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from tests import counters
from tests.unit.log.changes import changes, everything
from tests.unit.log.disks import QuickDisk
from tests.unit.log.test_names import CRAFTED

SMALL = Table(1, "s", "a", (Column("id", 20, key=True),))
OTHER = Table(2, "s", "b", (Column("id", 20, key=True),))
Rows = dict[int, dict[str, object]]


def open_writer(root: Path, segment_bytes: int = 2**20, *, seal: bool = False) -> EmbeddedLogWriter:
    return EmbeddedLogWriter(root, segment_bytes=segment_bytes, seal=seal, disk=QuickDisk())


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four groups in two topics: (1-3 of a), (4 of b, 5 of a), (6-7 of a), (8 of b)."""
    root = tmp_path_factory.mktemp("pristine") / "log"
    writer = open_writer(root)
    for number, group in enumerate([[(SMALL, [1, 2, 3])], [(OTHER, [4]), (SMALL, [5])], [(SMALL, [6, 7])], [(OTHER, [8])]], 1):
        for table, positions in group:
            writer.append(changes(table, positions))
        if number % 2 == 0:
            writer.mark("view", bytes([number]) * 20 * number)
        writer.commit(Lsn(number * 10), number)
    writer.close()
    return root


@pytest.fixture
def log(pristine: Path, quick_folder: Path) -> Path:
    return Path(shutil.copytree(pristine, quick_folder / "log"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headfile, "_PAUSE_S", 0)


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}


def restore(root: Path, wanted: dict[Path, bytes]) -> None:
    for path, data in contents(root).items():
        if path not in wanted:
            path.unlink()
        elif data != wanted[path]:
            path.write_bytes(wanted[path])
    for path, data in wanted.items():
        if not path.exists():
            path.write_bytes(data)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("name", ["head", "timeline-00000001", "topics/*/*01.seg"])
def test_what_is_no_file_is_damage_and_named(log: Path, kind: str, name: str) -> None:
    (path,) = log.glob(name)
    kept = path.rename(log.parent / "kept")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(kept)
    else:
        os.mkfifo(path)
    with closing(EmbeddedLogReader(log)) as reader, pytest.raises(LogCorrupt, match="is not a file") as found:
        everything(reader)
    assert str(path) in str(found.value)
    with pytest.raises(LogCorrupt, match=f"{path.name}"):
        open_writer(log)


def test_a_folder_in_place_of_the_histories_is_damage(log: Path) -> None:
    (log / "histories.json").mkdir()
    with closing(EmbeddedLogReader(log)) as reader, pytest.raises(LogCorrupt, match=r"histories\.json is a folder"):
        reader.lineage()


def read_all(root: Path) -> Rows:
    reader = EmbeddedLogReader(root)
    try:
        return everything(reader)
    finally:
        reader.close()


def named(error: LogCorrupt, place: Path) -> None:
    """The message says which file."""
    if str(place) not in str(error):
        raise AssertionError(f"{error} does not name {place}")


def recovered(root: Path) -> Rows | None:
    """What is there after recovery, and that appending goes on from there; None for LogCorrupt, with nothing changed."""
    before = contents(root)
    try:
        writer = open_writer(root)
    except LogCorrupt as corrupt:
        named(corrupt, root)
        assert contents(root) == before
        return None
    head = writer.head.position
    try:
        found = read_all(root)
    except LogCorrupt as corrupt:
        named(corrupt, root)
        writer.close()
        return None
    assert sorted(found) == list(range(1, head + 1))
    writer.append(changes(OTHER, [head + 1]))
    writer.commit(Lsn(1000), 0)
    writer.close()
    assert sorted(read_all(root)) == list(range(1, head + 2))
    return found


PARTS = 4
"""Tests that share the bytes of a long one: on a slow and busy machine each has to end long before pytest's time-out."""


@pytest.mark.parametrize("part", range(PARTS))
def test_truncated_at_every_byte(log: Path, part: int) -> None:
    whole = contents(log)
    rows = read_all(log)
    assert recovered(log) == rows
    restore(log, whole)
    cases = 0
    for path in whole:
        for length in range(part, len(whole[path]), PARTS):
            cases += 1
            path.write_bytes(whole[path][:length])
            found = recovered(log)
            if path.name == "head":
                assert found == rows, "the head is recreated from the timeline"
            else:
                assert found is None, f"{path.name} cut at {length}: the head says that more was durable"
            restore(log, whole)
    counters.add("fuzz", "segments, timeline and head", cases)


def test_a_torn_tail_that_no_head_vouches_for_is_cut(log: Path) -> None:
    whole = contents(log)
    rows = read_all(log)
    timeline, head = log / "timeline-00000001", log / "head"
    for length in range(RECORD_BYTES, len(whole[timeline])):
        head.unlink()
        timeline.write_bytes(whole[timeline][:length])
        found = recovered(log)
        assert found is not None
        assert found == {position: row for position, row in rows.items() if position <= len(found)}
        assert len(found) in (0, 3, 5, 7)
        restore(log, whole)


def test_bytes_behind_the_last_entry_are_cut(log: Path) -> None:
    rows = read_all(log)
    for path in [log / "timeline-00000001", *log.rglob("*.seg")]:
        for extra in (b"\0", b"\0" * 100, b"HWFR" + bytes(300)):
            with path.open("ab") as file:
                file.write(extra)
            length = path.stat().st_size - len(extra)
            open_writer(log).close()
            assert path.stat().st_size == length
            assert read_all(log) == rows


def flips(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


@pytest.mark.parametrize("part", range(PARTS))
def test_flipped_at_every_byte(log: Path, part: int) -> None:
    whole = contents(log)
    rows = read_all(log)
    cases = 0
    for path, data in whole.items():
        for number, flipped in itertools.islice(enumerate(flips(data)), part, None, PARTS):
            cases += 1
            path.write_bytes(flipped)
            found = recovered(log)
            if path.name == "head":
                assert found == rows
            elif found is not None:
                # Only a checksum within the timeline may be damaged unseen: the chain runs over what it protects.
                assert path.name == "timeline-00000001"
                assert number % RECORD_BYTES >= RECORD_BYTES - 4
                assert found == rows
            restore(log, whole)
    counters.add("fuzz", "segments, timeline and head", cases)


def test_a_reader_alone_meets_every_flip(log: Path) -> None:
    whole = contents(log)
    rows = read_all(log)
    for path, data in whole.items():
        for number, flipped in enumerate(flips(data)):
            path.write_bytes(flipped)
            try:
                assert read_all(log) == rows
                assert path.name == "timeline-00000001"
                assert number % RECORD_BYTES >= RECORD_BYTES - 4
            except LogCorrupt as corrupt:
                named(corrupt, path)
        path.write_bytes(data)
    counters.add("fuzz", "segments, timeline and head", sum(map(len, whole.values())))


def test_a_sealed_file_flipped_or_cut_anywhere(quick_folder: Path) -> None:
    root = quick_folder / "log"
    writer = open_writer(root, 100, seal=True)
    writer.append(changes(SMALL, range(1, 50)))
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    writer.close()
    (path,) = root.rglob("*.parquet")
    data = path.read_bytes()
    assert len(read_all(root)) == 49
    for broken in itertools.chain(itertools.islice(flips(data), 0, None, 5), (data[:length] for length in range(0, len(data), 50))):
        path.write_bytes(broken)
        with pytest.raises(LogCorrupt):
            read_all(root)


@pytest.fixture
def rolled(quick_folder: Path) -> Path:
    """Topic a has three segments (two of them closed), topic b has two; nothing is sealed."""
    root = quick_folder / "log"
    writer = open_writer(root, 1500)
    for start in range(1, 90, 30):
        writer.append(changes(SMALL, range(start, start + 20)))
        writer.append(changes(OTHER, range(start + 20, start + 30)))
        writer.commit(Lsn(start), 0)
    writer.close()
    assert len(list(root.rglob("*.seg"))) >= 5
    return root


def segments(root: Path, topic: str) -> list[Path]:
    return sorted((root / "topics").glob(f"s%2e{topic}-*/*.seg"))


def both_refuse(root: Path, named: Path) -> None:
    with pytest.raises(LogCorrupt, match=named.name.replace(".", r"\.")):
        open_writer(root)
    with pytest.raises(LogCorrupt):
        read_all(root)


def test_a_missing_segment(rolled: Path) -> None:
    for path in [*segments(rolled, "a"), *segments(rolled, "b")]:
        data = path.read_bytes()
        path.unlink()
        both_refuse(rolled, path)
        path.write_bytes(data)
    assert len(read_all(rolled)) == 90


def test_swapped_segments(rolled: Path) -> None:
    first, second, *_ = segments(rolled, "a")
    swapped = first.read_bytes(), second.read_bytes()
    first.write_bytes(swapped[1])
    second.write_bytes(swapped[0])
    with pytest.raises(LogCorrupt):
        open_writer(rolled)
    with pytest.raises(LogCorrupt):
        read_all(rolled)


def test_a_renamed_segment(rolled: Path) -> None:
    first, *_ = segments(rolled, "a")
    first.rename(first.with_name(f"{2:020d}.seg"))
    with pytest.raises(LogCorrupt):
        open_writer(rolled)


def test_a_duplicated_segment(rolled: Path) -> None:
    first, *_ = segments(rolled, "a")
    shutil.copy(first, first.with_name(f"{2:020d}.seg"))
    with pytest.raises(LogCorrupt, match="knows nothing"):
        open_writer(rolled)


def test_a_segment_of_another_log(rolled: Path, quick_folder: Path) -> None:
    other = quick_folder / "other"
    writer = open_writer(other, 1500)
    writer.append(changes(SMALL, range(1, 21)))
    writer.append(changes(OTHER, range(21, 31)))
    writer.commit(Lsn(1), 0)
    writer.close()
    first, *_ = segments(rolled, "a")
    first.write_bytes(segments(other, "a")[0].read_bytes())
    both_refuse(rolled, first)


def test_a_topics_folder_swapped_with_anothers(rolled: Path) -> None:
    a, b = segments(rolled, "a")[0].parent, segments(rolled, "b")[0].parent
    a.rename(a.with_name("x"))
    b.rename(a)
    a.with_name("x").rename(b)
    with pytest.raises(LogCorrupt):
        open_writer(rolled)
    with pytest.raises(LogCorrupt):
        read_all(rolled)


def test_an_older_copy_of_a_segment_is_no_substitute(quick_folder: Path) -> None:
    """Whole frames with good checksums, but not those that were committed: the chain in the timeline sees it."""
    root = quick_folder / "log"
    writer = open_writer(root)
    writer.append(changes(SMALL, [1, 2], lsn=5))
    writer.commit(Lsn(1), 0)
    path = segments(root, "a")[0]
    writer.append(changes(SMALL, [3, 4], lsn=5))
    staged = path.read_bytes()
    writer.rollback()
    writer.append(changes(SMALL, [3, 4], lsn=6))
    writer.commit(Lsn(2), 0)
    writer.close()
    assert len(staged) == path.stat().st_size
    path.write_bytes(staged)
    with pytest.raises(LogCorrupt, match="not those that were committed"):
        open_writer(root)
    with pytest.raises(LogCorrupt, match="not those that were committed"):
        read_all(root)


def test_a_missing_timeline_or_a_foreign_head(log: Path, quick_folder: Path) -> None:
    timeline = (log / "timeline-00000001").read_bytes()
    (log / "timeline-00000001").unlink()
    with pytest.raises(LogCorrupt, match="missing"):
        open_writer(log)
    with pytest.raises(LogCorrupt, match="missing"):
        read_all(log)
    (log / "head").unlink()
    with pytest.raises(LogCorrupt, match="missing"):
        open_writer(log)
    (log / "timeline-00000001").write_bytes(timeline)
    other = quick_folder / "other"
    open_writer(other).close()
    shutil.copy(other / "head", log / "head")
    with pytest.raises(LogCorrupt):
        open_writer(log)
    with pytest.raises(LogCorrupt):
        read_all(log)


def test_segment_and_its_parquet_both_there(quick_folder: Path) -> None:
    """Sealing died before it removed the segment: the Parquet files go and are made again."""
    root = quick_folder / "log"
    writer = open_writer(root, 100)
    writer.append(changes(SMALL, range(1, 50)))
    writer.commit(Lsn(1), 0)
    writer.close()
    (segment,) = segments(root, "a")
    data = segment.read_bytes()
    for _ in range(2):
        writer = open_writer(root, 100, seal=True)
        writer.drain_seals()
        writer.close()
        assert not segment.exists()
        assert len(read_all(root)) == 49
        segment.write_bytes(data)
    open_writer(root, 100).close()
    assert not list(root.rglob("*.parquet"))
    broken = data[:-1] + bytes([data[-1] ^ 1])
    writer = open_writer(root, 100, seal=True)
    writer.drain_seals()
    writer.close()
    segment.write_bytes(broken)
    with pytest.raises(LogCorrupt):
        open_writer(root, 100)
    assert list(root.rglob("*.parquet")), "what is still good is not thrown away for what is not"


@pytest.mark.parametrize(("file", "at"), [("head", 8), ("timeline-00000001", 2)])
def test_a_newer_format_is_refused_with_words(log: Path, file: str, at: int) -> None:
    from cdc.log.embedded.format import crc32c

    path = log / file
    raw = bytearray(path.read_bytes())
    raw[at] = 9
    size = HEAD_BYTES if file == "head" else RECORD_BYTES
    raw[size - 4 : size] = crc32c(bytes(raw[: size - 4])).to_bytes(4, "little")
    path.write_bytes(raw)
    for attempt in (lambda: open_writer(log), lambda: read_all(log)):
        with pytest.raises(HeadwaterError, match="log format 9") as caught:
            attempt()
        assert not isinstance(caught.value, LogCorrupt)


def test_the_timelines_decision_table_is_whole() -> None:
    for published, extra, follows in itertools.product((None, 96, 144, 192), (0, 10), (False, True)):
        verdict = judge_timeline(TimelineEvidence(length=144 + extra, whole=144, published=published, group_follows=follows))
        if published == 192 or (extra and follows):
            assert verdict is TimelineVerdict.CORRUPT
        else:
            assert verdict is (TimelineVerdict.CUT if extra else TimelineVerdict.CLEAN)


def test_the_last_groups_decision_table_is_whole() -> None:
    for vouched, followed, whole in itertools.product((None, False, True), (False, True), (False, True)):
        assert is_torn(LastGroupEvidence(vouched, followed, whole)) == ((vouched, followed, whole) == (False, False, False))


@dataclass(frozen=True)
class Moments:
    """A log and what its files were behind each of its three commits: (1-3 of a), (4 of b, 5 of a), (6 of b, 7 of c)."""

    root: Path
    states: list[dict[Path, bytes]]

    def head_of(self, moment: int) -> None:
        (self.root / "head").write_bytes(self.states[moment][self.root / "head"])

    def grown(self) -> list[Path]:
        """The segments to which the last commit has added."""
        before, last = self.states[-2:]
        return [path for path in last if path.suffix == ".seg" and last[path] != before.get(path)]


@pytest.fixture
def moments(quick_folder: Path) -> Moments:
    root, states = quick_folder / "moments", []
    third = Table(3, "s", "c", (Column("id", 20, key=True),))
    groups = [[(SMALL, [1, 2, 3])], [(OTHER, [4]), (SMALL, [5])], [(OTHER, [6]), (third, [7])]]
    with closing(open_writer(root)) as writer:
        for number, group in enumerate(groups, 1):
            for table, positions in group:
                writer.append(changes(table, positions))
            writer.commit(Lsn(number), 0)
            states.append(contents(root))
    return Moments(root, states)


def test_a_last_group_whose_changes_did_not_reach_the_disk_is_dropped(moments: Moments) -> None:
    """Its entry was synced at the same time, and may be there alone: with less of each segment than it names, or with other bytes there."""
    before, last = moments.states[-2:]
    [*grown] = moments.grown()
    assert len(grown) == 2, "one that was there before, and a new one"
    cases = 0
    for path in grown:
        least = len(before.get(path, b""))
        shorter = (last[path][:length] for length in range(least, len(last[path]), 7))
        others = (last[path][:least] + flipped for flipped in itertools.islice(flips(last[path][least:]), 0, None, 7))
        for torn in itertools.chain(shorter, others, [last[path][:least] + bytes(len(last[path]) - least)]):
            moments.head_of(-2)
            path.write_bytes(torn)
            found = recovered(moments.root)
            assert found is not None
            assert sorted(found) == [1, 2, 3, 4, 5]
            restore(moments.root, last)
            cases += 1
    counters.add("fuzz", "segments, timeline and head", cases)


def test_a_last_group_that_is_whole_is_kept_whatever_the_head_says(moments: Moments) -> None:
    for moment in range(3):
        restore(moments.root, moments.states[-1])
        moments.head_of(moment)
        found = recovered(moments.root)
        assert found is not None
        assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]


def test_damage_in_a_group_that_was_confirmed_is_not_taken_for_one_that_was_not(moments: Moments) -> None:
    """The head vouches for it, there is no head, or what stands behind its entry says that it was durable."""
    [path, *_] = moments.grown()
    last = moments.states[-1]
    timeline = moments.root / "timeline-00000001"

    def behind() -> None:
        moments.head_of(-2)
        timeline.write_bytes(last[timeline] + b"torn")

    def another_group() -> None:
        """The damage is in the second group."""
        path.write_bytes(last[path])
        moments.head_of(0)
        (first,) = segments(moments.root, "a")
        first.write_bytes(last[first][:-1] + bytes([last[first][-1] ^ 1]))

    for prepare in (lambda: None, (moments.root / "head").unlink, behind, another_group):
        restore(moments.root, last)
        path.write_bytes(last[path][:-1] + bytes([last[path][-1] ^ 1]))
        prepare()
        assert recovered(moments.root) is None


def test_a_group_whose_segment_is_gone_is_not_dropped(moments: Moments) -> None:
    """Its name was durable before the entry was written."""
    for path in moments.grown():
        restore(moments.root, moments.states[-1])
        moments.head_of(-2)
        path.unlink()
        assert recovered(moments.root) is None


def test_the_segments_decision_table_is_whole() -> None:
    seen = set()
    for committed, length, newest, (parquet, whole), beyond in itertools.product(
        (None, 100), (None, 90, 100, 110), (False, True), ((False, False), (True, False), (True, True)), (False, True)
    ):
        verdict = judge_segment(SegmentEvidence(committed, newest, length, parquet, whole, beyond))
        seen.add(verdict)
        if committed is not None and length is not None and length < committed:
            assert verdict is SegmentVerdict.CORRUPT, "committed bytes are gone"
        if verdict is SegmentVerdict.REMOVE:
            assert committed is None
            assert beyond, "only what was never committed is removed"
        if verdict is SegmentVerdict.CUT:
            assert (newest, length, parquet) == (True, 110, False)
        if verdict is SegmentVerdict.UNSEAL:
            assert length == committed
        if verdict is SegmentVerdict.KEEP:
            assert length == committed or (length is None and whole)
    assert seen == set(SegmentVerdict)


@pytest.mark.parametrize("seal", [False, True])
def test_tables_whose_names_were_made_to_share_a_folder(quick_folder: Path, *, seal: bool) -> None:
    tables = [
        Table(number, "public", name.removeprefix("public."), (Column("id", 20, key=True),))
        for number, name in enumerate(CRAFTED, 1)
    ]
    root = quick_folder / "log"
    writer = open_writer(root, 100, seal=seal)
    for position in range(1, 9):
        writer.append(changes(tables[position % 2], [position]))
        writer.commit(Lsn(position), 0)
    writer.drain_seals()
    writer.close()
    open_writer(root).close()
    assert sorted(read_all(root)) == list(range(1, 9))


def test_a_topic_whose_folder_is_anothers_is_refused(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = quick_folder / "log"
    writer = open_writer(root)
    writer.append(changes(SMALL, [1]))
    writer.commit(Lsn(1), 0)
    with monkeypatch.context() as patch:
        patch.setattr(writer._topics, "_holders", {folder_of("s.b"): "s.a"})
        with pytest.raises(HeadwaterError, match=r"table s.b cannot be logged: its folder in the log is that of s.a"):
            writer.append(changes(OTHER, [2]))
    writer.append(changes(SMALL, [2]))
    writer.append(changes(OTHER, [3]))
    writer.commit(Lsn(2), 0)
    writer.close()
    assert len(read_all(root)) == 3
    with monkeypatch.context() as patch:
        patch.setattr("cdc.log.embedded.recover.folder_of", lambda _: "same")
        with pytest.raises(LogCorrupt, match=r"the folder of two topics, s.a and s.b"):
            open_writer(root)
