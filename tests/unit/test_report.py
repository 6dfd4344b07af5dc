"""The report over status files, a memory log and a source that is down: what is said to be wrong, and the JSON's shape."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.commands.status import lines
from cdc.errors import Stopped, StopState
from cdc.log.memory import MemoryLog
from cdc.model.position import Lsn
from cdc.report import collector, probe, shape
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.report.shape import CatchUp, Lag, Report, catch_up_of
from cdc.settings.models import Audit, Log, Settings, Source, StoreOptions
from cdc.settings.views import View
from cdc.source.budget import wal_rate
from cdc.source.heldwal import HeldWal
from cdc.source.slot import SlotFacts, SlotReader
from cdc.state import auditstate, jsonfile, status, stops
from cdc.state.auditstate import AuditStanding, Drift, TableStanding
from snapshots.requests import Request, RequestOutcome, Requests

CANARY = "s3cr3t-canary"
MB = 2**20


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(status, "slowness", lambda: 1.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a while changes nothing of what is reported."""
    monkeypatch.setattr(status, "STALE_S", 3600.0)
    monkeypatch.setattr(probe, "RETRY_SOURCE_S", 3600.0)


class Probe(SourceProbe):
    """A source with one slot, without a server."""

    def __init__(self, facts: SlotFacts) -> None:
        super().__init__(SecretStr("postgresql://h/d"), "cdc")
        self.facts = facts

    def _facts(self) -> SlotFacts | None:
        return self.facts


def settings(folder: Path) -> Settings:
    made = Settings(
        source=Source(dsn=SecretStr(f"postgresql://u:{CANARY}@127.0.0.1:1/d")), log=Log(dir=folder / "log"), run_dir=folder / "run"
    )
    return made.model_copy(update={"stores": {"cache": StoreOptions(kind="redis")}})


SLOT = SlotFacts("cdc", True, Lsn(9 * MB), reader=SlotReader(7), wal_status="reserved")


def well(folder: Path) -> None:
    now = time.monotonic()
    status.write(folder / "run", "capture", status.CaptureStatus(pid=os.getpid(), state="streaming", said_at=now))
    status.write(
        folder / "run", "follow-cache", status.FollowerStatus("cache", "redis", pid=os.getpid(), state="following", said_at=now)
    )


def taken(folder: Path, facts: SlotFacts | None = None) -> Report:
    return gather(settings(folder), MemoryLog().reader(), Probe(facts or SLOT))


def test_all_is_well(tmp_path: Path) -> None:
    well(tmp_path)
    found = taken(tmp_path)
    assert found.healthy
    assert found.problems == ()
    assert found.followers[0].lag is not None
    assert (found.source.slot and found.source.slot.server_lsn) == "0/900000"


def test_before_the_first_start(tmp_path: Path) -> None:
    found = taken(tmp_path, replace(SLOT, exists=False))
    assert found.capture is None
    assert found.followers[0].lag is None
    assert [problem.split(" → ")[0] for problem in found.problems] == [
        "replication slot 'cdc' does not exist",
        "capture has never run",
        "follower cache does not run",
    ]


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (replace(SLOT, wal_status="lost"), "has been invalidated"),
        (replace(SLOT, wal_status="unreserved"), "is lost at the next checkpoint"),
        (replace(SLOT, wal_status="extended"), "more than max_wal_size"),
        (SLOT, None),
    ],
)
def test_the_slot(tmp_path: Path, facts: SlotFacts, problem: str | None) -> None:
    well(tmp_path)
    problems = taken(tmp_path, facts).problems
    assert (problem is None and not problems) or (problem is not None and problem in problems[0])


def test_the_budget_of_a_slot_that_nobody_reads(tmp_path: Path) -> None:
    well(tmp_path)
    probe = Probe(replace(SLOT, reader=None, wal=HeldWal(safe_bytes=60 * MB)))
    probe._samples += [(0.0, 0), (10.0, 10 * MB)]
    found = gather(settings(tmp_path), MemoryLog().reader(), probe)
    assert (found.source.slot and found.source.slot.budget_eta_s) == 60.0
    assert found.problems == (
        "replication slot 'cdc' is not read; its WAL budget ends in 1 min at the present rate → cdc run, or raise max_slot_wal_keep_size",
    )


def test_parts_that_do_not_run_any_more(tmp_path: Path) -> None:
    long_ago = time.monotonic() - status.STALE_S - 1
    for name, told in (
        ("capture", status.CaptureStatus(pid=os.getpid(), state="streaming", said_at=long_ago)),
        ("follow-cache", status.FollowerStatus("cache", pid=2**22 + 1, state="following", said_at=time.monotonic())),
    ):
        status.write(tmp_path / "run", name, told)
    silent, dead = taken(tmp_path).problems
    assert silent.startswith("capture has reported nothing for ")
    assert dead == "follower cache does not run → cdc run"


def test_parts_that_take_their_time_to_start_are_no_dead_ones(tmp_path: Path) -> None:
    long_ago = time.monotonic() - 10 * status.STALE_S
    status.write(tmp_path / "run", "capture", status.CaptureStatus(pid=os.getpid(), state="starting", said_at=long_ago))
    starting = status.FollowerStatus("cache", pid=os.getpid(), state="starting", said_at=long_ago)
    status.write(tmp_path / "run", "follow-cache", starting)
    found = taken(tmp_path)
    assert [line.split(" → ")[0] for line in found.problems] == ["capture is starting", "follower cache is starting"]
    assert found.capture is not None
    assert found.capture.alive
    assert found.followers[0].alive


def test_a_view_that_the_running_daemon_has_not_taken_up(tmp_path: Path) -> None:
    """It has just been declared, or the file cannot be used, or first views wait for the next start: `cdc run` runs already."""
    well(tmp_path)
    given = settings(tmp_path).model_copy(update={"views": {"late": View(sql="select id from t", key=("id",))}})
    assert gather(given, MemoryLog().reader(), Probe(SLOT)).problems == ("view late does not run → cdc run",)
    daemon = status.SupervisorStatus(os.getpid(), processes=[status.ProcessStatus("capture")])
    status.write(tmp_path / "run", "supervisor", daemon)
    [problem] = gather(given, MemoryLog().reader(), Probe(SLOT)).problems
    assert problem == "view late is not taken up by cdc run yet → wait a moment; if it lasts, see the log of cdc run"


def test_a_store_of_a_view_that_counts_at_the_next_start_is_no_mistake(tmp_path: Path) -> None:
    """What the configuration says of stores counts at once, and first views wait for the next start."""
    well(tmp_path)
    told = status.read_capture(tmp_path / "run")
    assert told is not None
    told.snapshot = [status.TableProgress("public.t", 1, 1, finished=True)]
    status.write(tmp_path / "run", "capture", told)
    store = StoreOptions.model_validate({"kind": "redis", "tables": ["public.t"], "views": ["late"]})
    given = settings(tmp_path).model_copy(update={"stores": {"cache": store}})
    assert gather(given, MemoryLog().reader(), Probe(SLOT)).problems == ()


def test_no_slot_is_missed_while_capture_starts(tmp_path: Path) -> None:
    no_slot = replace(SLOT, exists=False)
    status.write(tmp_path / "run", "follow-cache", status.FollowerStatus("cache", pid=os.getpid(), state="starting"))
    starting = status.CaptureStatus(pid=os.getpid(), state="starting", said_at=time.monotonic())
    for told, missed in (
        (starting, False),
        (replace(starting, error="no route"), True),
        (replace(starting, state="retrying"), True),
    ):
        status.write(tmp_path / "run", "capture", told)
        problems = taken(tmp_path, no_slot).problems
        assert ("replication slot 'cdc' does not exist → cdc doctor" in problems) == missed, told


def test_what_parts_say_is_wrong(tmp_path: Path) -> None:
    now, pid = time.monotonic(), os.getpid()
    status.write(tmp_path / "run", "capture", status.CaptureStatus(pid=pid, state="retrying", error="no route", said_at=now))
    waiting = status.FollowerStatus("cache", pid=pid, state="waiting", error="it is down", said_at=now)
    waiting.aside = [status.TableLetters("public.t", 6, 2, 1, 5.0)]
    status.write(tmp_path / "run", "follow-cache", waiting)
    assert [line.split(" → ")[0] for line in taken(tmp_path).problems] == [
        "capture is retrying: no route",
        "follower cache is waiting: it is down",
        "store cache set 3 changes aside",
    ]


def test_generations_that_readers_do_not_see_are_told_apart_and_are_no_problem(tmp_path: Path) -> None:
    well(tmp_path)
    now, at = time.monotonic(), 1_700_000_000.0
    pid, told = os.getpid(), status.GenerationStatus
    for one in (
        told(store="cache", number=3, phase="building", pid=pid, rows=50, expected=200, rows_per_s=25.0, said_at=now),
        told(store="cache", number=1, state="kept", pid=pid, position=4, until=at, said_at=now),
        told(store="cache", number=2, state="kept", pid=pid, error="it is down → see whether it is up", said_at=now),
        told(store="cache", number=4, phase="comparing", said_at=now),
        told(store="cache2", number=7, state="kept", said_at=now),
    ):
        status.write(tmp_path / "run", one.part, one)
    found = taken(tmp_path)
    assert found.healthy
    kept, _, built, left = found.generations
    assert (kept.number, kept.alive, kept.until, kept.lag, kept.progress) == (1, True, at, Lag(0, 0, 0.0), None)
    assert (built.number, built.phase, built.progress) == (3, "building", CatchUp(50, 200, 25.0, 6.0))
    assert not left.alive
    assert [line for line in lines(found) if line.startswith("generation")] == [
        "generation 1 of cache: kept until 2023-11-14 22:13:20Z, at 4, 0 changes behind",
        "generation 2 of cache: kept, at 0, 0 changes behind; not fed: it is down → see whether it is up",
        "generation 3 of cache: building, 50 of at most 200 rows, 25/s, about 6.0 s left, at 0, 0 changes behind",
        "generation 4 of cache: was being built (comparing), at 0, 0 changes behind → cdc bootstrap goes on with it; "
        "cdc generations --drop removes it",
    ]


def test_what_the_continuous_audit_has_found_is_a_problem(tmp_path: Path) -> None:
    well(tmp_path)
    whole = TableStanding("public.a", 60.0, 60.0, 7, Drift(rows=5))
    differs = TableStanding("public.t", 0.0, 70.0, 9, Drift(9, 1, 2, 3, 4, at_least=True))
    auditstate.save(tmp_path / "run", "cache", AuditStanding(50.0, 80.0, None, (whole, differs)))
    found = taken(tmp_path)
    assert found.problems == (
        "store cache differs from the log in at least 6 rows of public.t (1 missing, 2 extra, 3 different) → "
        "cdc audit cache --table public.t lists them, and sends them again with --repair",
    )
    audit = found.followers[0].audit
    assert audit is not None
    assert (audit.round_share, audit.whole_at, [one.whole_at for one in audit.tables]) == (1.0, None, [60.0, None])
    assert [line for line in lines(found) if line.startswith("audit")] == ["audit cache: 1 of 2 tables with drift, round 100 %"]
    off = settings(tmp_path).model_copy(update={"audit": Audit(continuous=False)})
    assert gather(off, MemoryLog().reader(), Probe(SLOT)).healthy, "what an audit found that no longer goes on does not count"
    (path,) = (tmp_path / "run" / "audit").iterdir()
    path.write_text("torn")
    assert taken(tmp_path).followers[0].audit is None


def test_a_stop_state_is_told_once_with_its_way_out(tmp_path: Path) -> None:
    well(tmp_path)
    dead = status.CaptureStatus(pid=2**22 + 1, state="stopped", stop="SLOT_LOST", error="SLOT_LOST: gone", said_at=time.monotonic())
    status.write(tmp_path / "run", "capture", dead)
    stops.record(tmp_path / "run", "capture", Stopped(StopState.SLOT_LOST, "gone"))
    found = taken(tmp_path)
    assert found.problems == ("capture stopped: SLOT_LOST: gone → cdc resume SLOT_LOST",)
    assert found.stops[0].name == "SLOT_LOST:capture"


def test_a_refused_child(tmp_path: Path) -> None:
    well(tmp_path)
    child = status.ProcessStatus("capture", state="refused", exit_code=2)
    status.write(tmp_path / "run", "supervisor", status.SupervisorStatus(pid=os.getpid(), processes=[child]))
    found = taken(tmp_path)
    assert found.problems == ("capture refuses its configuration → cdc doctor",)
    assert found.processes[0].exit_code == 2


def test_a_source_that_is_down_is_asked_again_only_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well(tmp_path)
    made = settings(tmp_path)
    source = SourceProbe(made.source.dsn, "cdc")
    found = gather(made, MemoryLog().reader(), source)
    assert not found.source.reachable
    assert "Connection refused" in found.problems[0]
    assert CANARY not in json.dumps(found.to_json())
    assert found.source.address == "127.0.0.1:1/d"
    monkeypatch.setattr(probe, "connect", lambda *_, **__: pytest.fail("asked at once"))
    assert not source.read().reachable


def test_the_documented_keys_are_the_real_ones(tmp_path: Path) -> None:
    well(tmp_path)
    status.write(
        tmp_path / "run", "supervisor", status.SupervisorStatus(pid=os.getpid(), processes=[status.ProcessStatus("capture")])
    )
    stops.record(tmp_path / "run", "follow-cache", Stopped(StopState.STORE_REFUSES, "all"))
    auditstate.save(tmp_path / "run", "cache", AuditStanding(tables=(TableStanding("public.t"),)))
    view = status.ViewStatus(
        "totals", pid=os.getpid(), state="following", position=1, steps=1, topics=["public.orders"], said_at=time.monotonic()
    )
    status.write(tmp_path / "run", "view-totals", view)
    made = settings(tmp_path).model_copy(update={"views": {"totals": View(sql="select id from orders", key=("id",))}})
    told = gather(made, MemoryLog().reader(), Probe(SLOT)).to_json()
    assert json.loads(json.dumps(told, allow_nan=False)).keys() == told.keys()
    assert shape.__doc__ is not None
    documented = set(re.findall(r"``(\w+)``", shape.__doc__))
    for part in (
        told,
        told["source"],
        told["source"]["slot"],
        told["capture"],
        told["log"],
        *told["followers"],
        told["followers"][0]["audit"],
        *told["followers"][0]["audit"]["tables"],
        *told["stops"],
        *told["processes"],
        *told["views"],
        told["views"][0]["lag"],
        told["views"][0]["step"],
    ):
        assert part.keys() <= documented, part.keys() - documented


def test_rates() -> None:
    assert wal_rate([]) is None
    assert wal_rate([(0.0, 5), (0.5, 500)]) is None
    assert wal_rate([(0.0, 0), (1.0, 50), (2.0, 300)]) == 150
    assert wal_rate([(0.0, 300), (2.0, 0)]) == 0
    assert HeldWal().eta_s(5.0) is None
    assert HeldWal(safe_bytes=100).eta_s(None) is None
    assert HeldWal(safe_bytes=100).eta_s(0.0) is None
    assert HeldWal(safe_bytes=-5).eta_s(10.0) == 0


@pytest.mark.parametrize(
    ("lag", "held", "unread", "rate", "expected"),
    [
        (Lag(0, 0, 0.0), 100_000, 0, 0.0, None),
        (Lag(4_999, 1, 1.0), 100_000, 0, 10.0, None),
        (Lag(60_000, 1, 1.0), 100_000, 0, 2_000.0, CatchUp(40_000, 100_000, 2_000.0, 30.0)),
        (Lag(0, 0, 0.0), 100_000, 100_000, 5_000.0, CatchUp(100_000, 200_000, 5_000.0, 20.0)),
        (None, 50_000, 0, 0.0, CatchUp(0, 50_000, 0.0, None)),
    ],
)
def test_a_store_far_behind_says_how_far_it_has_come(
    lag: Lag | None, held: int, unread: int, rate: float, expected: CatchUp | None
) -> None:
    assert catch_up_of(lag, held, unread, rate) == expected


def test_what_the_logs_disk_refuses_is_a_problem_of_its_own(tmp_path: Path) -> None:
    well(tmp_path)
    told = status.read_capture(tmp_path / "run")
    assert told is not None
    told.log_alarm = "the log's segments in /log are not being sealed → free space there"
    status.write(tmp_path / "run", "capture", told)
    assert gather(settings(tmp_path), MemoryLog().reader(), Probe(SLOT)).problems == (told.log_alarm,)


def test_a_part_of_another_version_is_named(tmp_path: Path) -> None:
    well(tmp_path)
    for name in ("capture", "follow-cache"):
        path = tmp_path / "run" / "status" / f"{name}.json"
        jsonfile.write(path, {**jsonfile.decode(path.read_bytes()), "novelty": 1})
    assert gather(settings(tmp_path), MemoryLog().reader(), Probe(SLOT)).problems == (
        "capture runs another version of Headwater than this (novelty) → restart cdc run",
        "follower cache runs another version of Headwater than this (novelty) → restart cdc run",
    )


def test_a_capture_that_says_why_it_does_not_read_is_not_to_be_started(tmp_path: Path) -> None:
    well(tmp_path)
    told = status.read_capture(tmp_path / "run")
    assert told is not None
    told.state, told.error = "retrying", "no space"
    status.write(tmp_path / "run", "capture", told)
    probe = Probe(replace(SLOT, reader=None, idle_timeout_s=600))
    problems = gather(settings(tmp_path), MemoryLog().reader(), probe).problems
    assert len(problems) == 2
    assert problems[0].endswith("→ fix what capture reports")
    assert not any("cdc run" in line for line in problems)


def test_the_logs_size_is_not_looked_at_each_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(collector.time, "monotonic", lambda: now)
    (tmp_path / "file").write_bytes(b"12345")
    assert collector.size_on_disk(tmp_path) == 5
    (tmp_path / "file").write_bytes(b"1234567")
    now += 5
    assert collector.size_on_disk(tmp_path) == 5
    now += 6
    assert collector.size_on_disk(tmp_path) == 7


def test_a_folder_that_goes_while_the_log_is_measured_does_not_end_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of the spooled transactions does when capture ends."""
    (tmp_path / "kept").write_bytes(b"12345")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1").write_bytes(b"12")
    scan = os.scandir

    def late(path: Any) -> Any:
        if str(path).endswith("spool"):
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    assert collector.size_on_disk(tmp_path) == 5


def test_a_store_that_nobody_fills_gets_no_time_until_it_is_full(tmp_path: Path) -> None:
    """What its follower wrote a second when it died says nothing of what is left."""
    well(tmp_path)
    told = status.read_follower(tmp_path / "run", "cache")
    assert told is not None
    told.position, told.rows_per_s = 0, 1000.0
    capture = status.read_capture(tmp_path / "run")
    assert capture is not None
    capture.snapshot = [status.TableProgress("public.t", 0, 50_000)]
    status.write(tmp_path / "run", "capture", capture)
    for pid, rate, eta in ((os.getpid(), 1000.0, 50.0), (0, 0.0, None)):
        told.pid = pid
        status.write(tmp_path / "run", "follow-cache", told)
        follower = next(
            one for one in gather(settings(tmp_path), MemoryLog().reader(), Probe(SLOT)).followers if one.store == "cache"
        )
        assert follower.catch_up is not None
        assert (follower.rows_per_s, follower.catch_up.eta_s) == (rate, eta)


def test_a_dsn_that_is_none_any_more_is_part_of_the_report(tmp_path: Path) -> None:
    """Its file may hold anything once it is written again."""
    well(tmp_path)
    broken = SourceProbe(SecretStr(f"postgresql://cdc:{CANARY}@x@h/d"), "cdc")
    found = gather(settings(tmp_path), MemoryLog().reader(), broken)
    assert not found.source.reachable
    assert found.source.address == "source.dsn"
    assert any("not a connection string" in line for line in found.problems)
    assert CANARY not in str(found)


@pytest.mark.parametrize(("times", "alive"), [(1.0, False), (8.0, True)])
def test_on_a_busy_machine_a_part_may_be_silent_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, alive: bool
) -> None:
    lately = time.monotonic() - 5 * status.STALE_S
    status.write(tmp_path / "run", "capture", status.CaptureStatus(pid=os.getpid(), state="streaming", said_at=lately))
    monkeypatch.setattr(status, "slowness", lambda: times)
    capture = taken(tmp_path).capture
    assert capture is not None
    assert capture.alive is alive


def test_what_a_snapshot_was_asked_for_and_is_not_over_is_named(tmp_path: Path) -> None:
    requests = Requests(settings(tmp_path).log.dir)
    name = requests.queue(Request("public.orders", keys=((CANARY,),)))
    (note,) = taken(tmp_path).notes
    assert note.startswith(f"the snapshot of public.orders (request {name}, asked for at 2")
    assert note.endswith("is kept: capture takes it up as soon as it runs → cdc run")
    well(tmp_path)
    assert taken(tmp_path).notes[0].endswith("waits for capture to begin with it")
    requests.tell(name, RequestOutcome("running", 1, 9))
    (note,) = taken(tmp_path).notes
    assert note.endswith("is being read: 1 row so far")
    assert CANARY not in note
    requests.tell(name, RequestOutcome("done", 9, 9))
    assert taken(tmp_path).notes == ()
    (settings(tmp_path).log.dir / "requests" / "1.json").write_text("{")
    assert "is not a snapshot request; remove it" in taken(tmp_path).problems[0]
