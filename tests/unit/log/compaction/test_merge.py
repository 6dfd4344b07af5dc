"""Compaction against what the log said before: whoever may read on comes to the same rows, from wherever he stands."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import Merged, compact
from cdc.compaction.survivors import Survivors
from cdc.errors import HeadwaterError, PositionGone
from cdc.log.contract import Topic
from cdc.log.embedded import upkeep
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import LogPlaces, Sealed
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import BEFORE, Op, first_position, last_position, table_of
from cdc.model.evolution import Kind
from cdc.model.pgtypes import TEXT
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.replay.former import with_former, with_sent
from cdc.replay.netchange import net_changes
from cdc.replay.state import rows_as_of
from sinks.past import live_rows
from sinks.render.rowtext import row_text
from tests.contract.rows import ORDERS as NARROW
from tests.contract.rows import Row, batch, order, replacing, schema, upserts
from tests.unit.log.disks import QuickDisk
from tests.unit.sinks.test_past import PEOPLE, History, folded

TOPIC = PEOPLE.qualified
SEGMENT_BYTES = 1500
TINY = 2_000


class Log:
    """An embedded log that a history goes into, batch by batch, and what it would hold without compaction."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writer = EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk())
        self.all: list[pa.RecordBatch] = []
        self.cuts = [0]

    def put(self, *batches: pa.RecordBatch) -> None:
        for one in batches:
            self.writer.append(one)
            self.all.append(one)
        self.cuts.append(self.writer.commit(Lsn(int(self.writer.next_position)), 0).position)

    def compact(self, settled: int, forgotten: int, pins: Sequence[int] = (), topic: str = TOPIC) -> Merged:
        self.writer.drain_seals()
        with closing(EmbeddedLogReader(self.root)) as reader:
            found = next((one for one in reader.topics() if one.name == topic), None)
            if found is None:
                return Merged(topic)
            now = TopicPoints(found.clean_from, found.floor)
            ranges = self.writer.upkeep.ranges(topic)
            held = [reader.last_change(topic, Position(pin)) if pin else 0 for pin in pins]
            points = bounds(ranges, Settled(settled, forgotten), held, now)
        return compact(
            self.writer.upkeep, topic, points, self._recorded, at_least=0.0, target_bytes=SEGMENT_BYTES, memory_bytes=TINY
        )

    def _recorded(self) -> None:
        self.writer.commit()

    def close(self) -> None:
        self.writer.close()


@pytest.fixture
def log(quick_folder: Path) -> Iterator[Log]:
    found = Log(quick_folder / "log")
    yield found
    found.close()


def live(reader: EmbeddedLogReader, upto: int, topic: str = TOPIC) -> dict[int, tuple[str, Row]]:
    """As ``folded``, of the log as it is."""
    return {
        position: (TopicSchema.of(table_of(one.schema)).to_json(), row)
        for one in live_rows(reader, topic, Position(upto))
        for position, row in zip(
            one.column(0).to_pylist(), row_text(one, TopicSchema.of(table_of(one.schema))).to_pylist(), strict=True
        )
    }


def of_topic(batches: Sequence[pa.RecordBatch], topic: str = TOPIC) -> list[pa.RecordBatch]:
    return [one for one in batches if table_of(one.schema).qualified == topic]


def until(batches: Sequence[pa.RecordBatch], position: int) -> list[pa.RecordBatch]:
    whole = [one for one in batches if last_position(one) <= position]
    return whole + [
        one.slice(0, position - first_position(one) + 1) for one in batches if first_position(one) <= position < last_position(one)
    ]


def hold(log: Log, reader: EmbeddedLogReader, chance: random.Random) -> None:
    """Everything that is promised of the log as it is now."""
    topic = next((one for one in reader.topics() if one.name == TOPIC), None)
    if topic is None:
        return
    mine, head = of_topic(log.all), reader.head().position
    wanted = folded(mine, head)
    for cut in chance.sample(log.cuts, min(2, len(log.cuts))):
        if cut >= topic.clean_from - 1:
            assert live(reader, cut) == folded(mine, cut), f"as of {cut}, clean from {topic.clean_from}"
    for after in (0, topic.floor - 1, *chance.sample(log.cuts, min(3, len(log.cuts)))):
        if 0 < after < topic.floor - 1 and after < topic.last:
            with pytest.raises(PositionGone):
                list(reader.read(TOPIC, Position(after), head))
        elif after >= 0:
            rest = list(reader.read(TOPIC, Position(after), head))
            assert folded([*until(mine, after), *rest], head) == wanted, f"read on from {after}"
            assert (reader.last_change(TOPIC, head) > after) == any(last_position(one) > after for one in mine)


@pytest.mark.parametrize("round", range(12))
def test_whoever_reads_on_comes_to_the_same_rows(log: Log, seed: int, round: int) -> None:
    chance = random.Random(seed + round)
    standing = EmbeddedLogReader(log.root)
    done: list[Merged] = []
    history: History | None = None
    for _ in range(3):
        history = History(chance, length=120, after=history)
        waiting: list[pa.RecordBatch] = []
        for one in history.batches:
            waiting.append(one)
            if chance.random() < 0.5:
                log.put(*waiting)
                waiting = []
        log.put(*waiting)
        head = log.cuts[-1]
        settled = chance.choice([head, chance.randrange(head)])
        pins = [chance.choice(log.cuts) for _ in range(chance.choice([0, 0, 1]))]
        done.append(log.compact(settled, chance.choice([settled, 0, chance.randrange(head)]), pins))
        hold(log, standing, chance)
        with closing(EmbeddedLogReader(log.root)) as fresh:
            hold(log, fresh, chance)
    print([(one.read, one.dropped) for one in done])
    standing.close()


def test_a_delete_stays_while_the_row_does_that_it_deletes_under_another_key() -> None:
    """A later change under the new key is no word of a row under the former one: it stays, and so has its DELETE to."""
    narrow = Table(9, "public", "t", (Column("a", TEXT, key=True, attnum=1), Column("b", TEXT, attnum=2)))
    wide = replace(narrow, columns=(*(replace(column, key=True) for column in narrow.columns), Column("c", TEXT, attnum=3)))
    row = {"a": "1", "b": "x"}
    survivors = Survivors(clean_from=10, floor=10)
    for one in (batch(narrow, [(Op.INSERT, 1, row)]), schema(wide, 2), batch(wide, [(Op.DELETE, 3, {**row, "c": None})])):
        survivors.take(one)
    chosen = survivors.chosen()
    assert [chosen.count(at, at) for at in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize("floor", [0, 2, 3])
def test_a_delete_goes_below_the_floor_only(floor: int) -> None:
    survivors = Survivors(clean_from=10, floor=floor)
    for op, at in ((Op.INSERT, 1), (Op.DELETE, 2), (Op.INSERT, 3)):
        survivors.take(upserts(NARROW, at, [order(at)]) if at == 3 else batch(NARROW, [(op, at, order(1))]))
    chosen = survivors.chosen()
    assert [chosen.count(at, at) for at in (1, 2, 3)] == [0, floor < 3, 1]


class Watched(QuickDisk):
    """Notes which files are synced and removed."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def sync(self, fd: int) -> None:
        self.done.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))

    def remove(self, path: Path) -> None:
        self.done.append(("remove", path.name))
        super().remove(path)


def test_nothing_goes_before_the_head_that_knows_of_it_is_durable(quick_folder: Path) -> None:
    disk = Watched()
    with closing(EmbeddedLogWriter(quick_folder / "log", segment_bytes=SEGMENT_BYTES, disk=disk)) as writer:
        for at in range(1, 60):
            writer.append(batch(NARROW, [(Op.UPDATE, at, order(1, "again"))]))
            writer.commit(Lsn(at), 0)
        writer.drain_seals()
        disk.done.clear()
        points = TopicPoints(writer.upkeep.ranges("public.orders")[-1].last + 1, 0)
        compact(writer.upkeep, "public.orders", points, lambda: note(writer), at_least=0.0)
        disk.done.append(("removing", ""))
        writer.upkeep.remove_replaced()
        removed = disk.done[disk.done.index(("removing", "")) :]
        assert removed[1] == ("sync", "head")
        assert sum(what == "remove" for what, _ in removed) >= 3


def note(writer: EmbeddedLogWriter) -> None:
    writer.commit()


def test_a_compacted_topic_holds_each_row_once_and_its_deleted_rows_not_at_all(log: Log) -> None:
    for at in range(1, 400, 4):
        first, second = order(at % 3), order(100 + at)
        log.put(batch(NARROW, [(Op.UPDATE, at, first), (Op.INSERT, at + 1, second), (Op.DELETE, at + 2, second)]))
        log.put(schema(NARROW, at + 3, Kind.ALTERED) if at == 201 else upserts(NARROW, at + 3, [order(7)]))
    done = log.compact(400, 0, topic="public.orders")
    with closing(EmbeddedLogReader(log.root)) as reader:
        (topic,) = reader.topics()
        assert topic.clean_from > 300 > topic.floor == 0
        kept = [
            at for one in reader.read(topic.name, Position(0), Position(topic.clean_from - 1)) for at in one.column(0).to_pylist()
        ]
        deletes = [at for at in kept if at % 4 == 3]
        assert len(deletes) == len(range(3, topic.clean_from, 4)), "DELETEs are too young to go"
        assert len(kept) - len(deletes) == 3 + 1 + 1, "three rows, number 7, and the SCHEMA record"
        assert done.dropped == done.read - len(kept)
        log.compact(400, 400, topic="public.orders")
        kept = [
            at for one in reader.read(topic.name, Position(0), Position(topic.clean_from - 1)) for at in one.column(0).to_pylist()
        ]
        assert len(kept) == 5
        assert log.compact(400, 400, topic="public.orders").dropped == 0, "there is nothing left to do"


def test_a_place_before_a_dropped_delete_lacks_something_though_nothing_is_left_there(log: Log) -> None:
    for at in range(1, 400, 2):
        log.put(batch(NARROW, [(Op.INSERT, at, order(1)), (Op.DELETE, at + 1, order(1))]))
    log.compact(400, 400, topic="public.orders")
    with closing(EmbeddedLogReader(log.root)) as reader:
        (topic,) = reader.topics()
        assert topic.floor > 300
        assert not list(reader.read(topic.name, Position(0), Position(topic.floor - 1)))
        assert reader.last_change(topic.name, Position(topic.floor - 1)) == topic.floor - 1
        assert reader.last_change(topic.name, Position(topic.floor - 2)) == 0


def test_a_compacted_stretch_has_no_old_rows(log: Log) -> None:
    """Between what is left of a row's changes there were others, so none of them stands beside the row that was before it there."""
    full = replace(NARROW, identity="f")
    for first in range(1, 100, 10):
        keys = {at: at if at % 10 == 5 else 1 for at in range(first, first + 10)}
        changes = batch(full, [(Op.UPDATE, at, order(key, str(at))) for at, key in keys.items()])
        log.put(replacing(changes, full, [order(key, "before") for key in keys.values()]))
    log.compact(100, 0, topic="public.orders")
    with closing(EmbeddedLogReader(log.root)) as reader:
        (topic,) = reader.topics()
        assert topic.clean_from > 60
        having = {
            position: bool(old)
            for one in reader.read(topic.name, Position(0), topic.last, old_rows=True)
            for position, old in zip(
                one.column(0).to_pylist(),
                one.column(BEFORE).to_pylist() if BEFORE in one.schema.names else [()] * len(one),
                strict=True,
            )
        }
        assert [having[position] for position in (5, 15, 95)] == [False, False, True]
        for answer in (with_sent, with_former):
            known = {
                position: is_known
                for changes, _, mask in answer(reader, topic.name, Position(0), topic.last)
                for position, is_known in zip(changes.column(0).to_pylist(), mask.tolist(), strict=True)
            }
            assert known == {position: position >= topic.clean_from for position in having}, (
                "also where nothing had to be written again"
            )


def rewritten(root: Path, disk: Disk | None = None) -> EmbeddedLogWriter:
    """One row, changed again and again, and another one now and then; all closed segments are sealed."""
    writer = EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=disk or QuickDisk())
    grow(writer, 60)
    return writer


def grow(writer: EmbeddedLogWriter, count: int) -> None:
    for at in range(int(writer.next_position), int(writer.next_position) + count, 10):
        writer.append(batch(NARROW, [(Op.UPDATE, one, order(one if one % 7 == 0 else 1, "again")) for one in range(at, at + 10)]))
        writer.commit(Lsn(at), 0)
    writer.drain_seals()


def compacted(writer: EmbeddedLogWriter) -> None:
    topic = "public.orders"
    points = TopicPoints(writer.upkeep.ranges(topic)[-1].last + 1, 0)
    compact(writer.upkeep, topic, points, lambda: note(writer), at_least=0.0, target_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize(("method", "after"), [("sync_folder", 0), ("rename", 0), ("rename", 1), ("write", 0), ("create", 0)])
def test_what_a_refusal_left_half_done_is_in_nobodys_way(quick_folder: Path, method: str, after: int) -> None:
    """Files that had got their names already must not be taken for those of the next attempt."""
    disk = Refusing()
    root = quick_folder / "log"
    writer = rewritten(root, disk)
    disk.refuse(method, after)
    with pytest.raises(OSError):
        compacted(writer)
    disk.refuse("", 0)
    assert not list(root.rglob(".aside-*")), "what a full disk was filled with is gone"
    grow(writer, 40)
    compacted(writer)
    end = writer.head.position
    for _ in range(2):
        with closing(EmbeddedLogReader(root)) as reader:
            rows = [row["_cdc_position"] for one in live_rows(reader, "public.orders", end) for row in one.to_pylist()]
            assert set(rows) == {at for at in range(1, end + 1) if at % 7 == 0} | {end}
        writer.close()
        writer = EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk())
    compacted(writer)
    writer.close()


def test_files_that_a_failing_disk_could_not_even_list_are_not_forgotten(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had got their names; nothing newer may be recorded beside them, or recovery takes them for damage."""
    disk = Refusing()
    root = quick_folder / "log"
    writer = rewritten(root, disk)
    folder = LogPlaces(root).folder("public.orders")
    before = set(folder.glob("*.parquet"))

    def unlisted(path: Path) -> list[Sealed]:
        raise OSError(5, "Input/output error", str(path))

    disk.refuse("sync_folder", 0)
    with monkeypatch.context() as failing:
        failing.setattr(upkeep, "sealed_in", unlisted)
        with pytest.raises(OSError, match="No space"):
            compacted(writer)
        disk.refuse("", 0)
        grow(writer, 40)
        with pytest.raises(OSError, match="Input/output"):
            compacted(writer)
    (stray,) = set(folder.glob("*-1.parquet")) - before
    compacted(writer)
    assert not stray.exists()
    writer.close()
    EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk()).close()


class Refusing(QuickDisk):
    """Refuses one kind of call for Parquet files and folders, once so many have passed."""

    def __init__(self) -> None:
        self.refuse("", 0)

    def refuse(self, method: str, after: int) -> None:
        self._method, self._after = method, after

    def _meet(self, method: str, path: Path) -> None:
        if method == self._method and (".parquet" in path.name or path.is_dir()):
            if self._after == 0:
                raise OSError(28, "No space left on device", str(path))
            self._after -= 1

    def create(self, path: Path) -> int:
        self._meet("create", path)
        return super().create(path)

    def write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
        self._meet("write", Path(f"/proc/self/fd/{fd}").readlink())
        super().write(fd, parts, offset)

    def rename(self, old: Path, new: Path) -> None:
        self._meet("rename", new)
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self._meet("sync_folder", path)
        super().sync_folder(path)


@pytest.mark.parametrize("question", ["as of", "changes since"])
def test_a_question_about_the_past_that_compaction_overtakes_is_refused(quick_folder: Path, question: str) -> None:
    """It begins while the log still has everything, and ends when it no longer does."""
    root = quick_folder / "log"
    writer = rewritten(root)
    reader = EmbeddedLogReader(root)
    asked: Iterator[object] = (
        rows_as_of(reader, "public.orders", Position(30))
        if question == "as of"
        else net_changes(reader, "public.orders", Position(30), Position(50), lookup_bytes=1)
    )
    compacted(writer)
    writer.upkeep.remove_replaced()
    with pytest.raises(PositionGone):
        list(asked)
    again = (
        rows_as_of(Late(root), "public.orders", Position(30))
        if question == "as of"
        else net_changes(Late(root), "public.orders", Position(30), Position(50), lookup_bytes=1)
    )
    with pytest.raises(PositionGone):
        list(again)
    writer.close()


class Late(EmbeddedLogReader):
    """Compaction comes after the question whether it may be asked."""

    _begun = False

    def read(
        self,
        topic: str,
        after: Position,
        upto: Position,
        history: str | None = None,
        *,
        old_rows: bool = False,
        keys_only: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        self._begun = True
        return super().read(topic, after, upto, history, old_rows=old_rows, keys_only=keys_only)

    def topics(self) -> list[Topic]:  # type: ignore[override]
        found = list(super().topics())
        return found if self._begun else [replace(one, clean_from=Position(0)) for one in found]


def test_a_copy_of_the_log_in_its_place_is_left_alone(quick_folder: Path) -> None:
    root = quick_folder / "log"
    writer = rewritten(root)
    shutil.copytree(root, quick_folder / "backup")
    compacted(writer)
    root.rename(quick_folder / "away")
    (quick_folder / "backup").rename(root)
    before = sorted(path.name for path in root.rglob("*"))
    with pytest.raises(HeadwaterError, match="moved, deleted or replaced"):
        writer.upkeep.remove_replaced()
    assert sorted(path.name for path in root.rglob("*")) == before
    writer.abandon()
