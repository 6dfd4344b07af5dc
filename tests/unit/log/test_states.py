"""States of topics in the embedded log: they change no answer, whatever becomes of their files, and take no more room than they may."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pydantic import SecretStr

from cdc.compaction.states import StateKeeping, due
from cdc.log.contract import StateFacts, StateTooLarge
from cdc.log.embedded.names import folder_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import FOLDER, EmbeddedStates
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op, table_of
from cdc.model.position import Lsn, Position
from cdc.replay.netchange import net_changes
from cdc.replay.state import rows_as_of
from cdc.settings.models import Log, LogTable, Settings, Source
from sinks.past import condensed, live_rows
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.unit.log.compaction.test_merge import until
from tests.unit.log.disks import Crash, CrashDisk, QuickDisk
from tests.unit.sinks.test_past import PEOPLE, History, folded, rows

TOPIC = ORDERS.qualified
T = TypeVar("T")


def settings_of(root: Path, **log: object) -> Settings:
    return Settings(source=Source(dsn=SecretStr("host=h")), log=Log(dir=root, reserve_mb=0, **log))  # type: ignore[arg-type]


def keep_up(root: Path, begin_rows: int = 1, share: float = 0.1, **log: object) -> None:
    """One look of the thread."""
    problems: list[str] = []
    with closing(EmbeddedLogReader(root)) as reader:
        StateKeeping(settings_of(root, **log), threading.Event(), begin_rows=begin_rows, share=share).look(reader, problems)
    assert problems == []


def rewritten(root: Path, changes: int, keys: int = 10) -> None:
    """So many more changes of so many rows, a hundred a commit."""
    with closing(EmbeddedLogWriter(root, seal=False, disk=QuickDisk())) as writer:
        done = 0
        while done < changes:
            at = int(writer.next_position)
            writer.append(batch(ORDERS, [(Op.UPDATE, at + n, order((at + n) % keys, f"at {at + n}")) for n in range(100)]))
            writer.commit(Lsn(at + 99), 0)
            done += 100


def cuts(root: Path, topic: str = TOPIC) -> list[int]:
    with closing(EmbeddedLogReader(root)) as reader:
        return sorted(int(one.cut) for one in EmbeddedStates(root, reader).standing(topic) if one.kept)


def table(root: Path, upto: int, topic: str = TOPIC) -> list[tuple[int, str, dict[str, str | None]]]:
    with closing(EmbeddedLogReader(root)) as reader:
        return rows(rows_as_of(reader, topic, Position(upto)))


def folder(root: Path, topic: str = TOPIC) -> Path:
    return root / FOLDER / folder_of(topic)


def test_a_state_is_due_when_the_topic_has_grown_by_many_times_its_size() -> None:
    assert due(1000, None, 0.1, 1000)
    assert not due(999, None, 0.1, 1000)
    note = StateFacts(Position(5), 200, 0, kept=False)
    assert not due(1999, note, 0.1, 1000)
    assert due(2000, note, 0.1, 1000)


@pytest.mark.parametrize("round", range(3))
def test_no_answer_differs_because_of_states(seed: int, round: int, quick_folder: Path) -> None:
    chance = random.Random(seed + round)
    history, root, topic = History(chance, length=200), quick_folder / "log", PEOPLE.qualified
    mine = [one for one in history.batches if table_of(one.schema).qualified == topic]
    with closing(EmbeddedLogWriter(root, segment_bytes=4096, disk=QuickDisk())) as writer:
        for number, one in enumerate(history.batches, 1):
            writer.append(one)
            writer.commit(Lsn(number), number)
            if number % 8 == 0:
                keep_up(root, share=1.0)
    assert cuts(root, topic)
    for upto in (history.position, *(chance.randrange(history.position) for _ in range(3))):
        with closing(EmbeddedLogReader(root)) as reader:
            found = rows(live_rows(reader, topic, Position(upto)))
        assert {at: (definition, row) for at, definition, row in found} == folded(until(mine, upto), upto)
    after, upto = sorted(chance.sample(range(history.position), 2))
    assert differences(root, topic, after, upto) == without_states(root, lambda: differences(root, topic, after, upto))


def differences(root: Path, topic: str, after: int, upto: int) -> list[tuple[int, str, dict[str, str | None]]]:
    with closing(EmbeddedLogReader(root)) as reader:
        return rows(one.changes for one in net_changes(reader, topic, Position(after), Position(upto)))


def without_states(root: Path, ask: Callable[[], T]) -> T:
    aside = (root / FOLDER).rename(root.parent / "aside")
    try:
        return ask()
    finally:
        aside.rename(root / FOLDER)


class Counting(EmbeddedLogReader):
    """Counts the bytes of the changes that it hands out."""

    read_bytes = 0

    def read(self, *args: object, **named: object) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        for one in super().read(*args, **named):  # type: ignore[arg-type]
            self.read_bytes += one.nbytes
            yield one


def test_behind_a_state_only_what_came_after_it_is_read(quick_folder: Path) -> None:
    root = quick_folder / "log"
    for _ in range(5):
        rewritten(root, 1000)
        keep_up(root, begin_rows=1000)
    assert cuts(root) == [1000, 2000, 3000, 4000, 5000]
    rewritten(root, 100)

    def asked(upto: int) -> int:
        with closing(Counting(root)) as reader:
            assert sum(map(len, rows_as_of(reader, TOPIC, Position(upto)))) == 10
            return reader.read_bytes

    for upto in (5100, 3100):
        assert 10 * asked(upto) < without_states(root, lambda upto=upto: asked(upto))  # type: ignore[misc]


def test_states_never_take_more_than_their_share(quick_folder: Path) -> None:
    root = quick_folder / "log"
    rewritten(root, 1000, keys=10**6)
    keep_up(root, begin_rows=100)
    assert cuts(root) == [], "rows are only added"
    with closing(EmbeddedLogReader(root)) as reader:
        assert list(EmbeddedStates(root, reader).standing(TOPIC)) == [StateFacts(Position(1000), 1000, 0, kept=False)]
    rewritten(root, 8000, keys=10**6)
    before = sorted(path.name for path in folder(root).iterdir())
    keep_up(root, begin_rows=100)
    assert sorted(path.name for path in folder(root).iterdir()) == before, "nobody looks again before it is ten times as large"
    with (
        closing(EmbeddedLogReader(root)) as reader,
        condensed(reader, TOPIC, Position(9000)) as found,
        pytest.raises(StateTooLarge),
    ):
        EmbeddedStates(root, reader).keep(TOPIC, Position(9000), found.rows, found.batches, most_bytes=1000)
    assert sorted(path.name for path in folder(root).iterdir()) == before


def test_a_full_disk_is_said_and_not_tried_again_at_once(quick_folder: Path) -> None:
    root = quick_folder / "log"
    rewritten(root, 1000)
    asked: list[Path] = []
    keeping = StateKeeping(
        settings_of(root), threading.Event(), begin_rows=1, free=lambda path: -1 if asked.append(path) is None else 0
    )
    with closing(EmbeddedLogReader(root)) as reader:
        for _ in range(3):
            problems: list[str] = []
            keeping.look(reader, problems)
            assert len(problems) == 1
            assert "reserve_mb" in problems[0]
    assert len(asked) == 1
    assert cuts(root) == []


def test_states_go_with_what_asks_for_them(quick_folder: Path) -> None:
    root = quick_folder / "log"
    rewritten(root, 1000)
    for other in ({"states": False}, {"cleanup": "compact"}):
        keep_up(root)
        assert cuts(root) == [1000]
        keep_up(root, tables={TOPIC: LogTable.model_validate(other)})
        assert not folder(root).exists()
    keep_up(root)
    with closing(EmbeddedLogWriter(root, disk=QuickDisk())) as writer:
        writer.upkeep.close_newest(TOPIC, 10**9)
        writer.commit()
        writer.append(batch(ORDERS, [(Op.UPDATE, 1001, order(1))]))
        writer.commit(Lsn(1001), 0)
        writer.drain_seals()
        writer.upkeep.retire(TOPIC, floor=1001, clean_from=1001)
        writer.commit()
    with closing(EmbeddedLogReader(root)) as reader:
        assert reader.state(TOPIC, Position(1001)) is None, "the log no longer has all that it stands for"
    keep_up(root)
    assert not folder(root).exists()


def spoiled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("ending", [".parquet", ".json"])
@pytest.mark.parametrize(
    "harm", [spoiled, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9]), lambda path: path.write_bytes(b"")]
)
def test_a_damaged_state_counts_for_nothing_and_is_made_again(
    ending: str, harm: Callable[[Path], None], quick_folder: Path
) -> None:
    root = quick_folder / "log"
    rewritten(root, 1000)
    known = table(root, 1000)
    keep_up(root)
    [file] = folder(root).glob(f"*{ending}")
    harm(file)
    assert table(root, 1000) == known
    with closing(EmbeddedLogReader(root)) as reader:
        assert reader.state(TOPIC, Position(1000)) is None
    rewritten(root, 100)
    keep_up(root)
    assert cuts(root) == [1100]
    assert len(list(folder(root).iterdir())) == 2, "nothing is left over"
    with closing(EmbeddedLogReader(root)) as reader:
        assert reader.state(TOPIC, Position(1100)) is not None


def test_a_state_of_what_the_log_no_longer_holds_is_not_believed(quick_folder: Path) -> None:
    """The log is put back from a copy, all but its states, and goes on otherwise."""
    root, copy = quick_folder / "log", quick_folder / "copy"
    rewritten(root, 500)
    shutil.copytree(root, copy)
    rewritten(root, 500)
    keep_up(root)
    (root / FOLDER).rename(copy / FOLDER)
    assert cuts(copy) == [], "it is ahead of the log"
    with closing(EmbeddedLogWriter(copy, seal=False, disk=QuickDisk())) as writer:
        for first in range(501, 1001, 100):
            other = first == 901
            table_ = PAIRS if other else ORDERS
            row = {"a": "1", "b": "2", "v": "3"} if other else order(1)
            writer.append(batch(table_, [(Op.UPDATE, at, row) for at in range(first, first + 100)]))
            writer.commit(Lsn(first + 7000), 0)
    assert cuts(copy) == [], "the log has come to other changes"
    assert table(copy, 1000) == without_states(copy, lambda: table(copy, 1000))
    keep_up(copy)
    assert cuts(copy) == [1000]
    assert len(list(folder(copy).iterdir())) == 2


POINTS = 8
"""The number of operations at which the power goes, in each run others."""


@pytest.mark.parametrize("loss", ["lost", "torn", "kept"])
def test_the_power_may_go_at_any_moment(seed: int, loss: str, quick_folder: Path) -> None:
    chance = random.Random(f"{seed} {loss}")

    def ran(root: Path, crash_at: int) -> CrashDisk:
        disk = CrashDisk(root, crash_at, chance)
        try:
            for _ in range(2):
                with closing(EmbeddedLogWriter(root, seal=False, disk=disk)) as writer:
                    at = int(writer.next_position)
                    writer.append(batch(ORDERS, [(Op.UPDATE, at + n, order((at + n) % 10)) for n in range(50)]))
                    writer.commit(Lsn(at + 49), 0)
                with closing(EmbeddedLogReader(root)) as reader:
                    states, cut = EmbeddedStates(root, reader, disk), reader.head().position
                    states.tidy(TOPIC)
                    states.keep(TOPIC, Position(cut - 1), 99, None)  # a note that the next tidying takes away
                    with condensed(reader, TOPIC, cut) as found:
                        states.keep(TOPIC, cut, found.rows, found.batches)
                    states.tidy(TOPIC)
        except Crash:
            pass
        return disk

    steps = ran(quick_folder / "whole", 10**9).operations
    for number in range(POINTS):
        root, after = quick_folder / f"run {number}", quick_folder / f"after {number}"
        ran(root, 1 + steps * number // POINTS + chance.randrange(max(1, steps // POINTS))).after_power_loss(after, loss)  # type: ignore[arg-type]
        with closing(EmbeddedLogWriter(after, seal=False, disk=QuickDisk())) as writer:
            head = int(writer.head.position)
        if head:
            keep_up(after)
            assert [at for at, _, _ in table(after, head)] == list(range(head - 9, head + 1))
            with closing(EmbeddedLogReader(after)) as reader:
                assert reader.state(TOPIC, Position(head)) is not None or not cuts(after)
        shutil.rmtree(root, ignore_errors=True)
