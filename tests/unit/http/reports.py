"""Reports made by hand: a healthy service, and what can go wrong with it."""

from __future__ import annotations

import time
from dataclasses import replace

from cdc.report.shape import (
    AuditedTableReport,
    AuditReport,
    CaptureReport,
    CatchUp,
    FollowerReport,
    GenerationReport,
    Lag,
    LettersReport,
    LogReport,
    Report,
    SlotReport,
    SnapshotReport,
    SourceReport,
    StepReport,
    StopReport,
    TopicReport,
    ViewReport,
)

GB = 10**9
FOUND_AT = 1_385_000_000.0


def audited(
    table: str, *, missing: int = 0, extra: int = 0, different: int = 0, whole_at: float | None = FOUND_AT
) -> AuditedTableReport:
    """One table in the continuous audit."""
    return AuditedTableReport(table, whole_at, FOUND_AT, 1_480_000, 336_776, missing, extra, different, 2, False, None)


WHOLE = AuditReport(None, 0.25, (audited("public.flights"), audited("public.airports", whole_at=FOUND_AT - 60)))
DRIFTS = AuditReport(None, 0.5, (audited("public.flights", missing=2, different=1), audited("public.airports")))
LETTERS = (LettersReport("public.orders", 4, 1, 1, 1_385_000_000.0),)


def follower(store: str, kind: str, *, position: int, written: int, behind: int = 0, lag_s: float = 0.0) -> FollowerReport:
    return FollowerReport(
        store=store,
        kind=kind,
        state="following",
        alive=True,
        stop=None,
        error=None,
        position=position,
        commit_lsn="16/B374D848",
        commit_ts=time.time() - lag_s,
        lag=Lag(behind, behind * 180, lag_s),
        written=written,
        stale=3,
        dead=0,
        batches=written // 40,
        rows_per_s=480.0,
        updated_at=time.time(),
    )


def healthy(at: float | None = None, position: int = 1_482_113) -> Report:
    at = time.time() if at is None else at
    slot = SlotReport(
        name="cdc",
        exists=True,
        active=True,
        wal_status="reserved",
        server_lsn="16/B374DA10",
        confirmed_lsn="16/B374D848",
        lag_bytes=456,
        held_bytes=int(0.33 * GB),
        max_keep_bytes=4 * GB,
        safe_wal_bytes=int(3.67 * GB),
        wal_bytes_per_s=310_000.0,
        budget_eta_s=3.67 * GB / 310_000,
    )
    capture = CaptureReport(
        state="streaming",
        alive=True,
        stop=None,
        error=None,
        position=position,
        commit_lsn="16/B374D848",
        commit_ts=at - 0.2,
        received_lsn="16/B374DA10",
        confirmed_lsn="16/B374D848",
        changes=position - 336_776,
        changes_per_s=512.0,
        wire_bytes=91_002_113,
        snapshot=(SnapshotReport("public.flights", 336_776, 336_776, True),),
        updated_at=at,
    )
    tables = (
        TopicReport("public.flights", position - 27_602, 118_204_112, 1, position),
        TopicReport("public.weather", 26_115, 2_207_004, 210, 371_020),
        TopicReport("public.airports", 1_458, 141_021, 2, 1_458),
        TopicReport("public.airlines", 16, 1_211, 1, 16),
        TopicReport("public.planes", 13, 880, 17, 34),
    )
    return Report(
        version="0.1.0",
        at=at,
        healthy=True,
        problems=(),
        source=SourceReport(True, None, "db.internal:5432/airport", slot),
        capture=capture,
        log=LogReport(
            dir="var/log",
            position=position,
            commit_lsn="16/B374D848",
            commit_ts=at - 0.2,
            rows=position,
            bytes=120_554_228,
            disk_free_bytes=77 * GB,
            tables=tables,
        ),
        followers=(
            follower("search", "opensearch", position=position - 4, written=position - 4, behind=4, lag_s=0.031),
            replace(follower("cache", "redis", position=position, written=position), audit=WHOLE),
            follower("warehouse", "iceberg", position=position - 1_840, written=position - 1_840, behind=1_840, lag_s=3.6),
        ),
        stops=(),
        processes=(),
    )


def view(name: str, *, position: int, behind: int = 0, lag_s: float = 0.0, stores: tuple[str, ...] = ("cache",)) -> ViewReport:
    return ViewReport(
        view=name,
        state="following",
        alive=True,
        stop=None,
        error=None,
        position=position,
        commit_lsn="16/B374D848",
        commit_ts=time.time() - lag_s,
        lag=Lag(behind, behind * 180, lag_s),
        taken=40_200,
        written=1_310,
        taken_per_s=480.0,
        written_per_s=12.5,
        step=StepReport(0.0121, 96, 3),
        state_rows=61_440,
        state_bytes=7_340_032,
        reads=("public.flights", "public.airports"),
        stores=stores,
        updated_at=time.time(),
    )


def with_views(at: float | None = None) -> Report:
    """Two views: one shows all, one is behind."""
    report = healthy(at)
    position = report.log.position
    return replace(
        report,
        views=(
            view("delays", position=position, stores=("cache", "search")),
            view("busiest", position=position - 31, behind=12, lag_s=0.42),
        ),
    )


def snapshotting(at: float | None = None, done: int = 141_500) -> Report:
    report = healthy(at, position=done + 27_602)
    assert report.capture is not None
    tables = (
        SnapshotReport("public.airlines", 16, 16, True),
        SnapshotReport("public.airports", 1_458, 1_458, True),
        SnapshotReport("public.flights", done, 336_776, False),
        SnapshotReport("public.planes", 0, 3_322, False),
        SnapshotReport("public.weather", 26_115, 26_115, True),
    )
    return replace(report, capture=replace(report.capture, state="snapshot", snapshot=tables))


def store_down(at: float | None = None) -> Report:
    report = healthy(at)
    search, cache, warehouse = report.followers
    error = "cannot reach https://search.internal:9200: connection refused"
    down = replace(search, state="waiting", error=error, lag=Lag(184_220, 33_159_600, 421.0), dead=2, aside=LETTERS)
    problems = (f"follower search is waiting: {error}", "store search set 2 changes aside")
    return replace(report, followers=(down, cache, warehouse), healthy=False, problems=problems)


def drifting(at: float | None = None) -> Report:
    """Somebody else has changed rows in the cache."""
    report = healthy(at)
    search, cache, warehouse = report.followers
    problem = "store cache differs from the log in 3 rows of public.flights → cdc audit cache --table public.flights lists them"
    return replace(report, followers=(search, replace(cache, audit=DRIFTS), warehouse), healthy=False, problems=(problem,))


def bootstrapping(at: float | None = None) -> Report:
    """A search index's next generation is being built, and the one before is kept."""
    report = healthy(at)
    kept = GenerationReport("search", 1, "kept", True, None, 90, Lag(4, 40, 1.0), None, None, 1_700_000_000.0)
    built = GenerationReport(
        "search", 3, "building", True, None, 80, Lag(14, 140, 9.0), "building", CatchUp(50, 200, 25.0, 6.0), None
    )
    return replace(report, generations=(kept, built))


def stopped(at: float | None = None) -> Report:
    report = healthy(at)
    assert report.capture is not None
    assert report.source.slot is not None
    message = "replication slot cdc has been invalidated because it exceeded the maximum reserved size"
    stop = StopReport("SLOT_LOST:capture", "SLOT_LOST", "capture", message, "cdc resume SLOT_LOST", report.at - 1_260)
    slot = replace(report.source.slot, active=False, wal_status="lost", safe_wal_bytes=None, held_bytes=4 * GB, budget_eta_s=None)
    return replace(
        report,
        healthy=False,
        problems=(
            "replication slot 'cdc' is lost: Postgres removes WAL that it still needs → cdc doctor",
            "capture does not run → cdc run",
            f"capture stopped: SLOT_LOST: {message} → cdc resume SLOT_LOST",
        ),
        stops=(stop,),
        source=replace(report.source, slot=slot),
        capture=replace(report.capture, state="stopped", alive=False, stop="SLOT_LOST"),
    )


def loading(at: float | None = None, done: int = 64_700) -> Report:
    """A store's first load is under way, and another one waited for its server a moment ago."""
    report = healthy(at)
    search, *others = report.followers
    search = replace(search, rows_per_s=8_200.0, catch_up=CatchUp(done, 154_000, 8_200.0, (154_000 - done) / 8_200.0))
    return replace(report, followers=(search, *others))
