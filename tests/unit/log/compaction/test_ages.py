"""How old the changes of derived topics count as."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cdc.compaction import ages as ages_module
from cdc.compaction.ages import AGES, AGES_FILE, AgeKeeper, Ages, known
from cdc.compaction.worker import settled
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.model.table import DERIVED_OID
from cdc.settings.models import Log
from tests.contract.rows import ORDERS, batch, order
from tests.unit.log.disks import QuickDisk

VIEW = replace(ORDERS, oid=DERIVED_OID, name="view")
NOW_S = 1_800_000_000.0


@dataclass
class Clocks:
    """This machine's clock, and the steady one of its processes; in seconds."""

    wall: float = NOW_S
    steady: float = 10.0

    def go_on(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(ages_module.time, "time_ns", lambda: int(found.wall * 1e9))
    monkeypatch.setattr(ages_module.time, "monotonic", lambda: found.steady)
    return found


@dataclass
class Views:
    """A log with a derived topic, that a job hands rows over to."""

    log: Log
    writer: EmbeddedLogWriter

    def hand_over(self, rows: int) -> None:
        for _ in range(rows):
            at = self.writer.next_position
            self.writer.append(batch(VIEW, [(Op.UPDATE, at, order(1, "again"))]), "views")
            self.writer.commit()
        self.writer.drain_seals()

    def commit(self, wall_s: float) -> None:
        """The source's."""
        at = self.writer.next_position
        self.writer.append(batch(ORDERS, [(Op.UPDATE, at, order(1, "again"))]))
        self.writer.commit(Lsn(int(at)), int(wall_s * 1e6))


@pytest.fixture
def views(quick_folder: Path) -> Iterator[Views]:
    log = Log(dir=quick_folder / "log", segment_bytes=4096, cleanup="compact", history_hours=24, deletes_hours=336)
    with closing(EmbeddedLogWriter(log.dir, segment_bytes=4096, disk=QuickDisk())) as writer:
        yield Views(log, writer)


def test_a_source_that_commits_once_more_makes_nothing_old_that_came_through_the_inbox_meanwhile(
    views: Views, clocks: Clocks
) -> None:
    keeper = AgeKeeper(views.log)
    views.commit(clocks.wall)
    clocks.go_on(15 * 24 * 3600)
    with closing(EmbeddedLogReader(views.log.dir)) as reader:
        views.hand_over(40)
        keeper.look(reader)
        handed_over = reader.head().position
        clocks.go_on(60)
        views.commit(clocks.wall)
        keeper.look(reader)

        def of_view() -> tuple[int, int]:
            topic = next(one for one in reader.topics() if one.table.derived)
            return settled(reader, views.log, topic, views.writer.upkeep.ranges(topic.name), int(clocks.wall * 1e6))

        assert of_view() == (-1, -1), "a minute old"
        clocks.go_on(24 * 3600)
        keeper.look(reader)
        assert of_view() == (handed_over, -1), "changes count as old after history_hours, DELETEs do not"
        clocks.go_on(312 * 3600)
        keeper.look(reader)
        assert of_view() == (handed_over + 1, handed_over)


def test_what_may_go_at_once_needs_no_notes(views: Views, clocks: Clocks) -> None:
    at_once = views.log.model_copy(update={"history_hours": 0.0, "deletes_hours": 0.0})
    views.hand_over(3)
    with closing(EmbeddedLogReader(views.log.dir)) as reader:
        AgeKeeper(at_once).look(reader)
        assert settled(reader, at_once, reader.topics()[0], [], int(clocks.wall * 1e6)) == (3, 3)
        assert not (views.log.dir / AGES_FILE).exists()


def test_each_age_is_known_to_its_part_however_far_apart_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages_module, "NOTES_IN_AGE", 10)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    short, long, longest_look = 1.0, 1500.0, 400
    ages, at_s, now_s = Ages("a" * 16, "b" * 32, 0, 1), [0], 0
    while now_s < 1.2 * long * 3600:
        now_s += chance.randrange(360, longest_look)
        at_s.append(now_s)
        ages = ages.at(1 + now_s * 10**6).noted(len(at_s) - 1, [short, long])
        if len(at_s) % 100:
            continue
        assert len(ages.notes) < 200
        for hours in (short, 30.0, long):
            if now_s > 1.15 * hours * 3600:
                upto = ages.upto(hours)
                assert now_s - at_s[upto] >= hours * 3600, "nothing counts as older than it is"
                most_s = hours * 3600 + max(hours * 360, short * 360 + longest_look)
                assert now_s - at_s[upto + 1] <= most_s, f"{hours} hours, after {now_s} s"


def test_a_clock_that_is_behind_at_a_start_and_put_right_for_the_next_makes_nothing_old(views: Views, clocks: Clocks) -> None:
    views.hand_over(30)
    with closing(EmbeddedLogReader(views.log.dir)) as reader:
        AgeKeeper(views.log).look(reader)
        clocks.wall, clocks.steady = 3600.0, 10.0
        booted = AgeKeeper(views.log)
        booted.look(reader)
        clocks.go_on(60)
        booted.look(reader)
        clocks.wall = NOW_S + 600
        AgeKeeper(views.log).look(reader)
        found = known(views.log.dir, reader)
        assert found is not None
        assert found.passed_us == 600 * 10**6
        assert found.upto(1.0) == -1


def test_of_a_history_that_was_given_up_only_what_the_present_one_shares_is_known(views: Views, clocks: Clocks) -> None:
    views.hand_over(30)
    with closing(EmbeddedLogReader(views.log.dir)) as reader:
        AgeKeeper(views.log).look(reader)
        found = known(views.log.dir, reader)
        assert found is not None
        (first,) = found.notes
        given_up = replace(found, passed_us=found.passed_us + 1, notes=(first, (found.passed_us + 1, 35)))  # it had come so far
        AGES.save(views.log.dir / AGES_FILE, given_up)
        views.writer.begin_history()
        views.hand_over(30)
        clocks.go_on(25 * 3600)
        AgeKeeper(views.log).look(reader)
        now = known(views.log.dir, reader)
        assert now is not None
        assert [head for _, head in now.notes] == [30, 60], "35 means another change than it did"
        assert now.upto(24) == 30
        AGES.save(views.log.dir / AGES_FILE, replace(now, history="f" * 32))
        assert known(views.log.dir, reader) == Ages(now.log, now.history), "this log never had that history"
