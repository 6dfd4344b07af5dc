"""The wall clock jumps by hours, forward and back: nothing hangs, stops or lies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.http.events import Feed
from cdc.http.past import Past
from cdc.ingest.meter import Meter
from cdc.log.memory import MemoryLog
from cdc.model.position import Cut, Lsn, Position
from cdc.report import probe
from cdc.report.collector import gather, lag_of
from cdc.report.probe import SourceProbe
from cdc.report.shape import Lag, Report
from cdc.settings.models import Log, Settings, Source
from cdc.source.slot import SlotFacts, SlotReader
from cdc.spark import queries as follow
from cdc.state import status
from sinks.warehouse import upkeep
from sinks.warehouse.options import Options
from snapshots.progress import SnapshotProgress
from snapshots.requests import OUTCOME_KEPT_S, Request, RequestOutcome, Requests
from tests.unit.http.test_past import at

HOURS_S = 3 * 3600.0
STEPS = [HOURS_S, -HOURS_S, 40 * 365 * 24 * 3600.0, -40 * 365 * 24 * 3600.0]
SLOT = SlotFacts(name="cdc", exists=True, server_lsn=Lsn(9 << 20), reader=SlotReader(7), wal_status="reserved")


class Clock:
    """The wall clock of this process, which ``step`` sets; the monotonic one goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off = 0.0
        real, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + self.off)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(self.off * 1e9))

    def step(self, seconds: float) -> None:
        self.off += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Probe(SourceProbe):
    def __init__(self) -> None:
        super().__init__(SecretStr("postgresql://h/d"), "cdc")

    def _facts(self) -> SlotFacts:
        return SLOT


def report(folder: Path) -> Report:
    made = Settings(source=Source(dsn=SecretStr("postgresql://u@127.0.0.1:1/d")), log=Log(dir=folder / "log"), run_dir=folder)
    return gather(made, MemoryLog().reader(), Probe())


@pytest.mark.parametrize("seconds", STEPS)
def test_a_part_that_has_just_reported_lives_and_a_silent_one_does_not(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("cdc.state.status.slowness", lambda: 1.0)
    meter = Meter(tmp_path, "cdc", SnapshotProgress(tmp_path))
    meter.tables = SimpleNamespace(loaded=lambda: True, paused=lambda: None, left_out=list, notes=list, passed_over=tuple)
    meter.say("streaming")
    clock.step(seconds)
    assert report(tmp_path).problems == ()
    started = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started + 60.0)
    [silent] = report(tmp_path).problems
    assert silent.startswith("capture has reported nothing for 6")


@pytest.mark.parametrize("seconds", STEPS)
def test_lag_is_by_the_clock_that_dated_the_commits(clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The source's: ours may be hours off, or be set, at any time."""

    class Connection:
        def close(self) -> None: ...

    now = time.time()
    monkeypatch.setattr(probe, "connect", lambda *_, **__: Connection())
    monkeypatch.setattr(probe, "read_slot", lambda *_: replace(SLOT, server_time=now))
    monkeypatch.setattr(probe.PinWatch, "look", lambda *_: [])
    asked = SourceProbe(SecretStr("postgresql://h/d"), "cdc")
    asked.read()
    clock.step(seconds)
    assert abs(asked.now() - now) < 60
    reader: Any = SimpleNamespace(
        topics=lambda: [SimpleNamespace(name="a", table="public.a", last=2)],
        lineage=lambda: None,
        slices=lambda *_: [SimpleNamespace(rows=1, bytes=8)],
        cut_within=lambda *_: Cut(Position(2), Lsn(2), int((now - 5) * 1e6)),
    )
    lag = lag_of(reader, Cut(Position(2), Lsn(2)), Position(1), ["*"], asked.now())
    assert 5 <= lag.seconds < 65
    assert lag == Lag(1, 8, lag.seconds)


def test_the_last_day_goes_on_when_the_clock_is_set_back() -> None:
    """What was is as long ago as before, so that minutes and problems stay in order."""
    past = Past()
    day = 24 * 3600.0
    past.take(at(day, position=0, problems=("it hurts",)))
    past.take(at(day + 60, position=10))
    past.take(at(day + 120 - HOURS_S, position=15))
    assert past.take(at(day + 180 - HOURS_S, position=16)), "a minute is complete"
    assert [(minute.at - day + HOURS_S, minute.captured) for minute in past.minutes] == [(60, 0), (120, 15), (180, 1)]
    [hurt] = past.episodes
    assert hurt.until is not None
    assert hurt.since <= hurt.until <= day + 120 - HOURS_S


async def _history(reports: list[Report]) -> list[float]:
    left = iter(reports)
    feed = Feed(lambda: next(left))
    for _ in reports:
        await feed.latest(max_age_s=-1.0)
    return [sample["at"] for sample in feed.charts.history_json()]


@pytest.mark.anyio
async def test_the_charts_have_no_moment_of_a_time_to_come() -> None:
    assert await _history([at(1000.0), at(1001.0), at(500.0), at(501.0)]) == [500.0, 501.0]


@pytest.mark.parametrize("seconds", STEPS)
def test_an_outcome_that_somebody_waits_for_stays_and_old_ones_go(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    requests = Requests(tmp_path)
    name = requests.queue(Request("public.t"))
    requests.tell(name, RequestOutcome("done", 3))
    requests.pending()
    clock.step(seconds)
    requests.pending()
    assert requests.outcome(name).state == "done"
    later = time.monotonic() + OUTCOME_KEPT_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    requests.pending()
    assert requests.outcome(name).state == "queued", "it is gone"


def test_requests_stay_in_their_order_when_the_clock_is_set_back(tmp_path: Path, clock: Clock) -> None:
    requests = Requests(tmp_path)
    names = [requests.queue(Request("public.a"))]
    clock.step(-HOURS_S)
    names.append(Requests(tmp_path).queue(Request("public.b")))
    assert list(requests.pending()) == names


def test_a_query_waits_by_no_clock_that_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark waits for its next trigger until the wall clock shows it: hours, when that is set back."""
    triggers: list[str] = []
    writer = _Chain(triggers)
    spark: Any = SimpleNamespace(readStream=_Chain(triggers, writer))
    applied: list[Any] = []
    follower: Any = SimpleNamespace(
        store="lake",
        applied=Cut(Position(0), Lsn(0)),
        options=SimpleNamespace(tables=["*"], batch_rows=1, batch_bytes=1, commit_interval_s=0.06),
        follow_to=lambda cut, _: applied.append((cut, time.monotonic())),
        between_batches=nullcontext,
    )
    monkeypatch.setattr(follow, "end_of", lambda *_: Cut(Position(5), Lsn(5)))
    stop = follow.threading.Event()
    query = follow.StoreQuery(SimpleNamespace(), follower, SimpleNamespace(), tmp_path, tmp_path, stop)  # type: ignore[arg-type]
    query._started(spark, tmp_path)
    assert triggers == ["0 milliseconds"]
    began = time.monotonic()
    for number in range(3):
        writer.batch(None, number)
    assert time.monotonic() - began >= 3 * 0.06, "commits are no closer together than the store's interval"
    assert len(applied) == 3


class _Chain:
    """Spark's builders: every call gives one of them again."""

    def __init__(self, triggers: list[str], stream: Any = None) -> None:
        self.writeStream = stream or self
        self._triggers = triggers
        self.batch: Any = None

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if name == "trigger":
                self._triggers.append(named["processingTime"])
            if name == "foreachBatch":
                self.batch = given[0]
            return self

        return call


@pytest.mark.parametrize("seconds", STEPS)
def test_no_version_of_a_table_goes_early(clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    expired: list[float] = []
    place: Any = SimpleNamespace(shelves=list, iceberg=SimpleNamespace(expire=lambda ms, _: expired.append(ms / 1000)))
    options = Options(kind="iceberg", path=Path("x"), keep_snapshots_s=3600)
    made_at = time.time()
    leftovers: Any = SimpleNamespace(remove=lambda _: None)
    kept = upkeep.Upkeep(place, options, leftovers, set)
    clock.step(seconds)
    with after(monkeypatch, 120.0):
        kept.after_commit(SimpleNamespace(epoch=1))  # type: ignore[arg-type]
    assert len(expired) == 1
    assert expired[0] <= made_at - 3600 + 180


@contextmanager
def after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: began + seconds)
        yield


def test_a_status_of_before_the_machine_started_is_of_nobody(tmp_path: Path) -> None:
    told = status.CaptureStatus(pid=os.getpid(), state="streaming", updated_at=time.time(), said_at=time.monotonic() + 1e6)
    status.write(tmp_path, "capture", told)
    assert not status.silent_s(told) < 1e9
