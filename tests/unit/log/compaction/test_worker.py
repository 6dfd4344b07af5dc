"""The thread that compacts beside a writer, how old positions are, and who holds it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

from cdc import background
from cdc.compaction import worker
from cdc.compaction.bounds import Settled, TopicPoints, bounds, due, groups
from cdc.compaction.pins import Pins
from cdc.compaction.standing import compact_now
from cdc.compaction.worker import Compaction, settled
from cdc.errors import ConfigError
from cdc.log.contract import ClosedRange
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn, Position
from cdc.model.topic import TopicSchema
from cdc.settings.models import Log, LogTable, Settings, Source
from cdc.state import status
from cdc.state.status import FollowerStatus, GenerationStatus
from cdc.state.strangers import forget
from sinks import options_model
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.unit.log.disks import QuickDisk

HOUR_US = 3_600_000_000
ALL = TopicSchema.of(ORDERS)


def ranges(*rows: int, topic: str = "public.orders") -> list[ClosedRange]:
    """Of 100 positions each."""
    return [ClosedRange(topic, 100 * at + 1, 100 * at + 90, count, 1000, False) for at, count in enumerate(rows)]


def test_the_clean_point_lies_where_a_range_ends_and_never_falls() -> None:
    found = ranges(50, 50, 50)
    none = TopicPoints(0, 0)
    assert bounds(found, Settled(300, 0), [], none) == (291, 0)
    assert bounds(found, Settled(289, 200), [], none) == (191, 191)
    assert bounds(found, Settled(300, 300), [190, 250], none) == (191, 191), "the slowest store decides"
    assert bounds(found, Settled(300, 100), [190, 250], none) == (191, 91)
    assert bounds(found, Settled(300, 300), [0], none) == none
    assert bounds(found, Settled(300, 300), [95], TopicPoints(191, 150)) == (191, 150)
    assert bounds(found, Settled(95, 300), [], none) == (91, 91), "a floor is never above the clean point"


def test_a_topic_s_turn_comes_when_half_of_what_can_be_dropped_is_new() -> None:
    found = ranges(50, 50, 50, 50)
    assert due(found, 400, 0)
    assert due(found, 400, 190)
    assert not due(found, 400, 290)
    assert not due(found, 191, 190), "nothing new below the clean point"
    assert not due([], 400, 0)


def test_neighbours_are_written_together_up_to_a_size_and_what_stays_whole_is_left_alone() -> None:
    found = ranges(50, 50, 50, 50, 50)
    stretches = groups(found, [10, 10, 50, 0, 25], 700)
    assert [([one.first for one in some], rows) for some, rows in stretches] == [([1, 101], 20), ([301, 401], 25)]
    assert len(groups(found, [40, 40, 40, 40, 40], 1000)) == 5


@pytest.fixture
def shop(quick_folder: Path) -> tuple[Settings, EmbeddedLogWriter]:
    settings = Settings(
        source=Source(dsn=SecretStr("host=h")),
        run_dir=quick_folder / "run",
        log=Log(dir=quick_folder / "log", segment_bytes=4096, cleanup="compact", history_hours=0, reserve_mb=0),
        stores={"told": options_model("console").model_validate({"kind": "console", "tables": ["public.orders"]})},
    )
    return settings, EmbeddedLogWriter(settings.log.dir, segment_bytes=4096, disk=QuickDisk())


def commit_until(writer: EmbeddedLogWriter, done: Callable[[], bool]) -> None:
    """As capture does, or for a minute at most."""
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        writer.commit()
        time.sleep(0.02)


def grown(writer: EmbeddedLogWriter, count: int, rows: int = 1) -> None:
    """So many commits of so many rows."""
    for _ in range(count):
        at = writer.next_position
        writer.append(batch(ORDERS, [(Op.UPDATE, at + number, order(1, "again")) for number in range(rows)]))
        writer.commit(Lsn(int(at)), int(at) * HOUR_US)
    writer.drain_seals()


def test_a_clock_that_jumps_ahead_makes_nothing_old(shop: tuple[Settings, EmbeddedLogWriter]) -> None:
    _, writer = shop
    grown(writer, 30)
    log = Log(history_hours=9.5, deletes_hours=19.5)
    with closing(EmbeddedLogReader(writer._places.root)) as reader:
        (topic,) = reader.topics()
        for now_us in (30 * HOUR_US, 10**6 * HOUR_US, 2**62):
            assert settled(reader, log, topic, writer.upkeep.ranges(topic.name), now_us) == (20, 10)
        assert settled(reader, log, topic, writer.upkeep.ranges(topic.name), 25 * HOUR_US) == (15, 5), (
            "where this machine's clock is behind, it counts"
        )
    writer.close()


def told(settings: Settings, position: int, state: str = "following", name: str = "told") -> None:
    said = FollowerStatus(name, position=position, state=state)
    status.stamp(said)
    status.write(settings.run_dir, f"follow-{name}", said)


def test_a_store_that_reads_on_holds_back_what_it_lacks_and_one_that_stands_still_only_for_a_while(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    writer.close()
    hours = settings.log.pin_hours
    found = Pins(lambda: settings)
    (pin,) = found.look(0.0)
    assert pin.position == 0, "never started"
    assert pin.holds(ALL)
    assert found.look(3600 * hours - 1)
    assert not found.look(3600 * hours)
    told(settings, 40)
    (pin,) = found.look(3600 * hours)
    assert pin.position == 40
    assert found.look(7200 * hours - 1), "it reads, however far behind it is"
    assert not found.look(7200 * hours), "it says that it follows, and does not get on"
    told(settings, 40, "waiting")
    assert not found.look(7200 * hours)
    told(settings, 41, "waiting")
    assert found.look(9000 * hours), "it has got on"
    assert not found.look(9000 * hours + 3600 * hours)
    assert found.look(9000 * hours + 1800 * hours)
    assert Pins(lambda: settings).look(0.0), "whoever looks for the first time goes by its own last word"


def test_a_generation_that_is_built_or_kept_holds_back_what_it_lacks_within_the_same_bounds(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    grown(writer, 50)
    told(settings, 50)
    hours = settings.log.pin_hours
    said = GenerationStatus(store="told", number=2, position=30)
    status.stamp(said)
    status.write(settings.run_dir, said.part, said)
    found = Pins(lambda: settings)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert [(pin.store, pin.position, pin.tables) for pin in found.look(0.0, reader)] == [
            ("told", 50, ("public.orders",)),
            ("told@2", 30, ("public.orders",)),
        ]
        assert [pin.store for pin in found.look(3600 * hours, reader)] == ["told"], "it does not get on"
        bounded = settings.model_copy(update={"log": settings.log.model_copy(update={"pin_mb": 0})})
        lapsed = {pin.store: pin.lapsed for pin in Pins(lambda: bounded).every(0.0, reader)}
        assert (lapsed["told"], "log.pin_mb" in (lapsed["told@2"] or "")) == (None, True)
    forget(settings.run_dir, "told")
    assert [pin.store for pin in Pins(lambda: settings).look(0.0)] == ["told"]
    writer.close()


def test_a_store_that_is_added_while_capture_runs_holds_compaction_back_from_the_next_look_on(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)
    new = options_model("console").model_validate({"kind": "console", "tables": ["public.orders"]})
    now = [settings]
    compaction = Compaction(settings, writer.upkeep, threading.Event(), in_force=lambda: now[0])
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        (topic,) = reader.topics()
        old = Settled(10**6, 10**6)
        assert worker.wanted(reader, writer.upkeep, topic, old, compaction._pins.look(0.0)).clean_from > 0
        now[0] = settings.model_copy(update={"stores": {**settings.stores, "new": new}})
        assert worker.wanted(reader, writer.upkeep, topic, old, compaction._pins.look(0.0)) == (0, 0)
    writer.close()


def test_where_a_store_names_places_by_columns_that_change_everything_stays(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    grown(writer, 60)
    writer.close()
    given = {"kind": "redis", "url": "redis://h", "tables": {"select": ["public.*"], "public.orders": {"key": "o:{status}:{id}"}}}
    places = settings.model_copy(update={"stores": {"cache": options_model("redis").model_validate(given)}})
    told(settings, 60, name="cache")
    assert list(compact_now(places, None)) == []
    with pytest.raises(ConfigError, match=r"public.orders is kept whole: a store names places of its rows"):
        list(compact_now(places, "public.orders"))
    given["tables"] = ["public.orders"]
    others = settings.model_copy(update={"stores": {"cache": options_model("redis").model_validate(given)}})
    assert [done.dropped > 0 for done in compact_now(others, "public.orders")] == [True]


def test_compaction_at_once_includes_what_was_left_unsealed(shop: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = shop
    writer.close()
    told(settings, 10**6)
    with closing(EmbeddedLogWriter(settings.log.dir, segment_bytes=4096, disk=QuickDisk(), seal=False)) as unsealing:
        grown(unsealing, 300)
    (done,) = compact_now(settings, None)
    assert done.dropped > 200


@pytest.mark.parametrize("cleanup", ["compact", "keep"])
def test_the_thread_compacts_while_the_writer_goes_on(shop: tuple[Settings, EmbeddedLogWriter], cleanup: str) -> None:
    settings, writer = shop
    table = LogTable.model_validate({"cleanup": cleanup})
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"tables": {"public.o*": table}})})
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    told(settings, 10**6)
    thread.start()
    reader = EmbeddedLogReader(settings.log.dir)
    deadline = time.monotonic() + (60 if cleanup == "compact" else 3)
    while time.monotonic() < deadline:
        grown(writer, 2, 100)
        (topic,) = reader.topics()
        if topic.rows < topic.last - 500:
            break
        time.sleep(0.02)
    stop.set()
    thread.join()
    assert thread.alarm() is None
    (topic,) = reader.topics()
    assert (topic.clean_from > 500) == (cleanup == "compact")
    if cleanup == "compact":
        assert topic.rows < topic.last - 500
        positions = [at for one in reader.read(topic.name, Position(0), reader.head().position) for at in one.column(0).to_pylist()]
        assert positions[-1] == topic.last
    else:
        assert topic.rows == topic.last
    reader.close()
    writer.close()


def test_a_disk_that_refuses_is_said_and_compaction_goes_on_by_itself(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)
    full = threading.Event()
    full.set()
    original = worker.compact

    def refused(*given: object, **named: object) -> object:
        if full.is_set():
            raise OSError(28, "No space left on device", str(settings.log.dir))
        return original(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "compact", refused)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    thread.start()
    deadline = time.monotonic() + 60
    while thread.alarm() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "the log is not being compacted" in (thread.alarm() or "")
    full.clear()
    reader = EmbeddedLogReader(settings.log.dir)
    commit_until(writer, lambda: reader.topics()[0].clean_from > 0)
    assert reader.topics()[0].clean_from > 0
    stop.set()
    thread.join()
    reader.close()
    writer.close()


def test_compaction_writes_nothing_into_the_reserve_and_gives_back_what_was_replaced_at_once(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"reserve_mb": 10, "history_hours": 1})})
    told(settings, 10**6)
    grown(writer, 300)
    topic = "public.orders"
    one = writer.upkeep.ranges(topic)[0]
    writer.upkeep.rewrite(topic, one.first, one.last, writer.upkeep.batches(one))
    writer.commit()
    folder = LogPlaces(settings.log.dir).folder(topic)
    before = len(list(folder.iterdir()))
    room = [10**7 + 1000]
    worker_ = Compaction(settings, writer.upkeep, threading.Event(), free=lambda _: room[0])
    problems: list[str] = []
    worker_._free()
    assert len(list(folder.iterdir())) == before, "somebody may be reading it"
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        worker_._look(reader, problems)
        (said,) = problems
        assert "less than 10 MB (log.reserve_mb) would be left" in said, "the next stretch would have taken more than is left"
        assert (reader.topics()[0].clean_from, len(list(folder.iterdir()))) == (0, before - 1), "its room might have helped"
    writer.close()


def test_a_disk_that_refuses_gets_back_what_was_replaced_at_once_whatever_it_says_is_free(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota is not seen in what is free."""
    settings, writer = shop
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"history_hours": 1})})
    told(settings, 10**6)
    grown(writer, 300)
    topic = "public.orders"
    one = writer.upkeep.ranges(topic)[0]
    writer.upkeep.rewrite(topic, one.first, one.last, writer.upkeep.batches(one))
    writer.commit()
    folder = LogPlaces(settings.log.dir).folder(topic)
    before = len(list(folder.iterdir()))

    def refused(*_: object, **__: object) -> object:
        raise OSError(28, "No space left on device", str(settings.log.dir))

    monkeypatch.setattr(worker, "compact", refused)
    thread = Compaction(settings, writer.upkeep, threading.Event(), free=lambda _: 10**15)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        thread._look(reader, [])
        assert len(list(folder.iterdir())) == before, "somebody may be reading it"
        thread._look(reader, [])
        assert len(list(folder.iterdir())) == before - 1
    writer.close()


def test_while_a_commit_is_waited_for_what_was_recorded_before_is_freed(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk that commit cannot be made before it."""
    settings, writer = shop
    grown(writer, 300)
    topic = "public.orders"
    first, second = writer.upkeep.ranges(topic)[:2]
    writer.upkeep.rewrite(topic, first.first, first.last, writer.upkeep.batches(first))
    writer.commit()
    folder = LogPlaces(settings.log.dir).folder(topic)
    before = len(list(folder.iterdir()))
    writer.upkeep.rewrite(topic, second.first, second.last, writer.upkeep.batches(second))
    monkeypatch.setattr(worker, "FREED_S", 0.0)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop, free=lambda _: -1)
    waits = threading.Thread(target=thread._recorded)
    waits.start()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(folder.iterdir())) == before, "one has come, one has gone"
    assert writer.upkeep.waiting()
    writer.commit()
    waits.join(60)
    assert not waits.is_alive()
    writer.close()


def test_a_replaced_file_that_cannot_go_is_said_and_stops_no_compaction(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)

    def refused(grace_s: float = 0.0) -> None:  # noqa: ARG001
        raise OSError(1, "Operation not permitted", "a file")

    monkeypatch.setattr(writer.upkeep, "remove_replaced", refused)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    thread.start()
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        commit_until(writer, lambda: reader.topics()[0].clean_from > 0 and thread.alarm() is not None)
        assert reader.topics()[0].clean_from > 0
        assert "Operation not permitted: a file" in (thread.alarm() or "")
    stop.set()
    thread.join()
    writer.close()


def test_a_topic_that_cannot_be_compacted_keeps_no_other_from_it_and_is_left_alone_for_longer_and_longer(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)
    for at in range(int(writer.next_position), int(writer.next_position) + 300):
        writer.append(batch(PAIRS, [(Op.UPDATE, at, {"a": "1", "b": "2", "v": "again"})]))
        writer.commit(Lsn(at), at * HOUR_US)
    writer.drain_seals()
    original, pauses = worker.compact, []

    def refused(upkeep: object, topic: str, *given: object, **named: object) -> object:
        if topic == "public.orders":
            pauses.append(thread._failed.get(topic, worker.NONE).pause_s)
            raise ValueError("a bug")
        return original(upkeep, topic, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "compact", refused)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    thread.start()
    reader = EmbeddedLogReader(settings.log.dir)
    commit_until(writer, lambda: all(one.clean_from for one in reader.topics() if one.name == "public.pairs"))
    assert {one.name: one.clean_from > 0 for one in reader.topics()} == {"public.orders": False, "public.pairs": True}
    commit_until(writer, lambda: len(pauses) >= 4)
    stop.set()
    thread.join()
    first, second, third, fourth = pauses[:4]
    assert 0.0 == first < second < third < fourth
    reader.close()
    writer.close()


def test_the_thread_ends_within_one_batch(shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)
    begun = threading.Event()
    original = writer.upkeep.batches

    def slow(*given: object) -> Iterator[pa.RecordBatch]:
        for one in original(*given):  # type: ignore[arg-type]
            begun.set()
            time.sleep(0.5)
            yield one

    monkeypatch.setattr(writer.upkeep, "batches", slow)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    thread.start()
    assert begun.wait(60)
    stop.set()
    began = time.monotonic()
    thread.join()
    assert time.monotonic() - began < 20, "the topic takes a minute or more"
    writer.close()


def test_a_tier_that_hangs_keeps_nobody_from_ending_and_nothing_is_written_afterwards(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)
    asked, answers = threading.Event(), threading.Event()
    original = writer.upkeep.batches

    def hangs(*given: object) -> Iterator[pa.RecordBatch]:
        asked.set()
        assert answers.wait(60)
        yield from original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(writer.upkeep, "batches", hangs)
    stop = threading.Event()
    thread = Compaction(settings, writer.upkeep, stop)
    thread.start()
    assert asked.wait(60)
    stop.set()
    background.join((thread, thread), within_s=0.05)
    assert thread._thread.is_alive()
    writer.close()
    files = sorted(settings.log.dir.rglob("*"))
    answers.set()
    thread.join(60)
    assert not thread._thread.is_alive()
    assert sorted(settings.log.dir.rglob("*")) == files
    assert thread.alarm() is None


def test_what_a_store_has_passed_and_may_have_to_read_again_is_held_back(shop: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = shop
    writer.close()
    said = FollowerStatus("told", position=40, state="following", returns_to=7)
    status.stamp(said)
    status.write(settings.run_dir, "follow-told", said)
    found = Pins(lambda: settings)
    assert {one.store: one.position for one in found.look(0.0)} == {"told": 40, "told (events not taken)": 6}
    assert [one.store for one in found.every(3600 * settings.log.pin_hours) if one.lapsed is not None] == [
        "told",
        "told (events not taken)",
    ]


def test_what_a_store_did_before_the_process_began_counts_and_one_that_lacks_nothing_is_never_late(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    grown(writer, 50)  # long ago
    long_s = 3600 * settings.log.pin_hours
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        for position, moved_s_ago, holds in ((20, 10, True), (20, long_s + 60, False), (50, long_s + 60, True)):
            said = FollowerStatus("told", position=position, state="following", moved_at=time.time() - moved_s_ago)
            status.stamp(said)
            status.write(settings.run_dir, "follow-told", said)
            (pin,) = Pins(lambda: settings).every(0.0, reader)
            assert (pin.lapsed is None) == holds, position
            if not holds:
                assert "log.pin_hours" in (pin.lapsed or "")
        found = Pins(lambda: settings)
        assert found.look(0.0, reader)
        assert found.look(2 * long_s, reader), "it has had nothing to read since"
    writer.close()


def test_a_store_that_is_added_while_what_stays_is_chosen_loses_nothing(
    shop: tuple[Settings, EmbeddedLogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, writer = shop
    told(settings, 10**6)
    grown(writer, 300)
    new = options_model("console").model_validate({"kind": "console", "tables": ["public.orders"]})
    now = [settings]
    compaction = Compaction(settings, writer.upkeep, threading.Event(), in_force=lambda: now[0])
    original = writer.upkeep.batches

    def added(*given: object) -> Iterator[pa.RecordBatch]:
        now[0] = settings.model_copy(update={"stores": {**settings.stores, "new": new}})
        yield from original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(writer.upkeep, "batches", added)
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        problems: list[str] = []
        compaction._look(reader, problems)
        assert not problems
        assert not writer.upkeep.waiting()
        assert reader.topics()[0].clean_from == 0
    writer.close()


def looked(compaction: Compaction, reader: EmbeddedLogReader, writer: EmbeddedLogWriter) -> list[str]:
    """What one look finds wrong."""
    problems: list[str] = []
    thread = threading.Thread(target=compaction._look, args=(reader, problems), daemon=True)
    thread.start()
    commit_until(writer, lambda: not thread.is_alive())
    thread.join()
    return problems


def test_while_the_disk_has_less_than_the_reserve_what_may_go_goes_early(shop: tuple[Settings, EmbeddedLogWriter]) -> None:
    settings, writer = shop
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"reserve_mb": 10})})
    told(settings, 10**6)
    for first in range(0, 300, 30):  # of 30 rows one is superseded: too few to write all of them again
        at = writer.next_position
        keys = [*range(first, first + 29), first]
        writer.append(batch(ORDERS, [(Op.UPDATE, at + number, order(key, "now" * 20)) for number, key in enumerate(keys)]))
        writer.commit(Lsn(int(at)), int(at) * HOUR_US)
    writer.drain_seals()
    before = writer.upkeep.ranges("public.orders")
    room = [10**9]
    worker_ = Compaction(settings, writer.upkeep, threading.Event(), free=lambda _: room[0])
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert (looked(worker_, reader, writer), writer.upkeep.ranges("public.orders")) == ([], before)
        room[0] = 10**7 - 1
        assert worker_._has_become_scarce()
        (said,) = looked(worker_, reader, writer)
        assert not worker_._has_become_scarce(), "each look afterwards comes in its time"
        assert "less than 10 MB (log.reserve_mb) is left" in said
        after = writer.upkeep.ranges("public.orders")
        assert sum(one.rows for one in after) < sum(one.rows for one in before)
        room[0] = 10**9
        assert looked(worker_, reader, writer) == []
    writer.close()


def test_not_even_a_full_disk_takes_what_a_store_has_not_read_or_more_than_half_of_what_is_left(
    shop: tuple[Settings, EmbeddedLogWriter],
) -> None:
    settings, writer = shop
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"reserve_mb": 10})})
    told(settings, 0)
    grown(writer, 200)
    before = writer.upkeep.ranges("public.orders")
    room = [10**7 - 1]
    worker_ = Compaction(settings, writer.upkeep, threading.Event(), free=lambda _: room[0])
    with closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert (len(looked(worker_, reader, writer)), writer.upkeep.ranges("public.orders")) == (1, before)
        told(settings, 10**6)
        room[0] = 100
        assert "would be left" in looked(worker_, reader, writer)[-1]
        assert writer.upkeep.ranges("public.orders") == before
        room[0] = 10**7 - 1
        worker_._failed.clear()
        looked(worker_, reader, writer)
        assert sum(one.rows for one in writer.upkeep.ranges("public.orders")) < 200
    writer.close()
