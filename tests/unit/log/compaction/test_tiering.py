"""The thread that moves sealed files to the tier, and what the power may take of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from cdc.background import Interrupted
from cdc.compaction.tiermoves import Tiering, tiering_for
from cdc.errors import LogAway
from cdc.log.contract import LogTiering
from cdc.log.embedded.away import TierPlace as Place
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealer import seal
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.memory import MemoryLog, MemoryWriter
from cdc.model.position import Lsn, Position
from cdc.settings.models import Log, Settings, Source
from cdc.settings.tier import Tier
from tests.unit.log.compaction.test_merge import SEGMENT_BYTES
from tests.unit.log.compaction.test_power_loss import Course, compact_some, everything_is_there
from tests.unit.log.compaction.test_worker import grown
from tests.unit.log.disks import Crash, CrashDisk, Loss, QuickDisk
from tests.unit.log.tiers import SLOW_DOWN, faulty
from tests.unit.sinks.test_past import History

POINTS = 8
"""The number of operations at which the power goes, chosen anew in each run."""


def settings_of(folder: Path, **options: object) -> Settings:
    tier = Tier.model_validate({"url": f"file://{folder}/tier", "after_hours": 0, **options})
    return Settings(source=Source(dsn=SecretStr("host=h")), log=Log(dir=folder / "log", segment_bytes=4096, tier=tier))


def until(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)


def stubs(folder: Path) -> int:
    return len(list((folder / "log").rglob("*.away")))


def positions(folder: Path) -> list[int]:
    with closing(EmbeddedLogReader(folder / "log")) as reader:
        return [
            int(at) for batch in reader.read("public.orders", Position(0), Position(2**40)) for at in batch.column(0).to_pylist()
        ]


def thread_of(settings: Settings, writer: EmbeddedLogWriter, stop: threading.Event) -> Tiering:
    found = tiering_for(settings, writer, stop)
    assert found is not None
    return found


def test_it_moves_what_is_old_says_what_keeps_it_and_goes_on(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, stop = faulty(monkeypatch), threading.Event()
    with closing(EmbeddedLogWriter(quick_folder / "log", segment_bytes=4096, disk=QuickDisk())) as writer:
        grown(writer, 30)
        thread = thread_of(settings_of(quick_folder), writer, stop)
        store.faults["put"] = [OSError(SLOW_DOWN)] * 2
        thread.start()
        until(lambda: thread.alarm() is not None, "it says nothing")
        assert "nothing moves to or from the log's tier" in (alarm := thread.alarm() or "says no more")
        assert "secret" not in alarm
        grown(writer, 1)  # capture goes on meanwhile
        until(lambda: stubs(quick_folder) > 1 and thread.alarm() is None, "it does not go on")
        stop.set()
        thread.join()
        assert positions(quick_folder) == list(range(1, 32))


def test_a_file_that_fails_keeps_no_other_from_going(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = faulty(monkeypatch)
    with closing(EmbeddedLogWriter(quick_folder / "log", segment_bytes=4096, disk=QuickDisk())) as writer:
        grown(writer, 30)
        writer.drain_seals()
        thread = thread_of(settings_of(quick_folder), writer, threading.Event())
        store.faults["put"] = [OSError(SLOW_DOWN)]
        with pytest.raises(LogAway):
            thread.look(0.0)
        assert "list" in store.calls, "it sweeps all the same"
        some = stubs(quick_folder)
        assert some > 1
        thread.look(0.0)
        assert stubs(quick_folder) == some + 1


def test_a_store_that_does_not_answer_is_not_asked_for_every_file(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = faulty(monkeypatch)
    with closing(EmbeddedLogWriter(quick_folder / "log", segment_bytes=4096, disk=QuickDisk())) as writer:
        grown(writer, 30)
        writer.drain_seals()
        store.faults["put"] = [OSError(SLOW_DOWN)] * 100
        with pytest.raises(LogAway):
            thread_of(settings_of(quick_folder), writer, threading.Event()).look(0.0)
        assert store.calls.count("put") == 2


def test_only_what_is_old_enough_goes_and_all_comes_back(quick_folder: Path) -> None:
    stop = threading.Event()
    with closing(EmbeddedLogWriter(quick_folder / "log", segment_bytes=4096, disk=QuickDisk())) as writer:
        grown(writer, 30)
        thread_of(settings_of(quick_folder, after_hours=100), writer, stop).look(0.0)
        assert not stubs(quick_folder)
        thread_of(settings_of(quick_folder, after_hours=15), writer, stop).look(0.0)
        some = stubs(quick_folder)
        thread_of(settings_of(quick_folder), writer, stop).look(0.0)
        assert 0 < some < stubs(quick_folder)
        back = thread_of(settings_of(quick_folder, back=True), writer, stop)
        stop.set()
        with pytest.raises(Interrupted):
            back.look(0.0)
        stop.clear()
        back.look(0.0)
        assert not stubs(quick_folder)
        assert not list((quick_folder / "tier").rglob("*.parquet"))
        assert positions(quick_folder) == list(range(1, 31))


def test_there_is_none_where_none_is_configured(quick_folder: Path) -> None:
    bare = Settings(source=Source(dsn=SecretStr("host=h")), log=Log(dir=quick_folder / "log"))
    assert tiering_for(bare, MemoryWriter(MemoryLog()), threading.Event()) is None
    assert tiering_for(settings_of(quick_folder), MemoryWriter(MemoryLog()), threading.Event()) is None


@pytest.mark.parametrize(
    "url",
    ["s3://bucket", "s3://bucket/a/b?region=eu-1&endpoint_override=http://h:1", "gs://bucket/a", "file:///mnt/some where/x"],
)
def test_addresses(url: str) -> None:
    assert Tier(url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "bucket", "s3:/bucket", "s3://", "s3://key:secret@bucket/a", "s3://bucket/a?secret_key=x", "gs://bucket/a?region=x", "file://relative",
        "file:///a?x=y", "s3://bucket/a#b", "ftp://host/a", "s3://bucket/user@a",
        "s3://bucket/a?endpoint_override=http://user:pw%40host",
    ],
)  # fmt: skip
def test_what_is_no_address_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        Tier(url=url)


def seal_all_closed(disk: CrashDisk) -> None:
    with closing(EmbeddedLogReader(disk.root)) as reader:
        timeline = reader.timeline
        for index in timeline.topics.values() if timeline else ():
            for run in index.segments()[:-1]:
                if not run.generation and not reader.is_sealed(index.name, run):
                    place = SegmentPlace(timeline.log_id if timeline else 0, index.number, index.name, run.segment)
                    seal(LogPlaces(disk.root), disk, place, run)


def put_all_away(moves: LogTiering) -> None:
    for place in [one for one in moves.closed(2**62) if not one.away]:
        moves.put_away(place)


def script(disk: CrashDisk, course: Course, tier: Place) -> None:
    writer = EmbeddedLogWriter(disk.root, segment_bytes=SEGMENT_BYTES, seal=False, disk=disk)
    try:
        for number, one in enumerate(course.batches, 1):
            writer.append(one)
            course.head = writer.commit(Lsn(number), number).position
            course.cuts.append(course.head)
            if number % (len(course.batches) // 3) == 0:
                seal_all_closed(disk)
                with closing(EmbeddedLogReader(disk.root)) as reader, closing(writer.tiering(tier)) as moves:
                    moves.begin()
                    put_all_away(moves)
                    compact_some(writer, reader, course, forget=False)
                    put_all_away(moves)
                    moves.sweep()
                    for place in [one for one in moves.closed(2**62) if one.away][::2]:
                        moves.bring_back(place)
                    moves.sweep()
    finally:
        writer.close()


@pytest.mark.parametrize("loss", ["lost", "kept", "torn"])
def test_nothing_is_lost_with_the_power(quick_folder: Path, loss: Loss, seed: int) -> None:
    """Files go away, are compacted there, come back and are swept from the tier; what is in the tier is what had been written there then."""
    history = History(random.Random(seed), length=70)
    chance = random.Random(f"{seed}:{loss}")
    whole = CrashDisk(quick_folder / "whole", 10**9, chance)
    script(whole, Course(history.batches), Place(f"file://{quick_folder}/tier", 2**30))
    assert list((quick_folder / "tier").rglob("*.parquet"))
    for crash_at in sorted(chance.sample(range(1, whole.operations + 1), POINTS)):
        print(f"seed {seed}, operation {crash_at}")
        tier = Place(f"file://{quick_folder}/tier-{crash_at}", 2**30)
        disk, course = CrashDisk(quick_folder / f"before-{crash_at}", crash_at, chance), Course(history.batches)
        try:
            script(disk, course, tier)
        except Crash:
            pass
        root = quick_folder / f"after-{crash_at}"
        disk.after_power_loss(root, loss)
        with closing(EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk())) as writer:
            assert writer.head.position >= course.head
            with closing(writer.tiering(tier)) as moves:
                moves.begin()
                everything_is_there(root, course)
                writer.drain_seals()
                put_all_away(moves)
                moves.sweep()
            everything_is_there(root, course)
            assert not list(root.rglob(".aside-*"))
