"""Sealed files in a tier: put away, read through the cache, brought back, swept; with every fault of the store, and a crash at every step."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.crashpoint import Fault, armed
from cdc.errors import ConfigError, LogAway, LogCorrupt
from cdc.follow.follower import Follower, Rest
from cdc.log.embedded import away, inspect, tierstore
from cdc.log.embedded.away import TierPlace, tier_of
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.tierfiles import EmbeddedTiering
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import parquet_files
from cdc.model.position import Lsn, Position
from sinks.memory import STORES, Options
from tests.faults import points
from tests.unit.log.changes import ORDERS, USERS, changes, positions_in
from tests.unit.log.test_upkeep import TOPIC, opened, replace, runs
from tests.unit.log.tiers import SLOW_DOWN, FaultyHandler, faulty

ALL = list(range(1, 101, 2))
PLENTY = 2**30
HEAD = Position(2**40)


@pytest.fixture
def root(quick_folder: Path) -> Path:
    return quick_folder / "log"


@pytest.fixture
def log(root: Path) -> Iterator[EmbeddedLogWriter]:
    """Orders at odd positions up to 100, users at even ones: several segments of each, all but the newest sealed."""
    with closing(opened(root)) as writer:
        for start in range(1, 100, 20):
            writer.append(changes(ORDERS, range(start, start + 20, 2)))
            writer.append(changes(USERS, range(start + 1, start + 20, 2)))
            writer.commit(Lsn(start), 0)
        writer.drain_seals()
        yield writer


@pytest.fixture
def store(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyHandler:
    (quick_folder / "tier").mkdir()
    return faulty(monkeypatch)


def tiering(writer: EmbeddedLogWriter, root: Path, cache_bytes: int = PLENTY) -> EmbeddedTiering:
    found = writer.tiering(TierPlace(f"file://{root.parent}/tier", cache_bytes))
    found.begin()
    return found


def all_away(moves: EmbeddedTiering) -> int:
    return sum(moves.put_away(place) > 0 for place in list(moves.closed(2**62)) if not place.away)


def all_back(moves: EmbeddedTiering) -> int:
    return sum(moves.bring_back(place) > 0 for place in list(moves.closed(2**62)) if place.away)


def stubs(root: Path) -> list[Path]:
    return sorted(root.rglob("*.away"))


def local(root: Path) -> list[Path]:
    return sorted((root / "topics").rglob("*.parquet"))


def objects(root: Path) -> list[Path]:
    return sorted((root.parent / "tier").rglob("*.parquet"))


def copies(root: Path) -> list[Path]:
    return sorted((root / "cache").glob("*.parquet"))


def read(root: Path, after: int = 0, topic: str = TOPIC) -> list[int]:
    with closing(EmbeddedLogReader(root)) as reader:
        return positions_in(reader.read(topic, Position(after), HEAD))


def test_what_is_away_is_read_and_comes_back(log: EmbeddedLogWriter, root: Path) -> None:
    before, standing = local(root), EmbeddedLogReader(root)
    assert positions_in(standing.read(TOPIC, Position(0), HEAD)) == ALL
    with closing(tiering(log, root)) as moves:
        count = all_away(moves)
        assert count == len(before) - 2 == len(stubs(root)) == len(objects(root))
        assert len(local(root)) == 2, "each topic's newest stays"
        assert read(root) == positions_in(standing.read(TOPIC, Position(0), HEAD)) == ALL
        assert read(root, 31) == [position for position in ALL if position > 31]
        assert {path.stat().st_mode & 0o777 for path in (root / "cache").iterdir()} == {0o600}
        facts = inspect.stat(root)
        assert (facts["away_files"], facts["away_bytes"]) == (count, sum(path.stat().st_size for path in objects(root)))
        assert len(parquet_files(root, TOPIC, Position(0), HEAD)) == 1, "the others are left to our own reader, which fetches them"
        assert all_away(moves) == 0
        assert moves.sweep() == 0
        log.close()
        with closing(opened(root)) as again, closing(tiering(again, root)) as moves:
            assert read(root) == ALL
            assert all_back(moves) == count
            assert local(root) == before
            assert not stubs(root)
            assert moves.sweep() == count
            assert not objects(root)
    assert positions_in(standing.read(TOPIC, Position(0), HEAD)) == ALL, "what it has open has moved"
    shutil.rmtree(root / "cache")
    assert read(root) == ALL
    standing.close()


def test_opening_and_appending_need_no_tier(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    log.close()
    shutil.rmtree(root.parent / "tier")
    with closing(opened(root)) as again, closing(EmbeddedLogReader(root)) as reader:
        position = again.next_position
        again.append(changes(ORDERS, [position]))
        again.commit(Lsn(1000), 0)
        assert [topic.name for topic in reader.topics()] == [TOPIC, USERS.qualified]
        assert positions_in(reader.read(TOPIC, Position(position - 1), HEAD)) == [position]
        assert reader.last_change(TOPIC, HEAD) == position
        with pytest.raises(LogAway) as refused:
            positions_in(reader.read(TOPIC, Position(0), HEAD))
        assert refused.value.retryable
        assert refused.value.hint


def test_replaced_files_leave_the_tier_after_the_log(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
        assert read(root) == ALL
        (one, _, _), (_, two, _), *_ = runs(root)
        replace(log, root, one, two, [3])
        log.commit()
        number = len(objects(root))
        assert moves.sweep() == 0, "the stubs still name them"
        log.upkeep.remove_replaced()
        (root / "topics" / ".DS_Store").write_text("what a file manager leaves in folders")
        assert read(root) == [3, *(position for position in ALL if position > two)]
        held = len(copies(root))
        assert moves.sweep() == 2
        assert len(objects(root)) == number - 2
        assert len(copies(root)) == held - 2, "what is no longer kept stays readable nowhere"
        assert all_away(moves) == 1, "what has replaced them"
        assert read(root) == [3, *(position for position in ALL if position > two)]


def test_compaction_and_moving_meet(log: EmbeddedLogWriter, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction removes a file after its stub has its name, and before the file itself would go."""
    with closing(tiering(log, root)) as moves:
        (one, last, _), *_ = runs(root)
        replace(log, root, one, last, [])
        log.commit()
        [place] = [place for place in [*moves.closed(2**62)] if f"{one:020d}-" in place.file] or [None]
        assert place is None, "what was replaced goes nowhere"
        (one, last, _) = runs(root)[1]
        place = next(place for place in moves.closed(2**62) if place.file.startswith(f"{one:020d}-"))
        replace(log, root, one, last, [])
        log.commit()
        sync = type(log._disk).sync_folder

        def meanwhile(disk: object, path: Path) -> None:
            monkeypatch.undo()
            log.upkeep.remove_replaced()
            sync(disk, path)  # type: ignore[arg-type]

        monkeypatch.setattr(type(log._disk), "sync_folder", meanwhile)
        moves.put_away(place)
    assert not stubs(root)
    assert read(root) == [position for position in ALL if position > last]


@pytest.mark.parametrize("point", points.of("tier"))
def test_a_crash_at_every_step(log: EmbeddedLogWriter, root: Path, point: str) -> None:
    with closing(tiering(log, root)) as moves:
        if point.startswith("tier.back"):
            all_away(moves)
        if point == "tier.swept":
            all_away(moves)
            all_back(moves)
        swept = point == "tier.swept"
        step = moves.sweep if swept else partial(all_back if point.startswith("tier.back") else all_away, moves)
        with armed(f"{point}=error:{1 if swept else 2}"), pytest.raises(Fault):
            step()
    found = read(root)
    shutil.copytree(root, root.with_name("after"))
    log.close()
    assert found == ALL
    after = root.with_name("after")
    with closing(opened(after)) as again:
        assert not list(after.rglob(".aside-*"))
        assert not {path.name.removesuffix(".away") for path in stubs(after)} & {path.name for path in local(after)}
        assert read(after) == ALL
        assert read(after, topic=USERS.qualified) == [position + 1 for position in ALL]
        with closing(tiering(again, after)) as moves:
            all_away(moves)
            moves.sweep()
            assert len(local(after)) == 2
            assert len(objects(after)) == len(stubs(after))
            assert read(after) == ALL


@pytest.mark.parametrize("fault", [OSError(SLOW_DOWN), "half", "lost answer", PermissionError(13, "secret-of-the-store")])
def test_a_store_that_does_not_take_a_file(log: EmbeddedLogWriter, root: Path, store: FaultyHandler, fault: object) -> None:
    before = local(root)
    with closing(tiering(log, root)) as moves:
        store.faults["put"] = [fault]
        place = next(iter(moves.closed(2**62)))
        with pytest.raises(LogAway) as refused:
            moves.put_away(place)
        assert "secret" not in refused.value.line()
        assert refused.value.retryable
        assert local(root) == before
        assert not stubs(root)
        puts = store.calls.count("put")
        assert moves.put_away(place)
        assert store.calls.count("put") == puts + (fault != "lost answer"), "what is there already is not sent again"
        all_away(moves)
    assert read(root) == ALL


@pytest.mark.parametrize(("call", "fault"), [("find", OSError(SLOW_DOWN)), ("read", OSError(SLOW_DOWN)), ("read", "half")])
def test_a_store_that_does_not_give_a_file(
    log: EmbeddedLogWriter, root: Path, store: FaultyHandler, call: str, fault: object
) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    with closing(EmbeddedLogReader(root)) as reader:
        store.faults[call] = [fault]
        with pytest.raises(LogAway) as refused:
            positions_in(reader.read(TOPIC, Position(0), HEAD))
        assert "secret" not in refused.value.line()
        assert not list((root / "cache").glob(".aside-*"))
        assert positions_in(reader.read(TOPIC, Position(0), HEAD)) == ALL, "it goes on once the store is back"


def test_a_slow_store_is_given_up_in_time(
    log: EmbeddedLogWriter, root: Path, store: FaultyHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    assert not store.faults
    monkeypatch.setattr(away, "FETCH_S", -1.0)
    with pytest.raises(LogAway, match="within"):
        read(root)
    monkeypatch.undo()
    assert not copies(root)


def test_a_file_that_was_changed_or_cut_or_is_gone(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    victim = next(path for path in objects(root) if f"{1:020d}-" in path.name)
    data = victim.read_bytes()
    for damaged in (data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:], data[:50] + bytes([data[50] ^ 128]) + data[51:]):
        victim.write_bytes(damaged)
        with pytest.raises(LogCorrupt, match="has another content") as found:
            read(root)
        assert victim.name in str(found.value)
        assert not copies(root)
    victim.unlink()
    with pytest.raises(LogAway, match="is not in the log's tier"):
        read(root)
    victim.write_bytes(data)
    assert read(root) == ALL


def test_one_wrong_answer_is_asked_for_again(log: EmbeddedLogWriter, root: Path, store: FaultyHandler) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    store.faults["read"] = ["changed"]
    assert read(root) == ALL


def test_a_lost_answer_to_a_removal(log: EmbeddedLogWriter, root: Path, store: FaultyHandler) -> None:
    with closing(tiering(log, root)) as moves:
        count = all_away(moves)
        assert all_back(moves) == count
        store.faults["remove"] = ["lost answer"]
        with pytest.raises(LogAway):
            moves.sweep()
        assert moves.sweep() == count - 1
    assert not objects(root)


def test_a_damaged_copy_is_fetched_again(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    assert read(root) == ALL
    for number, copy in enumerate(copies(root)):
        data = copy.read_bytes()
        copy.write_bytes(data[:-1] if number % 2 else bytes([data[0] ^ 1]) + data[1:])
    assert read(root) == ALL


def test_the_cache_is_bounded_and_keeps_what_was_used_last(log: EmbeddedLogWriter, root: Path) -> None:
    sizes = sorted(path.stat().st_size for path in local(root))
    most = 2 * sizes[-1]
    with closing(tiering(log, root, most)) as moves:
        all_away(moves)
    for _ in range(2):
        assert read(root) == ALL
        assert 0 < sum(path.stat().st_size for path in copies(root)) <= most
    log.close()
    with closing(opened(root)) as again, closing(tiering(again, root, 1)):
        assert read(root) == ALL
        assert len(copies(root)) == 1, "what is being read"


def test_readers_share_one_fetch(log: EmbeddedLogWriter, root: Path, store: FaultyHandler) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    wanted = len([path for path in stubs(root) if path.parent == LogPlaces(root).folder(TOPIC)])
    before, found = store.calls.count("read"), []
    threads = [threading.Thread(target=lambda: found.append(read(root))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ALL] * 6
    assert store.calls.count("read") - before == wanted


def test_every_damage_of_a_stub_is_named(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    log.close()
    one, other, *_ = [path for path in stubs(root) if path.parent == LogPlaces(root).folder(TOPIC)]
    data = one.read_bytes()
    cases = [data[:at] for at in range(0, len(data), 7)] + [data + b" ", b"x" * 10_000, other.read_bytes()]
    cases += [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    for case in cases:
        one.write_bytes(case)
        with pytest.raises(LogCorrupt, match=one.name):
            read(root)
    with pytest.raises(LogCorrupt, match=one.name):
        opened(root)
    one.write_bytes(data)
    with closing(opened(root)):
        assert read(root) == ALL


def test_a_lost_or_damaged_tier_file_is_named_and_written_again(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
        (root / "tier.json").write_text("{}")
        with pytest.raises(LogAway, match="is damaged"):
            read(root)
        (root / "tier.json").unlink()
        with pytest.raises(LogAway, match="nothing says where"):
            read(root)
        moves.begin()
        (root / "tier.json").write_text("{")
        moves.begin()
    assert tier_of(root) == TierPlace(f"file://{root.parent}/tier", PLENTY)
    assert read(root) == ALL


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3:",
        "s3://",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?secret_key=secret",
        "abfs://a:secret@b",
        "ftp://secret",
        "secret",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tierstore.TierStore(url)
    assert "secret" not in refused.value.line()


def test_compaction_reads_on_when_a_file_is_brought_back(
    log: EmbeddedLogWriter, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
        closed, *_ = log.upkeep.ranges(TOPIC)
        expected = positions_in(log.upkeep.batches(closed))
        fetched = away.Cache.fetched

        def meanwhile(cache: away.Cache, path: Path, stub: away.Stub) -> Path:
            monkeypatch.undo()
            all_back(moves)
            shutil.rmtree(root / "cache")
            return fetched(cache, path, stub)

        monkeypatch.setattr(away.Cache, "fetched", meanwhile)
        assert positions_in(log.upkeep.batches(closed)) == expected


def test_columns_and_last_changes_of_what_is_away(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
        closed, *_ = log.upkeep.ranges(TOPIC)
        only = list(log.upkeep.batches(closed, lambda schema: pa.schema([schema.field(0)], schema.metadata)))
        assert {batch.num_columns for batch in only} == {1}
    with closing(EmbeddedLogReader(root)) as reader:
        assert [int(reader.last_change(TOPIC, Position(at))) for at in (20, 40, 100)] == [19, 39, 99]


def test_a_store_waits_for_what_is_away_and_goes_on(log: EmbeddedLogWriter, root: Path) -> None:
    with closing(tiering(log, root)) as moves:
        all_away(moves)
    tier, gone = root.parent / "tier", root.parent / "gone"
    tier.rename(gone)
    name = f"away-{root.parent.name}"
    with closing(EmbeddedLogReader(root)) as reader:
        follower = Follower(name, Options(kind="memory"), root, reader, root.parent, threading.Event())
        steps = follower.pursue(log.head)
        assert any(isinstance(step, Rest) for step in steps), "it applies what it cannot have"
        assert follower.status.state == "waiting"
        assert "is not in the log's tier" in (follower.status.error or "")
        gone.rename(tier)
        for _ in steps:
            pass
        assert (follower.applied, follower.status.state) == (log.head, "following")
        follower.close()
    assert len(STORES[name].rows[TOPIC]) == len(ALL)


def test_googles_storage_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, timedelta] = {}
    monkeypatch.setattr(tierstore.fs, "GcsFileSystem", lambda **options: asked.update(options))
    assert tierstore.filesystem_of("gs://bucket/a/b")[1] == "bucket/a/b"
    assert asked["retry_time_limit"] <= timedelta(seconds=60)
