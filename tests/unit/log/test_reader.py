"""Following a live log: what a reader costs, how it waits, and random histories against the in-memory twin."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import LogCorrupt, LogReplaced
from cdc.log.embedded import headfile
from cdc.log.embedded import reader as readers
from cdc.log.embedded import writer as writer_module
from cdc.log.embedded.format import Head, crc32c
from cdc.log.embedded.headfile import HeadFile
from cdc.log.embedded.inspect import ls, stat
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import (
    RECORD_BYTES,
    GroupEntry,
    GroupPart,
    NewProducer,
    NewTopic,
    TimelineHeader,
    encode_group,
    encode_timeline_header,
)
from cdc.log.embedded.timeline import Timeline
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader
from cdc.log.memory import MemoryLog
from cdc.log.views import gathered, joined
from cdc.model.batch import Op, is_truncate
from cdc.model.position import ZERO_CUT, Lsn, Position
from cdc.state import filewatch as watch
from tests.unit.log.changes import NOTES, ORDERS, ORDERS_WIDER, USERS, changes, everything, positions_in, rows_of
from tests.unit.log.disks import QuickDisk


def test_a_reader_may_come_before_the_log(tmp_path: Path) -> None:
    reader = open_reader(tmp_path / "nowhere" / "log")
    assert reader.head() == ZERO_CUT
    assert reader.wait(Position(0), 0.01) == ZERO_CUT
    assert list(reader.topics()) == []
    writer = EmbeddedLogWriter(tmp_path / "nowhere" / "log", disk=QuickDisk())
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(1), 0)
    assert reader.wait(Position(0), 60).position == 1
    writer.close()


def test_commits_of_some_thousand_rows_are_handed_out_together(quick_folder: Path) -> None:
    """A store pays for each batch, and has nothing to do between two of them."""
    writer = EmbeddedLogWriter(quick_folder, seal=False, disk=QuickDisk())
    for start in range(1, 40_000, 5000):
        writer.append(changes(USERS, range(start, start + 5000), width=1))
        writer.commit(Lsn(start), 0)
    writer.close()
    with closing(EmbeddedLogReader(quick_folder)) as reader:
        batches = list(reader.read("public.users", Position(0), Position(40_000)))
    assert [len(batch) for batch in batches] == [40_000]
    assert positions_in(batches) == list(range(1, 40_001))


def test_a_backlog_of_tiny_commits_is_joined_without_holding_each_of_them() -> None:
    """An Arrow batch of one row takes some kilobytes beside it, whatever its columns hold."""
    row = changes(ORDERS, [1], width=1)
    alive, most = 0, 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def commits() -> Iterator[pa.RecordBatch]:
        nonlocal alive, most
        for _ in range(40_000):
            one = row.slice(0)
            weakref.finalize(one, gone)
            alive += 1
            most = max(most, alive)
            yield one

    batches = list(joined(commits(), upto_rows=65_536))
    assert sum(map(len, batches)) == 40_000
    assert len(batches) <= 2
    assert most < 5000


def test_a_store_that_pays_for_each_batch_gets_few_and_a_truncate_alone() -> None:
    def rows(first: int, last: int) -> pa.RecordBatch:
        return changes(ORDERS, range(first, last + 1), width=1)

    emptied, others = changes(ORDERS, [61], op=Op.TRUNCATE), changes(USERS, range(71, 80), width=1)
    given = [rows(1, 30), rows(31, 31), rows(32, 60), emptied, rows(62, 70), others]
    batches = list(gathered(given))
    assert [len(one) for one in batches] == [60, 1, 9, 9]
    assert is_truncate(batches[1])
    assert positions_in(batches) == list(range(1, 80))
    even = [rows(30 * i + 1, 30 * i + 30) for i in range(5)]
    assert [len(one) for one in gathered(even, 5 * even[0].nbytes // 2)] == [60, 60, 30]
    assert [len(one) for one in gathered(given, 1)] == [len(one) for one in given], "one that is too large by itself goes by itself"


def test_the_head_is_believed_and_nothing_else(tmp_path: Path) -> None:
    """An entry that is in the timeline's file but not yet published may not be durable: it does not show."""
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, disk=QuickDisk())
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(1), 0)
    published = (root / "head").read_bytes()
    writer.append(changes(ORDERS, [2]))
    writer.commit(Lsn(2), 0)
    fresh = EmbeddedLogReader(root)
    (root / "head").write_bytes(published)
    assert fresh.head().position == 1
    assert positions_in(fresh.read("public.orders", Position(0), Position(9))) == [1]
    writer.close()


@pytest.mark.parametrize("inotify", [True, False])
def test_wait_wakes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inotify: bool) -> None:
    if not inotify:
        monkeypatch.setattr(watch, "_inotify", lambda _: -1)
    writer = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    reader = EmbeddedLogReader(tmp_path / "log")
    delays: list[float] = []
    woken: list[float] = []

    def wait(after: int) -> None:
        assert reader.wait(Position(after), 60).position == after + 1
        woken.append(time.monotonic())

    for position in range(1, 21):
        thread = threading.Thread(target=wait, args=(position - 1,))
        thread.start()
        time.sleep(0.005)
        writer.append(changes(ORDERS, [position]))
        writer.commit(Lsn(position), 0)
        done = time.monotonic()
        thread.join()
        delays.append(woken[-1] - done)
    assert len(woken) == 20
    # On a busy machine anyone may be late; who is not woken waits for the whole minute.
    assert max(delays) < 30
    writer.close()
    reader.close()


def test_threads_that_wait_on_one_reader_do_not_look_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three stores wait on one reader day and night."""
    looks: list[int] = []
    real = HeadFile.read
    monkeypatch.setattr(HeadFile, "read", lambda head: looks.append(threading.get_ident()) or real(head))
    EmbeddedLogWriter(tmp_path).close()
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        waiting = [threading.Thread(target=reader.wait, args=(Position(0), 0.5)) for _ in range(3)]
        for one in waiting:
            one.start()
        for one in waiting:
            one.join()
        reader.wait(Position(0), 0.0)
    assert len(looks) <= 10, "once when it begins, once when the time is over"


def test_a_reader_that_was_closed_while_somebody_waits_keeps_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[watch.Watch] = []

    class Recorded(watch.Watch):
        def __init__(self, *paths: Path) -> None:
            super().__init__(*paths)
            made.append(self)

    monkeypatch.setattr(readers, "Watch", Recorded)
    writer = EmbeddedLogWriter(tmp_path)
    reader = EmbeddedLogReader(tmp_path)
    waiting = threading.Thread(target=reader.wait, args=(Position(0), 60.0))
    waiting.start()
    while not made:
        time.sleep(0.001)
    reader.close()
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(1), 1)
    waiting.join()
    reader.close()
    writer.close()
    assert [one._fd for one in made] == [-1]


def test_several_threads_wait_on_one_reader(tmp_path: Path) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    reader = EmbeddedLogReader(tmp_path / "log")
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(reader.wait(Position(0), 60).position)) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(1), 0)
    for thread in threads:
        thread.join()
    assert seen == [1] * 4
    writer.close()


def test_reading_the_newest_rows_opens_and_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())
    reader = EmbeddedLogReader(tmp_path / "log")

    def turn(start: int) -> float:
        writer.append(changes(ORDERS, range(start, start + 200)))
        writer.commit(Lsn(start), 0)
        before = time.process_time()
        head = reader.head()
        assert positions_in(reader.read("public.orders", Position(start - 1), head.position)) == list(range(start, start + 200))
        return time.process_time() - before

    turn(1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a following reader opens no file")

    with monkeypatch.context() as patch:
        patch.setattr("os.open", refuse)
        patch.setattr("os.listdir", refuse)
        patch.setattr("os.scandir", refuse)
        spent = [turn(start) for start in range(201, 10_001, 200)]
    # About 0.6 ms of CPU time. What grew with the log, or listed its folder, would take far longer by the end.
    assert statistics.median(spent[-10:]) < 0.05
    writer.close()


def test_a_timeline_of_a_million_groups_opens_quickly() -> None:
    """CPU time, and a loose bound: this must not grow into seconds, however busy the machine is."""
    header, crc = encode_timeline_header(TimelineHeader(1))
    name, crc = encode_group(
        GroupEntry(1, 1, 1, 0, 1, (NewTopic(1, "a"),), (GroupPart(1, 1, 64, 72, 1, 1, 0, 0),), (NewProducer(1, "p"),)), crc
    )
    count = 1_000_000
    empty = np.frombuffer(encode_group(GroupEntry(2, 1, 1, 0, 1, (), ()), 0)[0], np.uint8)
    bodies = np.tile(empty, (count, 1))
    bodies[-1, -4:] = np.frombuffer(crc32c(bodies[:, :-4].tobytes(), crc).to_bytes(4, "little"), np.uint8)
    timeline = Timeline(1, int.from_bytes(header[-4:], "little"))
    data = name + bodies.tobytes()
    started = time.process_time()
    assert timeline.extend(data) == len(data) == (count + len(name) // RECORD_BYTES) * RECORD_BYTES
    assert timeline.furthest(10, 10**9).position == 1
    assert time.process_time() - started < 10, "half a second, and no loop over the groups in Python"


def test_a_head_that_points_beyond_the_timeline_is_corrupt(tmp_path: Path) -> None:
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, disk=QuickDisk())
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(1), 0)
    writer.close()
    reader = EmbeddedLogReader(root)
    timeline = reader.timeline
    assert timeline is not None
    forged = Head(timeline.log_id, 1, 2, 1, 0, 1, timeline.length + RECORD_BYTES, timeline.crc)
    (root / "head").write_bytes(forged.encode())
    with pytest.raises(LogCorrupt, match="timeline"):
        EmbeddedLogReader(root).head()


def test_random_histories_equal_the_twins(quick_folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for history in range(8):
        chance = random.Random(f"{seed}:{history}")
        monkeypatch.setattr(writer_module, "FILE_BYTES", chance.choice((100, 2000, 2**23)))
        root, twin = quick_folder / f"log-{history}", MemoryLog()
        segment_bytes = chance.choice((1, 3000, 2**20))
        real, model = EmbeddedLogWriter(root, segment_bytes=segment_bytes, disk=QuickDisk()), twin.writer()
        follower, seen = EmbeddedLogReader(root), dict[int, dict[str, object]]()
        for turn in range(chance.randrange(1, 40)):
            for table, positions, op in random_group(chance, model.next_position):
                for writer in (real, model):
                    writer.append(changes(table, positions, lsn=turn, op=op))
            if chance.random() < 0.15:
                real.rollback()
                model.rollback()
            elif chance.random() < 0.9:
                lsn = chance.choice((Lsn(turn * 10), Lsn(turn * 10), Lsn(turn), None))
                for producer in chance.sample(("view", "inbox"), chance.choice((0, 0, 1, 2))):
                    value = chance.choice((b"", b"a", b"b" * 50))
                    real.mark(producer, value)
                    model.mark(producer, value)
                assert real.commit(lsn, turn) == model.commit(lsn, turn)
            if chance.random() < 0.1:
                model.rollback()
                real.close()
                real = EmbeddedLogWriter(root, segment_bytes=segment_bytes, disk=QuickDisk())
            assert (real.head, real.next_position) == (model.head, model.next_position)
            if chance.random() < 0.5:
                seen |= everything(follower, after=max(seen, default=0))
        seen |= everything(follower, after=max(seen, default=0))
        assert seen == everything(twin.reader()) == everything(EmbeddedLogReader(root))
        compare(EmbeddedLogReader(root), twin, chance)
        real.close()


def random_group(chance: random.Random, start: int) -> list[tuple[object, list[int], Op]]:
    """Batches that together are dense from ``start``: of random tables, interleaved or not, now and then a TRUNCATE."""
    group = []
    for _ in range(chance.randrange(4)):
        tables = chance.sample([ORDERS, ORDERS_WIDER, USERS, NOTES], chance.randrange(1, 3))
        if {ORDERS, ORDERS_WIDER} <= set(tables):
            tables.remove(ORDERS)
        count = chance.choice((1, 2, 10, 100))
        owners = [chance.choice(tables) for _ in range(count)]
        for table in tables:
            positions = [start + n for n in range(count) if owners[n] is table]
            if positions:
                truncate = len(positions) == 1 and chance.random() < 0.3
                group.append((table, positions, Op.TRUNCATE if truncate else Op.UPDATE))
        start += count
    return group  # type: ignore[return-value]


def compare(reader: EmbeddedLogReader, twin: MemoryLog, chance: random.Random) -> None:
    model = twin.reader()
    head = model.head().position
    for _ in range(20):
        after, upto = sorted((chance.randrange(head + 2), chance.randrange(head + 2)))
        for topic in ("public.orders", "public.users", "app.Notes & ½"):
            real = rows_of(reader.read(topic, Position(after), Position(upto)))
            assert real == rows_of(model.read(topic, Position(after), Position(upto)))
        rows = chance.choice((1, 10, 1000))
        assert reader.cut_within(Position(after), rows, 2**60) == model.cut_within(Position(after), rows, 2**60)
        assert reader.cut_within(Position(after), 2**40, chance.choice((1, 5000, 2**40))).position >= min(after, head)
        lsn = Lsn(chance.randrange(500))
        assert reader.cut_at_lsn(lsn) == model.cut_at_lsn(lsn)
        assert reader.marks(Position(upto)) == model.marks(Position(upto))
        cut = chance.choice(twin.cuts or [ZERO_CUT]).position
        assert reader.last_change("public.orders", cut) == model.last_change("public.orders", cut)
    assert reader.cuts() == twin.cuts
    assert reader.marks() == model.marks()
    assert reader.last_commit() == model.last_commit()
    assert {t.name: (t.rows, t.first, t.last, t.table) for t in reader.topics()} == {
        t.name: (t.rows, t.first, t.last, t.table) for t in model.topics()
    }


def test_ls_and_stat(tmp_path: Path) -> None:
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, segment_bytes=4000, disk=QuickDisk())
    writer.append(changes(ORDERS, range(1, 50, 2), lsn=90))
    writer.append(changes(USERS, range(2, 50, 2), lsn=90))
    writer.commit(Lsn(100), 5)
    writer.append(changes(ORDERS, [50], lsn=190, op=Op.DELETE))
    writer.append(changes(ORDERS, [51], lsn=190, op=Op.TRUNCATE))
    writer.commit(Lsn(200), 6)
    writer.drain_seals()
    orders, users = ls(root)
    assert (orders["topic"], orders["rows"], orders["first"], orders["last"]) == ("public.orders", 27, 1, 51)
    assert (orders["segments"], orders["sealed_segments"]) == (2, 1)
    assert (users["topic"], users["rows"], users["segments"]) == ("public.users", 24, 1)
    facts = stat(root)
    assert (facts["position"], facts["commit_lsn"], facts["groups"], facts["topics"], facts["rows"]) == (51, 200, 2, 2, 51)
    lineage = EmbeddedLogReader(root).lineage()
    assert lineage is not None
    assert (facts["log_id"], facts["history"]) == (lineage.log, lineage.history)
    assert 0 < facts["sealed_ratio"] < 1
    assert facts["disk_bytes"] > 0
    writer.close()


@pytest.mark.parametrize("change", ["put back", "moved", "emptied"])
def test_a_log_that_was_replaced_is_said_once_and_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A file that is open outlives its name, and would say for ever where the log ended."""
    monkeypatch.setattr(headfile, "LOOK_S", 0.0)
    log, copy = tmp_path / "log", tmp_path / "copy"
    with closing(EmbeddedLogWriter(log)) as writer:
        writer.append(changes(ORDERS, [1]))
        writer.commit(Lsn(1), 0)
    shutil.copytree(log, copy)
    with closing(EmbeddedLogWriter(log)) as writer:
        writer.append(changes(ORDERS, [2]))
        writer.commit(Lsn(2), 0)
    with closing(EmbeddedLogReader(log)) as reader:
        assert list(everything(reader)) == [1, 2]
        log.rename(tmp_path / "before")
        if change == "put back":
            copy.rename(log)
        elif change == "emptied":
            log.mkdir()
        with pytest.raises(LogReplaced, match="was replaced"):
            reader.wait(Position(2), 5.0)
        assert reader.head().position == (1 if change == "put back" else 0)
        assert list(everything(reader)) == ([1] if change == "put back" else [])


def test_a_writer_that_begins_again_replaces_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headfile, "LOOK_S", 0.0)
    EmbeddedLogWriter(tmp_path).close()
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        for position in (1, 2, 3):
            with closing(EmbeddedLogWriter(tmp_path)) as writer:
                writer.append(changes(ORDERS, [position]))
                writer.commit(Lsn(position), 0)
            assert reader.head().position == position


def test_whether_the_log_still_stands_is_looked_at_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EmbeddedLogWriter(tmp_path).close()
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        reader.head()
        looks: list[object] = []
        monkeypatch.setattr(os.path, "samestat", lambda *found: looks.append(found) or True)
        for _ in range(1000):
            reader.head()
        assert len(looks) <= 1
