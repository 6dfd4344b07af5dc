"""Every crash point of the product × {kill, error, hang}: afterwards the log equals the source and the store equals the log."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from cdc.crashpoint import KILLED, Armed, CrashKind
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.errors import Stopped, StopState
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.state import rebuilds, reloads, stops
from sinks import make_sink, options_model
from tests import counters
from tests.conftest import Cache, Database
from tests.faults import points
from tests.faults.lab import DEADLINE_S, POLL_S, Lab, lab
from tests.faults.nursery import Nursery
from tests.faults.points import EVERYTHING
from tests.faults.stores import Written, held_by
from tests.faults.truth import difference
from tests.faults.workload import Workload
from tests.rediscluster import RedisCluster

KINDS: Final = (CrashKind.KILL, CrashKind.ERROR, CrashKind.HANG)

BEFORE = {
    "recover.removed": "log.segment.header_written=kill",
    "capture.toast_caught_up": "ingest.commit.durable=kill:3",
}
"""Points that are met only by a process that comes after one which died just so."""

OFTEN = ("log.append.", "log.commit.", "log.timeline.", "log.head.", "ingest.group.", "ingest.commit.")
"""Points that are met again and again: any of the first GROUPS times is the one."""
GROUPS = 5


def every_kind(names: list[str]) -> list[object]:
    """Each name × {kill, error}, and hang (which leaves on the disk what a kill leaves) for a tenth of them; for all by `make faults`."""
    chosen = [(name, kind) for name in names for kind in (CrashKind.KILL, CrashKind.ERROR)]
    chosen += [(name, CrashKind.HANG) for number, name in enumerate(names) if EVERYTHING or number % 10 == 0]
    return [pytest.param(name, kind, id=f"{name}-{kind}") for name, kind in sorted(chosen)]


def test_there_are_enough_points_and_each_is_reached_somewhere() -> None:
    found = points.places()
    assert len(found) >= 40
    assert [name for name, count in found.items() if count > 1] == []
    reached = [name for room in points.ROOMS for name in points.of(room)]
    assert sorted(reached) == sorted(found)


def test_notation() -> None:
    armed = Armed.parse("a.b=error:3@/tmp/x")
    assert (armed.name, armed.kind, armed.nth, armed.mark) == ("a.b", CrashKind.ERROR, 3, Path("/tmp/x"))
    for wrong in ("", "a", "=kill", "a=explode", "a=kill:soon"):
        with pytest.raises(ValueError):
            Armed.parse(wrong)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("point", "kind"), every_kind(points.of("capture")))
def test_capture(
    point: str, kind: CrashKind, fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path, seed: int
) -> None:
    with lab(fault_server, nursery, server_folder / f"{point}-{kind}", template=filled_database) as one:
        work = Workload(random.Random(seed))
        work.calm = True
        if point == "recover.before_cut":
            one.start()
            one.converge()
            one.end()
            newest = max((one.folder / "log").glob("timeline-*"))
            with newest.open("ab") as timeline:
                timeline.write(b"an entry that is torn")
        if point in BEFORE:
            one.start(crash=BEFORE[point])
            assert reach(one, work, lambda: one.process is not None and one.process.poll() is not None), BEFORE[point]
        if point.startswith(("capture.reload_", "log.history.", "snapshot.table.announced", "snapshot.sweep.")):
            ask_for_a_reload(one)
        if point.startswith("log.rollover."):
            one.segment_bytes = 4096  # the timeline's file is full after 512 bytes; a slow capture makes few groups
        mark = one.folder / "reached"
        nth = work.chance.randint(1, GROUPS) if point.startswith(OFTEN) and "folder" not in point else 1
        one.start(crash=f"{point}={kind}:{nth}@{mark}")
        assert reach(one, work, mark.exists), f"{point} was not reached {nth} times\n{one.told}"
        fall(one, kind)
        steps(one, work, 6)
        one.converge()
    counters.add("crash points", str(kind))


def rewrite_until(one: Lab, reached: Callable[[], bool], point: str) -> None:
    """Changes the same rows again and again, so that the log's upkeep always has something to do."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        one.connection.execute("update accounts set owner = md5(random()::text)")
        time.sleep(0.1)
        assert time.monotonic() < deadline, f"{point} was not reached\n{one.told}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("point", "kind"), every_kind(points.of("compaction")))
def test_compaction(
    point: str, kind: CrashKind, fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path, seed: int
) -> None:
    """Under traffic, in a log that keeps nothing for its age's sake."""
    with lab(fault_server, nursery, server_folder / f"{point}-{kind}", template=filled_database) as one:
        work = Workload(random.Random(seed))
        work.calm = True
        one.segment_bytes = 4096
        one.log_options = {"cleanup": "compact", "history_hours": 0, "deletes_hours": 0, "reserve_mb": 0}
        mark = one.folder / "reached"
        one.start(crash=f"{point}={kind}@{mark}")
        steps(one, work, 6)
        rewrite_until(one, mark.exists, point)
        fall(one, kind)
        steps(one, work, 6)
        one.converge()
    counters.add("crash points", str(kind))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("point", "kind"), every_kind(points.of("tier")))
def test_tier(
    point: str, kind: CrashKind, fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path, seed: int
) -> None:
    """Under traffic and compaction; where files come back, a process before has put them away."""
    with lab(fault_server, nursery, server_folder / f"{point}-{kind}", template=filled_database) as one:
        work = Workload(random.Random(seed))
        work.calm = True
        one.segment_bytes = 4096
        tier = {"url": f"file://{one.folder}/tier", "after_hours": 0}
        one.log_options = {"tier": tier}
        mark = one.folder / "reached"
        if point.startswith(("tier.back", "tier.swept")):
            one.start()
            steps(one, work, 6)
            one.until(lambda: any((one.folder / "log").rglob("*.away")), "a file that is away")
            assert one.ask_to_stop() == 0
            one.log_options = {"tier": {**tier, "back": True}}
        one.start(crash=f"{point}={kind}@{mark}")
        rewrite_until(one, mark.exists, point)
        fall(one, kind)
        steps(one, work, 6)
        one.converge()
    counters.add("crash points", str(kind))


def test_what_the_toast_memory_missed_by_an_error_it_reads_from_the_log(
    fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path
) -> None:
    """A wide value becomes durable, the memory does not hear of it, and the next update leaves the value out."""
    with lab(fault_server, nursery, server_folder / "toast-memory", template=filled_database) as one:
        one.connection.execute(
            "update accounts set note = repeat('a', 10) || md5(id::text) || (select string_agg(md5(g::text), '') from generate_series(1, 200) g)"
        )
        one.start()
        one.converge()
        assert one.ask_to_stop() == 0
        mark = one.folder / "reached"
        one.start(crash=f"ingest.commit.durable=error@{mark}")
        one.connection.execute(
            "update accounts set note = (select string_agg(md5((g + 7)::text), '') from generate_series(1, 200) g)"
        )
        one.until(mark.exists, "the error")
        one.connection.execute("update accounts set owner = 'changed'")
        one.converge(restart=False)


def ask_for_a_reload(one: Lab) -> None:
    """The slot is lost, capture stops for that, and an operator has everything read again into the same log."""
    one.start()
    one.converge()
    one.end()
    one.drop_slot()
    one.connection.execute("delete from accounts where id in (select id from accounts order by id limit 3)")
    assert one.start().wait(DEADLINE_S) == Stopped.exit_code
    stops.clear(one.folder / "run", StopState.SLOT_MISSING)
    reloads.request(one.folder / "log", StopState.SLOT_MISSING)


def reach(one: Lab, work: Workload, done: Callable[[], bool]) -> bool:
    """Drives capture through all that happens to it, until ``done``: a snapshot under traffic, a broken stream, an orderly end."""
    assert one.process is not None
    for _ in range(25):
        steps(one, work, 1)
        if done():
            return True
    if arrives(one, done):
        return True
    one.connection.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (one.slot,))
    steps(one, work, 5)
    if arrives(one, done):
        return True
    # A slow capture takes all of that in a few groups. What comes when everything is in the log comes in one of its own.
    for number in range(4 * GROUPS):
        one.connection.execute("insert into events values (%s, 'alone', null)", (-1 - number,))
        if arrives(one, done):
            return True
    one.connection.execute("select pg_logical_emit_message(true, 'nobody', 'an empty transaction for us')")
    heard = one.heard_of(one.wal_end())
    deadline = time.monotonic() + DEADLINE_S
    while not (done() or heard() or one.ended) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    one.process.signal(signal.SIGTERM)
    while not done() and one.process.wait(POLL_S) is None:
        pass
    return done()


def arrives(one: Lab, done: Callable[[], bool]) -> bool:
    """Waits until ``done`` or nothing more will come by itself."""
    assert one.process is not None
    deadline = time.monotonic() + DEADLINE_S
    while not done() and one.process.poll() is None and one.settled() is not None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return done()


def steps(one: Lab, work: Workload, count: int) -> None:
    for _ in range(count):
        work.calm = work.calm and not one.has_slot()
        work.step(one.connection)


def fall(one: Lab, kind: CrashKind) -> None:
    """What the point does to the process is over when this returns."""
    assert one.process is not None
    if kind is CrashKind.KILL:
        assert one.process.wait(DEADLINE_S) == KILLED
    elif kind is CrashKind.HANG:
        time.sleep(0.05)
        one.process.kill()


# Stores


def follow_through_a_fault(
    point: str, kind: CrashKind, written: Written, nursery: Nursery, folder: Path, store: dict[str, Any], *, begun: bool = False
) -> None:
    """The store's follower meets the fault and is started again; then the store holds what the log holds, and says so itself.

    ``begun``: the folder has been followed in already.
    """
    if not begun:
        folder.mkdir()
        (folder / "log").symlink_to(written.folder / "log")
    mark = folder / "reached"
    job = {"run": "follow", "folder": str(folder), "source": {"dsn": "postgresql://"}, "stores": {"store": store}}
    first = nursery.start({**job, "crash": f"{point}={kind}@{mark}"}, folder / "first.log")
    while first.poll() is None and not (kind is CrashKind.HANG and mark.exists()):
        first.wait(POLL_S)
    assert mark.exists(), f"{point} was not reached\n{first.told}"
    if kind is CrashKind.HANG:
        first.kill()
    elif kind is CrashKind.KILL:
        assert first.code == KILLED
    second = nursery.start(job, folder / "second.log")
    assert second.wait(DEADLINE_S) == 0, second.told
    sink = make_sink("store", options_model(store["kind"]).model_validate(store))
    try:
        with closing(EmbeddedLogReader(folder / "log")) as reader:
            assert sink.open(reader).position == reader.head().position
        wanted = {name: rows for name, rows in written.tables.items() if name in store.get("tables", [name])}
        assert difference(wanted, held_by(sink, folder)) is None
    finally:
        sink.close()
    counters.add("crash points", str(kind))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("point", "kind"), every_kind(points.of("cache")))
def test_cache(point: str, kind: CrashKind, written: Written, nursery: Nursery, valkey: Cache, tmp_path: Path) -> None:
    store = {"kind": "redis", "url": valkey.url, "batch_rows": 40}
    follow_through_a_fault(point, kind, written, nursery, tmp_path / "follower", store)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", points.of("lanes"))
def test_lanes(
    point: str, kind: CrashKind, written: Written, nursery: Nursery, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    store = {"kind": "redis", "url": redis_cluster.url, "batch_rows": 400, "lanes": 4}
    scenario = killed_while_built_again if point == "lanes.rebuild_begun" else follow_through_a_fault
    scenario(point, kind, written, nursery, tmp_path / "follower", store)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", points.of("search"))
def test_search(point: str, kind: CrashKind, written: Written, nursery: Nursery, opensearch: OpenSearch, tmp_path: Path) -> None:
    table = {"truncate": "public.events", "schema": "public.items"}.get(point.split(".")[1], "public.accounts")
    table = "public.accounts" if point == "search.schema.rewritten" else table
    store = {"kind": "opensearch", "url": opensearch.url, "batch_rows": 400, "tables": [table]}
    follow_through_a_fault(point, kind, written, nursery, tmp_path / "follower", store)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", points.of("sql"))
def test_sql(point: str, kind: CrashKind, written: Written, nursery: Nursery, postgres: Database, tmp_path: Path) -> None:
    store = {"kind": "sql", "url": postgres.dsn, "batch_rows": 400, "namespace": "copy_{schema}", "timeout_s": 5}
    follow_through_a_fault(point, kind, written, nursery, tmp_path / "follower", store)


_BY_THE_FOLLOWER: Final = ("rebuild.written", "rebuild.opened", "rebuild.done")
REBUILT: Final = {
    "redis": [*(point for point in points.of("rebuilding") if point.startswith("rebuilding.cache_")), *_BY_THE_FOLLOWER],
    "opensearch": [*(point for point in points.of("rebuilding") if point.startswith("rebuilding.search_")), *_BY_THE_FOLLOWER],
    "sql": [*(point for point in points.of("rebuilding") if point.startswith("rebuilding.sql_")), *_BY_THE_FOLLOWER],
}
"""What `cdc resume STATE:follow-NAME --rebuild` passes in each kind of store, beside the warehouse's (``test_spark_crashpoints``)."""
QUICK: Final = {
    "redis": ["rebuilding.cache_written", "rebuild.written"],
    "opensearch": ["rebuilding.search_filled"],
    "sql": ["rebuilding.sql_table_replaced"],
}


def test_no_point_of_a_rebuild_is_forgotten() -> None:
    assert {point for reached in REBUILT.values() for point in reached} >= {*points.of("rebuilding")}


def killed_while_built_again(
    point: str, kind: CrashKind, written: Written, nursery: Nursery, folder: Path, store: dict[str, Any]
) -> None:
    """The store is whole, an operator asks for it to be built again, and that ends in the middle. Asked of nobody again, it is done."""
    folder.mkdir()
    (folder / "log").symlink_to(written.folder / "log")
    job = {"run": "follow", "folder": str(folder), "source": {"dsn": "postgresql://"}, "stores": {"store": store}}
    assert nursery.start(job, folder / "before.log").wait(DEADLINE_S) == 0
    rebuilds.request(folder / "run", "store", StopState.DIVERGED)
    follow_through_a_fault(point, kind, written, nursery, folder, store, begun=True)
    assert rebuilds.requested(folder / "run", "store") is None


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", REBUILT["redis"] if EVERYTHING else QUICK["redis"])
def test_a_cache_built_again(
    point: str, kind: CrashKind, written: Written, nursery: Nursery, valkey: Cache, tmp_path: Path
) -> None:
    store = {"kind": "redis", "url": valkey.url, "batch_rows": 400}
    killed_while_built_again(point, kind, written, nursery, tmp_path / "follower", store)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", REBUILT["sql"] if EVERYTHING else QUICK["sql"])
def test_a_database_built_again(
    point: str, kind: CrashKind, written: Written, nursery: Nursery, postgres: Database, tmp_path: Path
) -> None:
    store = {"kind": "sql", "url": postgres.dsn, "batch_rows": 400, "namespace": "copy_{schema}", "timeout_s": 5}
    killed_while_built_again(point, kind, written, nursery, tmp_path / "follower", store)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", REBUILT["opensearch"] if EVERYTHING else QUICK["opensearch"])
def test_a_search_index_built_again(
    point: str, kind: CrashKind, written: Written, nursery: Nursery, opensearch: OpenSearch, tmp_path: Path
) -> None:
    store = {"kind": "opensearch", "url": opensearch.url, "batch_rows": 400}
    killed_while_built_again(point, kind, written, nursery, tmp_path / "follower", store)


# The parts around them


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", points.of("stops"))
def test_stop_states(
    point: str, kind: CrashKind, fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path
) -> None:
    """A slot that is gone stays a stop state, whatever happens to the process that records it."""
    with lab(fault_server, nursery, server_folder / f"{point}-{kind}", template=filled_database) as one:
        one.start()
        one.converge()
        one.end()
        one.drop_slot()
        mark = one.folder / "reached"
        one.start(crash=f"{point}={kind}@{mark}")
        one.until(mark.exists, f"{point} to be reached")
        fall(one, kind)
        assert one.process is not None
        if kind is CrashKind.ERROR:
            assert one.process.wait(DEADLINE_S) not in (0, None)
        assert one.start().wait(DEADLINE_S) == Stopped.exit_code, one.told
        assert [stop.state for stop in stops.held(one.folder / "run")] == [StopState.SLOT_MISSING]
    counters.add("crash points", str(kind))


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS if EVERYTHING else [CrashKind.KILL])
@pytest.mark.parametrize("point", points.of("supervise"))
def test_supervisor(
    point: str, kind: CrashKind, fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path
) -> None:
    """The capture process ends with its supervisor or lives on under no other; the next supervisor goes on with the log."""
    with lab(fault_server, nursery, server_folder / f"{point}-{kind}", template=filled_database) as one:
        one.folder.mkdir()
        config = one.folder / "cdc.toml"
        config.write_text(
            f'run_dir = "run"\n[source]\ndsn = "{one.dsn}"\nslot = "{one.slot}"\ntables = ["public.*"]\n[log]\ndir = "log"\nsegment_bytes = 16384\n'
        )
        mark = one.folder / "reached"
        supervisor = one.start(run="supervise", config=str(config), crash=f"{point}={kind}@{mark}")
        one.until(lambda: mark.exists() or child_of(one) is not None, "a child")
        if not mark.exists() and point == "supervise.child_ended":
            one.until(one.has_slot, "the child to work")
            one.until(lambda: kill_child_of(one), "a child to kill")
        elif not mark.exists():
            supervisor.signal(signal.SIGTERM)
        one.until(mark.exists, f"{point} to be reached")
        fall(one, kind)
        one.until(lambda: kind is CrashKind.ERROR or child_of(one) is None, "the child to end with its supervisor")
        if kind is CrashKind.ERROR:
            one.end()
            one.until(lambda: child_of(one) is None, "the child to end with its supervisor")
        one.connection.execute("insert into events values (-1, 'behind the fault', null)")
        again = one.start(run="supervise", config=str(config))
        one.converge(restart=False)
        again.signal(signal.SIGTERM)
        assert again.wait(DEADLINE_S) == 0
    counters.add("crash points", str(kind))


def kill_child_of(one: Lab) -> bool:
    """kill -9. False when there is none at this moment, because it has just ended by itself."""
    child = child_of(one)
    if child is None:
        return False
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def child_of(one: Lab) -> int | None:
    """The capture process that works in the lab's folder."""
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        if str(one.folder / "cdc.toml") in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
            return int(process.info["pid"])
    return None
