"""Retention: what is too old or too much goes in whole files, whoever is behind it is told, and stores hold it back for a while."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from cdc.compaction import ages as ages_module
from cdc.compaction import retention
from cdc.compaction.ages import AGES, AGES_FILE, AgeKeeper, Ages, known
from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.compaction.pins import Pins
from cdc.compaction.retention import Old, kept_from
from cdc.compaction.standing import compact_now, kept
from cdc.compaction.wholeness import made_whole
from cdc.compaction.worker import Compaction, retired, settled
from cdc.errors import LogCorrupt, PositionGone
from cdc.log.contract import LogReader, Topic, present_history
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn, Position
from cdc.model.table import DERIVED_OID
from cdc.replay.state import definition_at, rows_as_of
from cdc.settings.models import Log, LogTable, Settings
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.unit.log.changes import positions_in
from tests.unit.log.compaction.test_worker import HOUR_US, commit_until, grown, looked, ranges, shop, told
from tests.unit.log.disks import Crash, CrashDisk, Loss, QuickDisk
from tests.unit.log.test_crash import SEGMENT_BYTES, seal_closed

__all__ = ["shop"]
TOPIC = ORDERS.qualified
ALL = Position(2**40)


def topic_of(reader: LogReader, name: str = TOPIC) -> Topic:
    return next(one for one in reader.topics() if one.name == name)


def some_topic(now: int = 0, size: int = 4000) -> Topic:
    return Topic(TOPIC, ORDERS, 200, size, Position(1), Position(400), "postgres", kept_from=Position(now))


def test_what_is_too_old_or_too_much_goes_from_the_oldest_end_as_far_as_everybody_has_read() -> None:
    found = ranges(50, 50, 50)  # of 1000 bytes each; the segment that is written comes on top
    assert kept_from(some_topic(), found, Old(-1), []) == 0
    assert kept_from(some_topic(), found, Old(189), []) == 91, "whole ranges only"
    assert kept_from(some_topic(), found, Old(190), []) == 191
    assert kept_from(some_topic(), found, Old(-1, 3000), []) == 91
    assert kept_from(some_topic(), found, Old(-1, 2999), []) == 191
    assert kept_from(some_topic(), found, Old(-1, 1), []) == 291, "the segment that is written stays"
    assert kept_from(some_topic(), found, Old(90, 2000), []) == 191, "whichever of the two drops more"
    assert kept_from(some_topic(), found, Old(400), [250, 100]) == 91, "the slowest store decides"
    assert kept_from(some_topic(), found, Old(400), [0]) == 0
    assert kept_from(some_topic(91, 3000), found[1:], Old(-1), []) == 91, "it never falls"
    assert kept_from(some_topic(91, 3000), found[1:], Old(190), [0, 89]) == 191, "who can never go on holds nothing"
    assert kept_from(some_topic(91, 3000), found[1:], Old(190), [90]) == 91


def test_rows_of_the_inbox_are_as_old_as_the_notes_of_the_head_say(limited: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = limited
    grown(writer, 200)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        ours, found = topic_of(reader), writer.upkeep.ranges(TOPIC)
        assert retention.old(reader, settings.log, ours, found, 2**62) == Old(99)
        derived = replace(ours, table=replace(ours.table, oid=DERIVED_OID))
        assert derived.table.derived
        assert retention.old(reader, settings.log, derived, found, 2**62) == Old(-1), "nothing is known of them"
        log = present_history(reader).partition(".")[0][:16]
        noted = Ages(log, log * 2, 101 * HOUR_US, 1, ((0, 50), (1 * HOUR_US, 120), (2 * HOUR_US, 200)))
        AGES.save(settings.log.dir / AGES_FILE, noted)
        assert retention.old(reader, settings.log, derived, found, 2**62) == Old(120)
        for other in (replace(noted, log="f" * 16), replace(noted, notes=(*noted.notes, (101 * HOUR_US, 201)))):
            AGES.save(settings.log.dir / AGES_FILE, other)
            assert retention.old(reader, settings.log, derived, found, 2**62) == Old(-1), (
                "of another log, or of a future that this one never had"
            )
        (settings.log.dir / AGES_FILE).write_bytes(b"{}")
        assert retention.old(reader, settings.log, derived, found, 2**62) == Old(-1)
    writer.close()


def test_time_counts_by_the_clock_as_far_as_it_has_really_passed() -> None:
    ages = Ages("a" * 16, "b" * 32).at(10 * HOUR_US)
    assert ages.passed_us == 0
    assert ages.at(12 * HOUR_US).passed_us == 2 * HOUR_US, "also while nobody looked"
    assert ages.at(9999 * HOUR_US, HOUR_US).passed_us == HOUR_US, "a clock that jumps ahead makes nothing old"
    back = ages.at(8 * HOUR_US)
    assert (back.passed_us, back.at(9 * HOUR_US).passed_us, back.at(11 * HOUR_US).passed_us) == (0, 0, HOUR_US)
    watched = back.at(9 * HOUR_US, HOUR_US)
    assert (watched.passed_us, watched.at(11 * HOUR_US).passed_us) == (HOUR_US, HOUR_US), "no hour counts twice"


def test_the_head_is_noted_often_enough_and_not_for_ever() -> None:
    ages, hours = Ages("a" * 16, "b" * 32, 0, 1), [1.0, 10.0]
    for minute in range(60 * 24):
        ages = ages.at(1 + minute * 60_000_000).noted(minute, hours)
    assert len(ages.notes) < 200, "fewer and fewer, as far as the longest age goes back"
    assert ages.upto(1.0) in (60 * 23 - 2, 60 * 23 - 1)
    assert 60 * 14 - 1 - 12 <= ages.upto(10.0) <= 60 * 14 - 1, "a fiftieth of ten hours is 12 minutes"
    assert ages.upto(30.0) == -1
    assert ages.noted(5, hours).notes[-1][1] <= 5, "an older copy of the log was put back"


def test_the_thread_notes_the_head_and_retires_rows_of_the_inbox_by_their_age(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = shop
    table = LogTable.model_validate({"cleanup": "delete", "retain_hours": 2})
    settings = settings.model_copy(update={"stores": {}, "log": settings.log.model_copy(update={"tables": {TOPIC: table}})})
    for _ in range(200):
        at = writer.next_position
        writer.append(batch(replace(ORDERS, oid=DERIVED_OID), [(Op.UPDATE, at, order(1, "again"))]), "views")
        writer.mark("views", str(at).encode())
        writer.commit()
    writer.drain_seals()
    now_s = [1_800_000_000.0]
    monkeypatch.setattr(ages_module.time, "time_ns", lambda: int(now_s[0] * 1e9))
    monkeypatch.setattr(ages_module.time, "monotonic", lambda: now_s[0])
    keeper = AgeKeeper(settings.log)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        for passed_s in (0, 3600, 3599):
            now_s[0] += passed_s
            keeper.look(reader)
            assert retire_now(settings, writer, reader) == 0
        now_s[0] += 1
        keeper.look(reader)
        assert retire_now(settings, writer, reader) > 0
        assert topic_of(reader).kept_from > 1
        again = AgeKeeper(settings.log)
        again.look(reader)
        assert known(settings.log.dir, reader).passed_us == 7200 * 10**6
    writer.close()


def test_changes_before_a_time_in_which_the_source_s_clock_was_set_back_are_as_old_as_their_own_commits(
    limited: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = limited
    for hour in (*[1000] * 100, *[100] * 60, *[1001] * 40):
        at = writer.next_position
        writer.append(batch(ORDERS, [(Op.UPDATE, at, order(1, "again"))]))
        writer.commit(Lsn(int(at)), hour * HOUR_US)
    writer.drain_seals()
    told(settings, 10**6)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        log, topic = settings.log, topic_of(reader)
        assert settled(reader, log, topic, writer.upkeep.ranges(TOPIC), 2**62) == Settled(160, 0), "DELETEs stay for 336 hours"
        assert retire_now(settings, writer, reader) == 0
        writer.append(batch(ORDERS, [(Op.UPDATE, 201, order(1, "again"))]))
        writer.commit(Lsn(201), 1101 * HOUR_US)
        assert retire_now(settings, writer, reader) >= 100, "also those of the wrong time, when what is before them has gone"
    writer.close()


def test_what_is_deleted_has_a_limit_and_a_table_may_have_its_own() -> None:
    for wrong in ({"cleanup": "delete"}, {"tables": {"public.o*": {"cleanup": "delete"}}}):
        with pytest.raises(ValidationError, match="needs retain_hours or retain_mb"):
            Log.model_validate(wrong)
    log = Log.model_validate(
        {"retain_hours": 5, "tables": {"*.*": {"cleanup": "delete"}, "public.o*": {"cleanup": "delete", "retain_mb": 7}}}
    )
    assert (log.cleanup_of(ORDERS), log.limits_of(ORDERS)) == ("delete", (5, 7))
    assert (log.cleanup_of(PAIRS), log.limits_of(PAIRS)) == ("delete", (5, None))


@pytest.fixture
def limited(shop: tuple[Settings, EmbeddedLogWriter]) -> tuple[Settings, EmbeddedLogWriter]:
    """Orders are kept for 100 of the log's hours, of which each commit of ``grown`` takes one."""
    settings, writer = shop
    table = LogTable.model_validate({"cleanup": "delete", "retain_hours": 100})
    return settings.model_copy(update={"log": settings.log.model_copy(update={"tables": {TOPIC: table}})}), writer


def retire_now(settings: Settings, writer: EmbeddedLogWriter, reader: LogReader) -> int:
    pins = Pins(lambda: settings)

    def recorded() -> None:
        writer.commit()

    return retired(reader, writer.upkeep, settings.log, topic_of(reader), lambda: pins.look(0.0, reader), recorded)


def files(writer: EmbeddedLogWriter) -> int:
    return len(list(LogPlaces(writer._places.root).folder(TOPIC).iterdir()))


def test_the_thread_retires_what_is_too_old_and_its_files_go(limited: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = limited
    told(settings, 10**6)
    grown(writer, 300)
    before = files(writer)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    thread.start()
    reader = EmbeddedLogReader(settings.log.dir)
    commit_until(writer, lambda: topic_of(reader).kept_from > 0 and files(writer) < before)
    stop.set()
    thread.join()
    topic = topic_of(reader)
    assert thread.alarm() is None
    assert 100 < topic.kept_from <= 201
    assert topic.kept_from == topic.floor == topic.clean_from == topic.first
    assert files(writer) < before
    with pytest.raises(PositionGone, match="are gone") as gone:
        list(reader.read(TOPIC, Position(0), ALL, present_history(reader)))
    assert f"--from {topic.kept_from}" in gone.value.line()
    with pytest.raises(PositionGone):
        list(rows_as_of(reader, TOPIC, reader.head().position))
    assert positions_in(reader.read(TOPIC, Position(topic.kept_from - 1), ALL)) == list(range(topic.kept_from, 301))
    assert definition_at(reader, TOPIC, reader.head().position) is not None
    reader.close()
    writer.close()
    with closing(EmbeddedLogWriter(settings.log.dir, segment_bytes=4096, disk=QuickDisk())) as again:
        assert again.head.position == 300
        with closing(EmbeddedLogReader(settings.log.dir)) as after:
            assert topic_of(after) == topic


def test_a_store_holds_retention_back_until_it_lacks_too_much_and_stat_names_it(
    limited: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = limited
    told(settings, 50)
    grown(writer, 300)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        retire_now(settings, writer, reader)
        assert topic_of(reader).kept_from <= 51
        (standing,) = kept(settings, reader)
        assert (standing.held_by, standing.lapsed) == ({"told": 50}, {})
        grown(writer, 2, 4000)
        small = settings.model_copy(update={"log": settings.log.model_copy(update={"pin_mb": 1})})
        told(small, 50)
        assert topic_of(reader).bytes > 10**6
        (standing,) = kept(small, reader)
        assert standing.held_by == {}
        assert "log.pin_mb" in standing.lapsed["told"]
        assert retire_now(small, writer, reader) > 0
        assert topic_of(reader).kept_from > 100
    writer.close()


def test_a_store_that_has_read_all_that_could_go_holds_nothing(
    limited: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = limited
    monkeypatch.setattr(retention, "old", lambda *_: Old(-1, 1))
    grown(writer, 30)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        found = writer.upkeep.ranges(TOPIC)
        assert len(found) > 1
        for position, holds in ((29, False), (found[-1].last, False), (found[-1].last - 1, True), (1, True)):
            told(settings, position)
            assert [bool(one.held_by) for one in kept(settings, reader)] == [holds], position
    writer.close()


def test_a_log_without_a_writer_is_retired_at_once(limited: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = limited
    told(settings, 10**6)
    grown(writer, 300)
    before = files(writer)
    writer.close()
    (done,) = compact_now(settings, TOPIC)
    assert done.dropped > 100
    assert files(writer) < before


def test_a_table_with_few_changes_loses_its_old_ones_too(limited: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = limited
    told(settings, 10**6)
    grown(writer, 1)
    for at in range(2, 200):
        writer.append(batch(PAIRS, [(Op.UPDATE, at, {"a": "1", "b": "2", "v": "again"})]))
        writer.commit(Lsn(at), at * HOUR_US)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert retire_now(settings, writer, reader) == 0
        writer.commit()  # closes the segment
        head = writer.head
        writer.drain_seals()
        assert writer.commit() == head
        grown(writer, 1)
        assert retire_now(settings, writer, reader) == 1
        assert topic_of(reader).kept_from == 2
        assert positions_in(reader.read(TOPIC, Position(1), ALL)) == [200]
    writer.close()
    with closing(EmbeddedLogWriter(settings.log.dir, segment_bytes=4096, disk=QuickDisk())) as again:
        grown(again, 1)
        with closing(EmbeddedLogReader(settings.log.dir)) as reader:
            assert positions_in(reader.read(TOPIC, Position(1), ALL)) == [200, 201]


def test_a_table_with_a_change_in_every_commit_loses_its_old_ones_too(limited: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, small = limited
    small.close()
    writer = EmbeddedLogWriter(settings.log.dir, segment_bytes=1 << 20, disk=QuickDisk())
    told(settings, 10**6)

    def changed(hour: int) -> None:
        at = writer.next_position
        writer.append(batch(ORDERS, [(Op.UPDATE, at, order(1, "again"))]))
        writer.commit(Lsn(hour), hour * HOUR_US)
        writer.drain_seals()

    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        for hour in (1, 500):
            changed(hour)
        assert retire_now(settings, writer, reader) == 0
        for hour in (501, 1000):
            changed(hour)
        assert retire_now(settings, writer, reader) == 3
    writer.close()


def test_a_topic_that_was_retired_can_be_compacted(limited: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = limited
    told(settings, 10**6)
    grown(writer, 300)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert retire_now(settings, writer, reader)
        topic = topic_of(reader)
        points = bounds(writer.upkeep.ranges(TOPIC), Settled(300, 300), [], TopicPoints(topic.clean_from, topic.floor))

        def recorded() -> None:
            writer.commit()

        assert compact(writer.upkeep, TOPIC, points, recorded, at_least=0.0).dropped > 20
        now = topic_of(reader)
        assert (now.kept_from, now.clean_from > topic.clean_from) == (topic.kept_from, True)
        with pytest.raises(PositionGone):
            list(reader.read(TOPIC, Position(0), ALL, present_history(reader)))
    writer.close()


def test_who_is_reading_what_is_retired_reads_on_or_is_told(
    limited: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = limited
    monkeypatch.setattr("cdc.log.embedded.reader.JOINED_ROWS", 1)
    told(settings, 10**6)
    grown(writer, 300)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader, closing(EmbeddedLogReader(settings.log.dir)) as other:
        reading = other.read(TOPIC, Position(0), ALL)
        seen = positions_in([next(reading)])
        assert retire_now(settings, writer, reader)
        writer.upkeep.remove_replaced()
        with pytest.raises(PositionGone):
            seen.extend(at for one in reading for at in positions_in([one]))
        assert seen == list(range(1, len(seen) + 1))
    writer.close()


def test_files_that_cannot_be_removed_stay_known_and_go_later(
    limited: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = limited
    told(settings, 10**6)
    grown(writer, 300)
    before = files(writer)

    def refused(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert retire_now(settings, writer, reader)
        with monkeypatch.context() as patched:
            patched.setattr(writer._disk, "remove", refused)
            with pytest.raises(OSError, match="No space left"):
                writer.upkeep.remove_replaced()
        assert files(writer) == before
        writer.upkeep.remove_replaced()
        assert files(writer) < before
    writer.close()


# --- the power goes ----------------------------------------------------------------------------------------------------


@dataclass
class Course:
    """What happened before the power went."""

    head: int = 0
    begins: list[int] = field(default_factory=lambda: [0])
    """From where on the topic was to be kept, each time."""


def retire_some(writer: EmbeddedLogWriter, course: Course) -> None:
    with closing(EmbeddedLogReader(writer._places.root)) as reader:
        closed = writer.upkeep.ranges(TOPIC)
        course.begins.append(closed[len(closed) // 2].last + 1)

        def recorded() -> None:
            writer.commit()

        assert retention.retire(writer.upkeep, topic_of(reader), course.begins[-1], recorded)
        writer.upkeep.remove_replaced()


def script(disk: CrashDisk, course: Course) -> None:
    writer = EmbeddedLogWriter(disk.root, segment_bytes=SEGMENT_BYTES, seal=False, disk=disk)
    try:
        for number in range(1, 17):
            at = writer.next_position
            writer.append(batch(ORDERS, [(Op.UPDATE, at + more, order(1, "again")) for more in range(60)]))
            course.head = writer.commit(Lsn(number), number).position
            if number % 8 == 0:
                seal_closed(disk)
                retire_some(writer, course)
    finally:
        writer.close()


def the_rest_is_there(root: Path, course: Course) -> None:
    with closing(EmbeddedLogReader(root)) as reader:
        head = reader.head().position
        if not head:
            return
        topic = topic_of(reader)
        assert topic.kept_from in course.begins
        begin = max(1, int(topic.kept_from))
        assert positions_in(reader.read(TOPIC, Position(begin - 1), head)) == list(range(begin, head + 1))
        if begin > 1:
            with pytest.raises(PositionGone):
                list(reader.read(TOPIC, Position(0), head, present_history(reader)))


@pytest.mark.parametrize("loss", ["lost", "kept", "torn"])
def test_nothing_but_what_was_retired_is_lost_with_the_power(quick_folder: Path, loss: Loss, seed: int) -> None:
    whole, course = CrashDisk(quick_folder / "whole", 10**9, random.Random(0)), Course()
    script(whole, course)
    the_rest_is_there(quick_folder / "whole", course)
    chance = random.Random(f"{seed}:{loss}")
    # Mostly near the end, where the second retirement is.
    late = range(max(1, whole.operations - 30), whole.operations + 1)
    for crash_at in sorted({*chance.sample(late, 6), *chance.sample(range(1, whole.operations + 1), 4)}):
        print(f"seed {seed}, operation {crash_at}")
        disk, course = CrashDisk(quick_folder / f"before-{crash_at}", crash_at, chance), Course()
        try:
            script(disk, course)
        except Crash:
            pass
        root = quick_folder / f"after-{crash_at}"
        disk.after_power_loss(root, loss)
        try:
            the_rest_is_there(root, course)  # for whoever reads before a writer has been there
        except LogCorrupt as error:
            assert "starting capture writes it again" in str(error)  # noqa: PT017
        with closing(EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk())) as writer:
            assert writer.head.position >= course.head
            the_rest_is_there(root, course)
            writer.drain_seals()
            if writer.head.position and len(writer.upkeep.ranges(TOPIC)) > 3:
                retire_some(writer, course)
                the_rest_is_there(root, course)


def emptied_since(limited: tuple[Settings, EmbeddedLogWriter], reader: LogReader) -> tuple[Compaction, int]:
    """Of orders the beginning is gone; they were truncated since, and read again. Returns where."""
    settings, writer = limited
    grown(writer, 300)
    retire_now(settings, writer, reader)
    emptied_at = writer.next_position
    writer.append(batch(ORDERS, [(Op.TRUNCATE, emptied_at, None)]))
    writer.append(batch(ORDERS, [(Op.READ, emptied_at + one, order(one, "again")) for one in range(1, 11)]))
    writer.commit(Lsn(400), 300 * HOUR_US)
    return Compaction(settings, writer.upkeep, threading.Event(), free=lambda _: 10**15), int(emptied_at)


def test_a_topic_that_was_emptied_since_its_beginning_went_can_be_read_from_0_again(
    limited: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = limited
    told(settings, 10**6)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        worker_, at = emptied_since(limited, reader)
        topic = topic_of(reader)
        assert 1 < topic.kept_from < at
        looked(worker_, reader, writer)
        with pytest.raises(PositionGone):
            list(reader.read(TOPIC, Position(0), ALL, present_history(reader)))
        told(settings, 0)  # a new store: now somebody needs it
        looked(worker_, reader, writer)
        writer.append(batch(ORDERS, [(Op.UPDATE, writer.next_position, order(1, "once more"))]))  # the one before was closed
        writer.commit(Lsn(401), 300 * HOUR_US)
        writer.drain_seals()
        told(settings, 0)
        looked(worker_, reader, writer)
        now = topic_of(reader)
        assert (now.whole, now.kept_from, now.floor, now.clean_from) == (True, topic.kept_from, topic.floor, at + 1)
        found = positions_in(reader.read(TOPIC, Position(0), ALL, present_history(reader)))
        assert found == list(range(topic.kept_from, at + 12))
        assert positions_in(reader.read(TOPIC, Position(7), ALL, present_history(reader))) == found, (
            "who began at 0 is there already"
        )
        for history in (None, present_history(reader).partition(".")[0]):
            with pytest.raises(PositionGone, match="are gone"):
                list(reader.read(TOPIC, Position(0), ALL, history))
        (kept_now,) = kept(settings, reader)
        assert kept_now.whole
        assert kept_now.held_by == {"told": 0}, "it is on its way"
        writer.close()
        with closing(EmbeddedLogWriter(settings.log.dir, segment_bytes=4096, disk=QuickDisk())) as again:
            for _ in range(30):  # beyond the next checkpoint
                again.append(batch(ORDERS, [(Op.UPDATE, again.next_position, order(2, "later"))]))
                again.commit(Lsn(500), 300 * HOUR_US)
            with closing(EmbeddedLogReader(settings.log.dir)) as after:
                assert topic_of(after).whole
                again.upkeep.retire(TOPIC, floor=now.floor, clean_from=now.clean_from + 1)
                again.commit()
                assert topic_of(after).whole, "compaction changes nothing of that"
                later = next(one for one in again.upkeep.ranges(TOPIC) if one.first > now.kept_from).first
                points = max(later, now.clean_from + 1)
                again.upkeep.retire(TOPIC, kept_from=later, floor=points, clean_from=points)
                again.commit()
                assert not topic_of(after).whole, "more is gone: it has to be looked at again"


def test_a_topic_is_not_called_whole_before_every_store_has_come_to_where_it_was_emptied(
    limited: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = limited
    told(settings, 10**6)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        _, at = emptied_since(limited, reader)
        topic = topic_of(reader)
        calls: list[int] = []
        for pins in ([at - 1], [topic.kept_from - 1]):
            assert not made_whole(writer.upkeep, topic, at, pins, lambda: calls.append(1))
        assert not made_whole(writer.upkeep, topic, topic.kept_from - 1, [], lambda: calls.append(1)), (
            "what emptied it is gone, too"
        )
        assert not calls
        writer.upkeep.close_newest(TOPIC, at)
        writer.commit()
        writer.append(batch(ORDERS, [(Op.UPDATE, writer.next_position, order(1, "once more"))]))
        writer.commit(Lsn(401), 300 * HOUR_US)
        assert made_whole(writer.upkeep, topic, at, [at, 0], writer.commit)
    writer.close()
