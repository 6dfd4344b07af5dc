"""What compaction and retention hand over: files that replace segments, positions that are no longer kept. Written, read, and recovered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.errors import LogCorrupt, PositionGone
from cdc.log.embedded.names import LogPlaces, Sealed
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealedsegment import encode
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.verdicts import SealedEvidence, SealedVerdict, judge_sealed
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.oldrows import schema_without_old_rows
from cdc.model.position import Cut, Lsn, Position
from tests.unit.log.changes import ORDERS, USERS, changes, everything, positions_in
from tests.unit.log.disks import QuickDisk

SEGMENT_BYTES = 1500
TOPIC = ORDERS.qualified


def opened(root: Path) -> EmbeddedLogWriter:
    return EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk())


@pytest.fixture
def log(quick_folder: Path) -> Iterator[EmbeddedLogWriter]:
    """Orders at odd positions below 100, users at even ones: several segments of each, all but the newest sealed."""
    writer = opened(quick_folder / "log")
    for start in range(1, 100, 20):
        writer.append(changes(ORDERS, range(start, start + 20, 2)))
        writer.append(changes(USERS, range(start + 1, start + 20, 2)))
        writer.commit(Lsn(start), 0)
    writer.drain_seals()
    yield writer
    writer.close()


@pytest.fixture
def root(quick_folder: Path) -> Path:
    return quick_folder / "log"


def runs(root: Path, topic: str = TOPIC) -> list[tuple[int, int, int]]:
    """(first, last, generation) of the topic's segments, or of what has replaced them."""
    with closing(EmbeddedLogReader(root)) as reader:
        timeline = reader.timeline
        assert timeline is not None
        index = timeline.topics[timeline.numbers[topic]]
        return [(run.segment, run.last, run.generation) for run in index.segments()]


def write(root: Path, first: int, batches: Sequence[pa.RecordBatch], generation: int) -> tuple[list[Sealed], int]:
    """Puts what replaces segments into the topic's folder. Returns the files' names and their bytes."""
    with closing(EmbeddedLogReader(root)) as reader:
        timeline = reader.timeline
        assert timeline is not None
        place = SegmentPlace(timeline.log_id, timeline.numbers[TOPIC], TOPIC, first)
    names, size = [], 0
    for name, data in encode(place, batches, generation):
        (LogPlaces(root).folder(TOPIC) / name.file).write_bytes(data)
        names.append(name)
        size += data.size
    return names, size


def kept(positions: Sequence[int]) -> list[pa.RecordBatch]:
    return [changes(ORDERS, positions)] if positions else []


def replace(log: EmbeddedLogWriter, root: Path, first: int, last: int, positions: Sequence[int]) -> list[Sealed]:
    names, size = write(root, first, kept(positions), log.upkeep.next_generation(TOPIC))
    log.upkeep.replace(TOPIC, first, last, names, size)
    return names


def read(reader: EmbeddedLogReader, after: int = 0, topic: str = TOPIC) -> list[int]:
    return positions_in(reader.read(topic, Position(after), Position(2**40)))


def test_replaced_segments_are_read_from_their_new_files(log: EmbeddedLogWriter, root: Path) -> None:
    before = log.head
    (one, _, _), (_, two, _), *rest = runs(root)
    standing = EmbeddedLogReader(root)
    all_orders = read(standing)
    wanted = [position for position in all_orders if position > two or position % 3 == 0]
    replace(log, root, one, two, [position for position in wanted if position <= two])
    assert log.upkeep.waiting()
    assert read(standing) == all_orders, "nothing is replaced before the commit"
    assert log.commit() == before
    assert not log.upkeep.waiting()
    for reader in (standing, EmbeddedLogReader(root)):
        assert read(reader) == wanted
        assert read(reader, 20) == [position for position in wanted if position > 20]
        orders = next(topic for topic in reader.topics() if topic.name == TOPIC)
        assert (orders.rows, orders.last) == (len(wanted), all_orders[-1])
        assert sum(piece.rows for piece in reader.slices([TOPIC], Position(0), Position(2**40), 1)) == len(wanted)
        assert reader.last_change(TOPIC, before.position) == all_orders[-1]
    assert runs(root)[0] == (one, two, 1)
    # Again, together with what was not replaced before; and then with nothing at all.
    third = rest[0][1]
    replace(log, root, one, third, [3])
    log.append(changes(USERS, [log.next_position]))
    log.commit(Lsn(1000), 0)
    assert read(standing) == [3, *(position for position in all_orders if position > third)]
    replace(log, root, one, third, [])
    log.commit()
    assert read(standing) == [position for position in all_orders if position > third]
    log.close()
    opened(root).close()
    assert read(EmbeddedLogReader(root)) == [position for position in all_orders if position > third]
    assert not [path for path in LogPlaces(root).folder(TOPIC).iterdir() if int(path.name[:20]) <= third], "old files go"


def test_a_reader_that_is_on_its_way_goes_on_in_the_new_files(log: EmbeddedLogWriter, root: Path) -> None:
    found = runs(root)
    reader = EmbeddedLogReader(root)
    timeline = reader.timeline
    assert timeline is not None
    index = timeline.topics[timeline.numbers[TOPIC]]
    (one, last, _), (second, two, _) = found[:2]
    batches = reader._batches(index, 0, 2**40, schema_without_old_rows)
    seen = [position for batch in [next(batches)] for position in positions_in([batch])]
    assert seen[-1] == last
    replace(log, root, one, two, [1, second, two])
    log.commit()
    remove_superseded(root)
    seen += [position for batch in batches for position in positions_in([batch])]
    assert seen == [*range(one, last + 1, 2), second, two, *range(two + 2, 100, 2)]


def remove_superseded(root: Path) -> None:
    known = runs(root)
    for path in LogPlaces(root).folder(TOPIC).glob("*.parquet"):
        generation = int(path.stem.split("-")[4]) if path.stem.count("-") == 4 else 0
        if not any(first <= int(path.name[:20]) <= last and mine == generation for first, last, mine in known):
            path.unlink()


def test_retired_positions_are_gone(log: EmbeddedLogWriter, root: Path) -> None:
    found = runs(root)
    second = found[1][0]
    standing = EmbeddedLogReader(root)
    rows = {topic.name: topic.rows for topic in standing.topics()}
    log.upkeep.retire(TOPIC, kept_from=second, floor=second + 4, clean_from=second + 6)
    log.append(changes(USERS, [log.next_position]))
    assert log.commit(Lsn(500), 7) == Cut(Position(101), Lsn(500), 7)
    for _ in range(2):
        for reader in (standing, EmbeddedLogReader(root)):
            for after in (0, 1, second - 2, second, second + 2):
                with pytest.raises(PositionGone, match=TOPIC):
                    read(reader, after)
                with pytest.raises(PositionGone):
                    reader.slices([TOPIC], Position(after), Position(100), 1)
            assert read(reader, second + 3) == list(range(second + 4, 100, 2))
            orders = next(topic for topic in reader.topics() if topic.name == TOPIC)
            assert orders.rows < rows[TOPIC]
            assert (orders.first, orders.clean_from) == (second, second + 6)
            assert len(read(reader, topic=USERS.qualified)) == rows[USERS.qualified] + 1
        log.close()
        log = opened(root)
        assert not [path for path in LogPlaces(root).folder(TOPIC).iterdir() if int(path.name[:20]) < second]
    log.close()


def test_the_newest_segment_stays_whatever_is_retired(log: EmbeddedLogWriter, root: Path) -> None:
    newest = runs(root)[-1]
    for clean_from in (newest[0] + 1, 101):
        with pytest.raises(ValueError, match="is written"):
            log.upkeep.retire(TOPIC, kept_from=newest[0], floor=newest[0], clean_from=clean_from)
    log.upkeep.retire(TOPIC, kept_from=newest[0], floor=newest[0], clean_from=newest[0])
    log.commit()
    assert runs(root) == [newest]
    log.append(changes(ORDERS, [101, 102]))
    log.commit(Lsn(1000), 0)
    log.close()
    with closing(opened(root)) as writer:
        writer.append(changes(ORDERS, range(103, 150)))
        writer.commit(Lsn(2000), 0)
    with closing(opened(root)):
        assert read(EmbeddedLogReader(root), 100) == list(range(101, 150))


def test_what_contradicts_the_log_is_refused_before_it_is_written(log: EmbeddedLogWriter, root: Path) -> None:
    (one, last, _), (second, two, _), *_, (newest, end, _) = runs(root)
    name = Sealed(one, last, 1, 7, 1)
    for first, upto, files in (
        (one + 2, last, []),
        (one, last - 2, []),
        (one, end, []),
        (newest, end, []),
        (one, last, [Sealed(one, last, 1, 7, 2)]),
        (one, last, [Sealed(one, two, 1, 7, 1)]),
        (one, last, [Sealed(one, last, 10_000, 7, 1)]),
    ):
        with pytest.raises(ValueError, match=TOPIC):
            log.upkeep.replace(TOPIC, first, upto, files, 9)
    for numbers in ((5, 4, 6), (5, 5, 4), (-1, 0, 0), (1, 1, 1000)):
        with pytest.raises(ValueError, match=TOPIC):
            log.upkeep.retire(TOPIC, kept_from=numbers[0], floor=numbers[1], clean_from=numbers[2])
    with pytest.raises(ValueError, match="no topic"):
        log.upkeep.retire("public.nobody", kept_from=1, floor=1, clean_from=1)
    assert not log.upkeep.waiting()
    log.upkeep.replace(TOPIC, one, last, [name], 9)
    with pytest.raises(ValueError, match="has not been recorded"):
        log.upkeep.retire(TOPIC, kept_from=second, floor=second, clean_from=second)


def test_files_that_were_never_recorded_are_removed(log: EmbeddedLogWriter, root: Path) -> None:
    one = runs(root)[0][0]
    before = everything(EmbeddedLogReader(root))
    names, _ = write(root, one, kept([one]), 1)
    log.close()
    opened(root).close()
    assert not (LogPlaces(root).folder(TOPIC) / names[0].file).exists()
    assert everything(EmbeddedLogReader(root)) == before


@pytest.mark.parametrize("how", ["missing", "cut", "another"])
def test_recorded_files_that_are_not_there_are_corrupt(log: EmbeddedLogWriter, root: Path, how: str) -> None:
    (one, last, _), *_ = runs(root)
    [name] = replace(log, root, one, last, [one, last])
    log.commit()
    log.close()
    path = LogPlaces(root).folder(TOPIC) / name.file
    data = path.read_bytes()
    path.unlink()
    if how == "another":
        write(root, one, kept([one, last - 2]), 1)
    elif how == "cut":
        path.write_bytes(data[:-1])
    with pytest.raises(LogCorrupt):
        read(EmbeddedLogReader(root))
    if how != "cut":  # content is checked when it is read
        with pytest.raises(LogCorrupt, match="that were recorded"):
            opened(root)
    path.write_bytes(data)
    for other in LogPlaces(root).folder(TOPIC).glob("*-1.parquet"):
        if other != path:
            other.unlink()
    opened(root).close()
    assert read(EmbeddedLogReader(root))[:2] == [one, last]


def test_the_sealed_files_decision_table_is_whole() -> None:
    for generation, newest, held, dropped in itertools.product((0, 1, 2), (0, 1), (False, True), (False, True)):
        verdict = judge_sealed(SealedEvidence(generation, newest, held, dropped))
        if generation > newest:
            assert verdict is SealedVerdict.REMOVE
        elif held:
            assert verdict is SealedVerdict.KEEP
        else:
            assert verdict is (SealedVerdict.REMOVE if dropped else SealedVerdict.CORRUPT)
