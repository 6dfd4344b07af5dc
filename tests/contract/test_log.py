"""What every log must do, on both homes: the embedded log (with and without sealing at once) and its in-memory twin."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import PositionGone, Stopped
from cdc.log.contract import SOURCE_NAME, LogReader, LogWriter, left_between, present_history
from cdc.log.embedded import writer as writer_module
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.memory import MemoryLog
from cdc.model.batch import META_FIELDS, Op, table_of
from cdc.model.lineage import believed
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Table
from tests.unit.log.changes import NOTES, ORDERS, ORDERS_WIDER, USERS, changes, everything, expected, positions_in, rows_of
from tests.unit.log.disks import QuickDisk

BIG = 2**40


class Home:
    """One log of the kind under test."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._memory = MemoryLog() if kind == "memory" else None
        self._folder = folder / "log"
        self.coarse = kind in ("sealed", "many files")
        """Of what came before the timeline's newest file, a reader that looks at the whole knows segments, not groups."""
        self._segment_bytes = 4096 if kind == "sealed" else 2**26
        self.writer: LogWriter
        self.reopen_writer()
        self.reader = self.new_reader()

    def reopen_writer(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
        self.writer = self._memory.writer() if self._memory else EmbeddedLogWriter(self._folder, segment_bytes=self._segment_bytes)

    def new_reader(self) -> LogReader:
        return self._memory.reader() if self._memory else EmbeddedLogReader(self._folder)

    def settle(self) -> None:
        if isinstance(self.writer, EmbeddedLogWriter):
            self.writer.drain_seals()

    def close_newest(self, topic: str) -> None:
        """The topic goes on in another segment."""
        if isinstance(self.writer, EmbeddedLogWriter):
            self.writer.upkeep.close_newest(topic, BIG)
            self.writer.commit()

    def retire(self, topic: str, kept_from: int) -> None:
        """Its changes below go; a segment, or a batch, ends there."""
        if self._memory:
            self._memory.retire(topic, Position(kept_from))
        elif isinstance(self.writer, EmbeddedLogWriter):
            self.settle()
            self.writer.upkeep.retire(topic, kept_from=kept_from, floor=kept_from, clean_from=kept_from)
            self.writer.commit()
            self.writer.upkeep.remove_replaced()

    def put(self, *batches: pa.RecordBatch, lsn: int = 0, ts: int = 0) -> Cut:
        for batch in batches:
            self.writer.append(batch)
        return self.writer.commit(Lsn(lsn or self.writer.head.commit_lsn + 10), ts)


@pytest.fixture(params=["embedded", "sealed", "many files", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """``many files``: of the timeline. Where segments are small, so that they are sealed, so are its files."""
    if request.param == "many files":
        monkeypatch.setattr(writer_module, "FILE_BYTES", 100)
    home = Home(request.param, tmp_path)
    yield home
    home.writer.close()
    home.reader.close()


def read(reader: LogReader, topic: str, after: int = 0, upto: int = BIG) -> list[pa.RecordBatch]:
    return list(reader.read(topic, Position(after), Position(upto)))


def test_changes_at_positions_are_those_that_reading_shows(log: Home, seed: int) -> None:
    """In many small groups and few large ones, under two definitions, of two topics; some positions are the other topic's, or nobody's yet."""
    chance = random.Random(seed)
    for _ in range(25):
        for table, rows in ((ORDERS, chance.choice([1, 3, 150])), (chance.choice([USERS, ORDERS_WIDER]), 2)):
            at = log.writer.next_position
            log.put(changes(table, range(at, at + rows)))
    for settled in (False, True):
        if settled:
            log.settle()
        reader, end = log.new_reader(), log.writer.head.position
        for topic in (ORDERS.qualified, USERS.qualified):
            there = {row["_cdc_position"]: row for row in rows_of(read(reader, topic))}
            for count in (1, 5, int(end)):
                asked = np.array(sorted(chance.sample(range(1, int(end) + 10), count)), np.int64)
                for _ in range(2):  # what has been decoded once is not decoded again
                    found = list(reader.changes_at(topic, asked))
                    assert rows_of(found) == [there[at] for at in asked.tolist() if at in there]
        assert (
            list(reader.changes_at(NOTES.qualified, np.array([1])))
            == list(reader.changes_at(ORDERS.qualified, np.empty(0, np.int64)))
            == []
        )
        reader.close()


def test_an_empty_log_has_nothing(log: Home) -> None:
    assert log.writer.head == ZERO_CUT == log.reader.head()
    assert log.writer.next_position == 1
    assert log.reader.cut_within(Position(0), 10, 10) == ZERO_CUT
    assert log.reader.cut_at_lsn(Lsn(0)) is None
    assert list(log.reader.topics()) == []
    assert read(log.reader, "public.orders") == []
    assert list(log.reader.slices(["public.orders"], Position(0), Position(9), 100)) == []


def test_what_is_committed_is_read_value_for_value(log: Home) -> None:
    batches = [changes(ORDERS, range(1, 40)), changes(USERS, range(40, 45)), changes(NOTES, [45])]
    cut = log.put(*batches, lsn=77, ts=123)
    log.settle()
    assert cut == Cut(Position(45), Lsn(77), 123) == log.reader.head() == log.writer.head
    assert everything(log.reader) == expected(batches, [ORDERS, USERS, NOTES])
    for table, batch in zip([ORDERS, USERS, NOTES], batches, strict=True):
        for found in read(log.reader, table.qualified):
            assert found.schema.equals(batch.schema, check_metadata=True)


def test_staged_changes_are_invisible(log: Home) -> None:
    log.put(changes(ORDERS, range(1, 4)))
    log.writer.append(changes(ORDERS, range(4, 6)))
    log.writer.append(changes(USERS, range(6, 8)))
    assert log.writer.next_position == 8
    assert log.reader.head().position == log.writer.head.position == 3
    assert positions_in(read(log.reader, "public.orders")) == [1, 2, 3]
    assert read(log.reader, "public.users") == []
    assert [topic.name for topic in log.reader.topics()] == ["public.orders"]


def test_rollback_drops_what_is_staged_and_only_that(log: Home) -> None:
    log.put(changes(ORDERS, range(1, 4)))
    log.writer.append(changes(ORDERS, range(4, 400)))
    log.writer.append(changes(USERS, range(400, 500)))
    log.writer.rollback()
    assert log.writer.next_position == 4
    kept = [changes(ORDERS, range(1, 4)), changes(USERS, [4, 5]), changes(ORDERS, [6])]
    log.put(*kept[1:])
    assert everything(log.new_reader()) == expected(kept, [ORDERS, USERS, ORDERS])


def test_tables_may_interleave(log: Home) -> None:
    log.put(changes(ORDERS, [1, 3, 5]), changes(USERS, [2, 4]), changes(ORDERS, [6, 8]), changes(USERS, [7]))
    assert positions_in(read(log.reader, "public.orders")) == [1, 3, 5, 6, 8]
    assert positions_in(read(log.reader, "public.users")) == [2, 4, 7]


@pytest.mark.parametrize(
    "staged",
    [
        pytest.param([(ORDERS, [2, 3])], id="begins too late"),
        pytest.param([(ORDERS, [1, 3])], id="gap"),
        pytest.param([(ORDERS, [1, 2]), (USERS, [4])], id="gap between tables"),
        pytest.param([(ORDERS, [1, 2, 3]), (USERS, [2])], id="position twice"),
        pytest.param([(ORDERS, [1, 4]), (USERS, [1, 2])], id="position twice and a gap"),
    ],
)
def test_positions_that_are_not_dense_are_refused(log: Home, staged: list[tuple[object, list[int]]]) -> None:
    for table, positions in staged:
        log.writer.append(changes(table, positions))  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        log.writer.commit(Lsn(10), 0)
    assert log.reader.head() == ZERO_CUT
    assert log.writer.next_position == 1
    log.put(changes(ORDERS, [1]))
    assert positions_in(read(log.reader, "public.orders")) == [1]


def test_a_batch_that_can_never_fit_is_refused_and_the_rest_stays(log: Home) -> None:
    log.put(changes(ORDERS, [1, 2]))
    log.writer.append(changes(ORDERS, [3]))
    for positions in ([3], [1], [5, 4], [4, 4]):
        with pytest.raises(ValueError):
            log.writer.append(changes(ORDERS, positions))
    with pytest.raises(ValueError):
        log.writer.append(pa.record_batch({"a": [1]}))
    log.put(changes(ORDERS, [4]))
    assert positions_in(read(log.reader, "public.orders")) == [1, 2, 3, 4]


def test_an_empty_batch_is_ignored(log: Home) -> None:
    log.writer.append(changes(ORDERS, []))
    assert log.writer.next_position == 1
    assert list(log.reader.topics()) == []


def test_an_empty_commit_records_its_lsn(log: Home) -> None:
    log.put(changes(ORDERS, [1]), lsn=10)
    assert log.writer.commit(Lsn(10), 5) == Cut(Position(1), Lsn(10), 0)
    assert log.writer.commit(Lsn(30), 5) == Cut(Position(1), Lsn(30), 5) == log.reader.head()
    assert log.reader.cut_at_lsn(Lsn(20)) == Cut(Position(1), Lsn(30), 5)
    log.put(changes(ORDERS, [2]), lsn=40)
    assert positions_in(read(log.reader, "public.orders")) == [1, 2]


def test_reading_is_clipped_to_the_range(log: Home) -> None:
    for start in range(1, 101, 10):
        log.put(changes(ORDERS, range(start, start + 10, 2)), changes(USERS, range(start + 1, start + 10, 2)))
    log.settle()
    odd = list(range(1, 101, 2))
    for after in (0, 1, 2, 9, 10, 11, 55, 98, 99, 100):
        for upto in (0, 1, 2, 10, 11, 50, 99, 100, BIG):
            found = positions_in(read(log.reader, "public.orders", after, upto))
            assert found == [position for position in odd if after < position <= upto]


def test_a_reader_follows(log: Home) -> None:
    seen: list[int] = []
    for start in range(1, 200, 4):
        log.put(changes(ORDERS, range(start, start + 4)))
        seen += positions_in(read(log.reader, "public.orders", seen[-1] if seen else 0))
    assert seen == list(range(1, 201))


def test_the_schema_may_change_within_and_between_commits(log: Home) -> None:
    batches = [
        changes(ORDERS, range(1, 30)),
        changes(ORDERS_WIDER, range(30, 60)),
        changes(ORDERS, range(60, 61)),
        changes(ORDERS_WIDER, range(61, 90)),
    ]
    log.put(*batches[:2])
    log.put(*batches[2:])
    log.settle()
    found = read(log.reader, "public.orders")
    assert rows_of(found) == rows_of(batches)
    for batch in found:
        assert batch.schema.equals(changes(table_of(batch.schema), [1]).schema, check_metadata=True), (
            "each batch stands under one definition"
        )
    assert [topic.table for topic in log.reader.topics()] == [ORDERS_WIDER]
    log.put(changes(ORDERS, [90]))
    assert [topic.table for topic in log.reader.topics()] == [ORDERS]


def test_who_asks_for_keys_alone_gets_the_same_changes_and_definitions(log: Home) -> None:
    log.put(changes(ORDERS, range(1, 60)), changes(ORDERS, [60], op=Op.TRUNCATE), changes(ORDERS_WIDER, range(61, 90)))
    log.settle()
    whole = read(log.reader, "public.orders", 5)
    found = list(log.reader.read("public.orders", Position(5), Position(BIG), keys_only=True))
    assert {name for batch in found for name in batch.schema.names} == {*(field.name for field in META_FIELDS), "id"}
    assert [table_of(batch.schema) for batch in found] == [table_of(batch.schema) for batch in whole]
    assert [batch.to_pylist() for batch in found] == [batch.select(found[0].schema.names).to_pylist() for batch in whole]


def test_a_truncate_stands_alone(log: Home) -> None:
    log.put(changes(ORDERS, [1, 2]), changes(ORDERS, [3], op=Op.TRUNCATE), changes(ORDERS, [4, 5]))
    log.put(changes(ORDERS, [6], op=Op.TRUNCATE), changes(ORDERS, [7], op=Op.TRUNCATE))
    log.settle()
    shapes = [(batch.num_rows, Op.TRUNCATE in batch.column(1).to_pylist()) for batch in read(log.reader, "public.orders")]
    assert shapes == [(2, False), (1, True), (2, False), (1, True), (1, True)]


def test_cut_within_rows_and_bytes(log: Home) -> None:
    cuts = [log.put(changes(ORDERS, range(start, start + 10)), lsn=start) for start in range(1, 101, 10)]
    reader = log.reader
    assert reader.cut_within(Position(0), 1, BIG) == cuts[0], "at least the next cut"
    assert reader.cut_within(Position(0), BIG, 1) == cuts[0]
    assert reader.cut_within(Position(0), 10, BIG) == cuts[0]
    assert reader.cut_within(Position(0), 29, BIG) == cuts[1]
    assert reader.cut_within(Position(0), 30, BIG) == cuts[2]
    assert reader.cut_within(Position(5), 1, BIG) == cuts[0], "from within a group"
    assert reader.cut_within(Position(20), BIG, BIG) == cuts[-1]
    assert reader.cut_within(Position(100), 1, 1) == cuts[-1]
    size = reader.topics()[0].bytes
    half = reader.cut_within(Position(0), BIG, size // 2)
    assert Position(30) <= half.position <= Position(60)


def test_cut_at_lsn(log: Home) -> None:
    first = log.put(changes(ORDERS, [1]), lsn=100)
    second = log.put(changes(ORDERS, [2]), lsn=200)
    third = log.put(changes(ORDERS, [3]), lsn=200)
    assert log.reader.cut_at_lsn(Lsn(1)) == log.reader.cut_at_lsn(Lsn(100)) == first
    assert log.reader.cut_at_lsn(Lsn(101)) == log.reader.cut_at_lsn(Lsn(200)) == second
    assert log.reader.cut_at_lsn(Lsn(201)) is None
    assert log.reader.head() == third


def test_lsns_of_a_restored_source_begin_lower(log: Home) -> None:
    log.put(changes(ORDERS, [1]), lsn=1000)
    log.put(changes(ORDERS, [2]), lsn=2000)
    restored = log.put(changes(ORDERS, [3]), lsn=500)
    later = log.put(changes(ORDERS, [4]), lsn=700)
    assert log.reader.cut_at_lsn(Lsn(400)) == log.reader.cut_at_lsn(Lsn(500)) == restored
    assert log.reader.cut_at_lsn(Lsn(501)) == later
    assert log.reader.cut_at_lsn(Lsn(1000)) is None


def test_the_last_commit_of_the_source_brought_changes_and_an_lsn_of_its_own(log: Home) -> None:
    assert log.reader.last_commit() == ZERO_CUT
    log.put(lsn=50)
    assert log.reader.last_commit() == ZERO_CUT, "an LSN alone is no commit"
    first = log.put(changes(ORDERS, [1]), lsn=100)
    assert log.reader.last_commit() == first
    log.put(changes(ORDERS, [2]), lsn=100)
    assert log.reader.last_commit() == first, "rows that the snapshot read have the LSN that was there"
    second = log.put(changes(ORDERS, [3]), lsn=90)
    log.put(lsn=200)
    assert log.new_reader().last_commit() == log.reader.last_commit() == second


def test_a_cut_of_another_producer_repeats_the_sources_lsn_and_time(log: Home) -> None:
    assert log.reader.marks() == {}
    log.put(changes(ORDERS, [1]), lsn=100, ts=5)
    log.writer.append(changes(NOTES, [2]), "view:notes")
    log.writer.mark("view:notes", b"17")
    assert log.writer.commit() == Cut(Position(2), Lsn(100), 5) == log.reader.head()
    assert log.reader.last_commit() == Cut(Position(1), Lsn(100), 5), "only the source's commits count"
    assert log.reader.cut_at_lsn(Lsn(100)) == Cut(Position(1), Lsn(100), 5)
    assert log.reader.cut_at_lsn(Lsn(101)) is None
    for reader in (log.reader, log.new_reader()):
        assert reader.marks() == {SOURCE_NAME: b"0/64", "view:notes": b"17"}
        assert reader.marks(Position(1)) == {SOURCE_NAME: b"0/64"}
        assert reader.marks(Position(0)) == {}
        assert {topic.name: topic.producer for topic in reader.topics()} == {
            "public.orders": SOURCE_NAME, "app.Notes & ½": "view:notes",
        }  # fmt: skip


def test_marks_are_repeated_until_they_change(log: Home) -> None:
    log.writer.mark("one", b"a" * 4096)
    log.writer.mark("other", b"")
    log.put(changes(ORDERS, [1]), lsn=10)
    log.put(changes(ORDERS, [2]), lsn=20)
    log.writer.mark("other", b"b")
    head = log.writer.commit()
    assert head == Cut(Position(2), Lsn(20), 0), "a mark by itself is a cut at the same position"
    log.reopen_writer()
    log.writer.mark("other", b"b")
    assert log.writer.commit() == head
    log.put(changes(ORDERS, [3]), lsn=30)
    first = {SOURCE_NAME: b"0/A", "one": b"a" * 4096, "other": b""}
    for reader in (log.reader, log.new_reader()):
        assert reader.marks(Position(1)) == first
        assert reader.marks(Position(2)) == {**first, SOURCE_NAME: b"0/14", "other": b"b"}, "of several cuts there the last"
        assert reader.marks() == {**first, SOURCE_NAME: b"0/1E", "other": b"b"}


def test_a_mark_that_is_rolled_back_never_was(log: Home) -> None:
    log.put(changes(ORDERS, [1]), lsn=10)
    log.writer.mark("view", b"a")
    log.writer.append(changes(NOTES, [2]), "view")
    log.writer.rollback()
    assert log.writer.commit() == log.reader.head() == Cut(Position(1), Lsn(10), 0)
    assert log.new_reader().marks() == {SOURCE_NAME: b"0/A"}
    log.put(changes(NOTES, [2]), lsn=20)
    assert log.reader.topics()[1].producer == SOURCE_NAME


def test_a_topic_has_one_producer(log: Home) -> None:
    log.put(changes(ORDERS, [1]))
    with pytest.raises(ValueError, match="brought by"):
        log.writer.append(changes(ORDERS, [2]), "view")
    log.writer.append(changes(NOTES, [2]), "view")
    with pytest.raises(ValueError, match="brought by"):
        log.writer.append(changes(NOTES, [3]))
    log.writer.commit()
    log.reopen_writer()
    with pytest.raises(ValueError, match="brought by"):
        log.writer.append(changes(NOTES, [3]))
    log.writer.append(changes(NOTES, [3]), "view")
    log.put(changes(ORDERS, [4]))
    assert positions_in(read(log.reader, NOTES.qualified)) == [2, 3]


@pytest.mark.parametrize(("producer", "value"), [(SOURCE_NAME, b"0/1"), ("", b"x"), ("view", b"x" * 4097)])
def test_marks_that_are_refused(log: Home, producer: str, value: bytes) -> None:
    with pytest.raises(ValueError):
        log.writer.mark(producer, value)
    assert log.writer.commit() == ZERO_CUT


def test_topics(log: Home) -> None:
    log.put(changes(ORDERS, [1, 2]), changes(USERS, [3]))
    log.put(changes(NOTES, [4]), changes(USERS, [5, 6]))
    log.settle()
    found = {topic.name: topic for topic in log.reader.topics()}
    assert {name: (topic.rows, topic.first, topic.last) for name, topic in found.items()} == {
        "public.orders": (2, 1, 2),
        "public.users": (3, 3, 6),
        "app.Notes & ½": (1, 4, 4),
    }
    assert {name: topic.table for name, topic in found.items()} == {t.qualified: t for t in (ORDERS, USERS, NOTES)}
    assert all(topic.bytes > 0 for topic in found.values())


@pytest.mark.parametrize("target", [1, 5_000, BIG])
@pytest.mark.parametrize(("after", "upto"), [(0, 120), (7, 113), (30, 31), (120, 120)])
def test_slices_cover_exactly_once(log: Home, target: int, after: int, upto: int) -> None:
    for start in range(1, 121, 12):
        log.put(changes(ORDERS, range(start, start + 10)), changes(USERS, range(start + 10, start + 12)))
    log.settle()
    names = ["public.orders", "public.users", "public.nobody"]
    slices = log.reader.slices(names, Position(after), Position(upto), target)
    for name in names:
        mine = [piece for piece in slices if piece.topic == name]
        found = [positions_in(read(log.reader, name, piece.after, piece.upto)) for piece in mine]
        assert [p for piece in found for p in piece] == positions_in(read(log.reader, name, after, upto))
        assert all(after <= piece.after < piece.upto <= upto for piece in mine)
        assert all(len(positions) <= piece.rows for positions, piece in zip(found, mine, strict=True))
    if target == BIG:
        assert len(slices) <= 2
    if target == 1 and (after, upto) == (0, 120):
        assert len(slices) == 20 or log.coarse


def test_wait_returns_when_something_comes(log: Home) -> None:
    waited: list[tuple[Cut, float]] = []

    def wait() -> None:
        cut = log.reader.wait(Position(0), 120)
        waited.append((cut, time.monotonic()))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    log.put(changes(ORDERS, [1]))
    committed = time.monotonic()
    thread.join()
    assert waited[0][0].position == 1
    assert waited[0][1] - committed < 60


def test_wait_gives_up_after_the_timeout(log: Home) -> None:
    log.put(changes(ORDERS, [1]))
    started = time.monotonic()
    assert log.reader.wait(Position(1), 0.05).position == 1
    assert time.monotonic() - started >= 0.04
    assert log.reader.wait(Position(0), 120).position == 1
    assert time.monotonic() - started < 60


def test_a_new_writer_goes_on(log: Home) -> None:
    log.put(changes(ORDERS, range(1, 50)), lsn=5)
    log.writer.append(changes(ORDERS, range(50, 60)))
    log.reopen_writer()
    assert log.writer.head == Cut(Position(49), Lsn(5), 0)
    assert log.writer.next_position == 50
    log.put(changes(USERS, [50]), changes(ORDERS, [51, 52]))
    for reader in (log.reader, log.new_reader()):
        assert positions_in(read(reader, "public.orders")) == [*range(1, 50), 51, 52]
        assert positions_in(read(reader, "public.users")) == [50]


def test_a_topics_last_change_at_or_below_a_cut(log: Home) -> None:
    topics = [ORDERS.qualified, USERS.qualified, NOTES.qualified, "public.nobody"]

    def last(upto: int) -> list[int]:
        return [log.reader.last_change(topic, Position(upto)) for topic in topics]

    assert last(0) == last(BIG) == [0, 0, 0, 0]
    log.put(changes(ORDERS, range(1, 40)), changes(USERS, [40]))  # long enough for a segment of its own
    log.put(changes(USERS, [41]))
    log.put()
    log.put(changes(ORDERS, [42], op=Op.TRUNCATE), changes(NOTES, [43]))
    log.writer.append(changes(ORDERS, [44]))
    log.settle()
    assert last(0) == [0, 0, 0, 0]
    assert last(40) == [39, 40, 0, 0]
    assert last(41) == [39, 41, 0, 0]
    assert last(43) == last(BIG) == [42, 41, 43, 0], "what is staged is no change of the log"
    log.writer.rollback()
    log.reopen_writer()
    assert [log.new_reader().last_change(topic, Position(43)) for topic in topics] == [42, 41, 43, 0]


def test_what_is_retired_is_gone_by_name_for_whoever_is_behind_it(log: Home) -> None:
    topic = ORDERS.qualified
    log.put(changes(ORDERS, range(1, 41)))
    log.close_newest(topic)
    log.put(changes(ORDERS, range(41, 61)))
    log.put(changes(USERS, [61]))
    log.retire(topic, 41)
    log.put(changes(ORDERS, [62]))
    for _ in range(2):
        for reader in (log.reader, log.new_reader()):
            orders = next(one for one in reader.topics() if one.name == topic)
            assert (orders.kept_from, orders.floor, orders.first, orders.last, orders.rows) == (41, 41, 41, 62, 21)
            for after in (0, 1, 39):
                for history in (None, present_history(reader)):
                    with pytest.raises(PositionGone, match="before position 41 are gone"):
                        list(reader.read(topic, Position(after), Position(BIG), history))
                    with pytest.raises(PositionGone) as gone:
                        reader.slices([topic], Position(after), Position(61), 1, history)
                    assert "--from 41" in (gone.value.hint or "")
            assert positions_in(read(reader, topic, 40)) == [*range(41, 61), 62]
            assert positions_in(read(reader, topic, 50)) == [*range(51, 61), 62]
            assert positions_in(read(reader, USERS.qualified)) == [61]
            assert reader.last_change(topic, Position(61)) == 60
            left = left_between(reader, ["*"], Position(0), Position(62))
            assert {piece.topic for piece in left} == {topic, USERS.qualified}
            assert min(piece.after for piece in left if piece.topic == topic) == 40
        log.reopen_writer()


def test_a_log_keeps_its_id_and_its_histories(log: Home) -> None:
    first = log.reader.lineage()
    assert first is not None
    assert [history.since for history in first.histories] == [0]
    assert (len(first.log), len(first.history)) == (16, 32)
    log.put(changes(ORDERS, [1, 2]))
    assert log.reader.lineage() == first
    log.writer.begin_history()
    log.put(changes(ORDERS, [3]))
    log.writer.begin_history()
    log.writer.begin_history()
    log.put(changes(ORDERS, [4]))
    found = log.reader.lineage()
    assert found is not None, "a reader that has looked before knows of histories begun since"
    assert found.log == first.log
    assert [history.since for history in found.histories] == [0, 2, 3, 3]
    assert len({history.id for history in found.histories}) == 4
    assert (found.histories[0], found.history) == (first.histories[0], found.histories[-1].id)
    log.reopen_writer()
    log.put(changes(ORDERS, [5]))
    assert log.reader.lineage() == log.new_reader().lineage() == found
    mark = first.mark(Cut(Position(2), Lsn(20)))
    assert believed(mark, found, "a store") == mark.cut
    with pytest.raises(Stopped):
        believed(first.mark(Cut(Position(3), Lsn(30))), found, "a store")


def test_two_logs_are_never_the_same(tmp_path: Path) -> None:
    homes = [Home(kind, tmp_path / f"{kind}{number}") for kind in ("embedded", "memory") for number in range(2)]
    found = [home.reader.lineage() for home in homes]
    assert None not in found
    assert len({lineage.log for lineage in found if lineage}) == len({lineage.history for lineage in found if lineage}) == 4
    for home in homes:
        home.writer.close()
        home.reader.close()


def test_where_there_is_no_log_yet_there_is_no_lineage(tmp_path: Path) -> None:
    reader = EmbeddedLogReader(tmp_path / "log")
    assert reader.lineage() is None
    assert reader.last_change(ORDERS.qualified, Position(9)) == 0
    writer = EmbeddedLogWriter(tmp_path / "log")
    assert reader.lineage() is not None
    writer.close()
    reader.close()


def test_small_neighbours_come_as_few_batches(log: Home) -> None:
    for position in range(1, 301):
        log.put(changes(USERS, [position]))
    if isinstance(log.writer, EmbeddedLogWriter):
        assert len(read(log.reader, "public.users")) <= 2


def staged(chance: random.Random, after: int) -> list[tuple[Table, list[int]]]:
    """What nearly is a group behind the position: dense over several topics, or with a gap, a repeat or a step back."""
    positions = list(range(after + 1, after + 1 + chance.randint(1, 8)))
    if chance.random() < 0.5:
        at = chance.randrange(len(positions))
        positions[at] += chance.choice((-2, -1, 1, 2))
    owner = [chance.choice((ORDERS, USERS)) for _ in positions]
    batches = []
    for table in chance.sample((ORDERS, USERS), 2):
        mine = [position for position, one in zip(positions, owner, strict=True) if one is table]
        if chance.random() < 0.2:
            chance.shuffle(mine)
        cut = chance.randint(0, len(mine))
        batches += [(table, part) for part in (mine[:cut], mine[cut:]) if part]
    return batches


def test_the_twin_refuses_what_the_log_refuses(tmp_path: Path, seed: int) -> None:
    """It counts for itself, so that it can disagree."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    logs: list[LogWriter] = [EmbeddedLogWriter(tmp_path / "log", seal=False, disk=QuickDisk()), MemoryLog().writer()]
    outcomes = set()
    for _ in range(300):
        batches = staged(chance, logs[0].head.position)
        said = [taken(log, batches) for log in logs]
        assert said[0] == said[1], batches
        outcomes.add(said[0][0])
    assert outcomes == {"taken", "refused at once", "refused at the commit"}
    for log in logs:
        log.close()


def taken(log: LogWriter, batches: list[tuple[Table, list[int]]]) -> tuple[str, int, int]:
    """What became of the batches, the position that would come next, and the head."""
    said = "taken"
    try:
        for table, positions in batches:
            log.append(changes(table, positions))
    except ValueError:
        said = "refused at once"
        log.rollback()
    waiting = log.next_position
    try:
        log.commit(Lsn(log.head.commit_lsn + 1), 0)
    except ValueError:
        said = "refused at the commit"
    return said, waiting, log.head.position
