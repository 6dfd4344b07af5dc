"""The report as Prometheus metrics. One family per fact; the unit is the name's last word, counters end in ``_total``.

Nothing is counted here: every scrape reads the report, so a fact that is not known has no sample instead of a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc.model.position import parse_lsn
from cdc.report.shape import CaptureReport, FollowerReport, GenerationReport, LogReport, Report, SlotReport, ViewReport
from cdc.state.status import CAPTURE_STATES, FOLLOWER_STATES, VIEW_STATES

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
MAX_TABLES: Final = 1000
"""Creating tables must not create series without end: the largest tables have some, and all are counted."""
Samples = Iterable[tuple[tuple[str, ...], float | int | bool | None]]


class ReportCollector(Collector):
    """Turns one report into metric families."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report
        yield gauge("headwater_info", "The running version.", [((report.version,), 1)], "version")
        yield gauge("headwater_healthy", "1 when nothing is stopped, down or in danger.", [((), report.healthy)])
        yield gauge("headwater_problems", "How many problems cdc status shows.", [((), len(report.problems))])
        yield gauge("headwater_source_up", "1 when the source answers.", [((), report.source.reachable)])
        yield gauge(
            "headwater_stop",
            "1 for every stop state that waits for an operator (cdc resume).",
            [((stop.state, stop.part), 1) for stop in report.stops],
            "state",
            "part",
        )
        yield counter(
            "headwater_process_restarts",
            "Times that the supervisor started a child again.",
            [((child.name,), child.restarts) for child in report.processes],
            "process",
        )
        if report.source.slot is not None:
            ages = [pin.age_s for pin in report.source.transactions if pin.age_s is not None]
            oldest = max(ages, default=0)
            yield gauge("headwater_source_open_transaction_seconds", "Age of the oldest that is open for long.", [((), oldest)])
            dangers = len(report.source.alarms)
            yield gauge("headwater_slot_problems", "Dangers to the slot's WAL, as cdc status names them.", [((), dangers)])
            yield from _slot(report.source.slot)
        if report.capture is not None:
            yield from _capture(report.capture)
        yield from _log(report.log)
        yield from _views(report.views)
        yield from _followers(report.followers)
        yield from _generations(report.generations)


def gauge(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, float(value))
    return family


def counter(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, float(value))
    return family


def states(name: str, text: str, known: Iterable[str], samples: Iterable[tuple[tuple[str, ...], str]], *labels: str) -> Metric:
    """One series per known state, 1 for the current one, so that alerts need no absent()."""
    found = [((*values, state), state == current) for values, current in samples for state in known]
    return gauge(name, text, found, *labels, "state")


def _slot(slot: SlotReport) -> Iterator[Metric]:
    yield gauge("headwater_slot_up", "1 when the replication slot exists.", [((), slot.exists)])
    yield gauge("headwater_slot_active", "1 while something reads the slot.", [((), slot.active)])
    yield gauge("headwater_slot_lag_bytes", "WAL written and not yet confirmed.", [((), slot.lag_bytes)])
    yield gauge("headwater_slot_retained_bytes", "WAL that Postgres keeps because of the slot.", [((), slot.held_bytes)])
    yield gauge("headwater_slot_safe_wal_bytes", "WAL budget left; no sample without a limit.", [((), slot.safe_wal_bytes)])
    yield gauge("headwater_slot_max_keep_bytes", "max_slot_wal_keep_size; no sample without a limit.", [((), slot.max_keep_bytes)])
    yield gauge("headwater_slot_budget_eta_seconds", "Until the budget is used up at the present rate.", [((), slot.budget_eta_s)])
    yield gauge(
        "headwater_source_wal_lsn_bytes",
        "Postgres's WAL position; its rate is the WAL written.",
        [((), parse_lsn(slot.server_lsn))],
    )
    if slot.wal_status is not None:
        yield states("headwater_slot_wal_status", "pg_replication_slots.wal_status.", WAL_STATUSES, [((), slot.wal_status)])


def _capture(capture: CaptureReport) -> Iterator[Metric]:
    yield gauge("headwater_capture_up", "1 while the capture process lives and reports.", [((), capture.alive)])
    yield states("headwater_capture_state", "What capture is doing.", CAPTURE_STATES, [((), capture.state)])
    yield counter("headwater_capture_changes", "Changes made durable since the process started.", [((), capture.changes)])
    yield counter("headwater_capture_wire_bytes", "Bytes read from Postgres since the process started.", [((), capture.wire_bytes)])
    yield gauge("headwater_capture_commit_timestamp_seconds", "Time of the last commit captured.", [((), capture.commit_ts)])
    tables = sorted(capture.snapshot, key=lambda table: (table.finished, -table.total))[:MAX_TABLES]
    yield gauge("headwater_snapshot_done_rows", "Rows of the table read so far.", [((t.table,), t.done) for t in tables], "table")
    yield gauge("headwater_snapshot_expected_rows", "Estimate of all of them.", [((t.table,), t.total) for t in tables], "table")
    yield gauge("headwater_snapshot_finished", "1 when the table is done.", [((t.table,), t.finished) for t in tables], "table")


def _log(log: LogReport) -> Iterator[Metric]:
    yield gauge("headwater_log_head_position", "Position of the last durable change.", [((), log.position)])
    yield gauge("headwater_log_commit_timestamp_seconds", "Time of the last durable commit.", [((), log.commit_ts)])
    yield gauge("headwater_log_rows", "Changes that the log keeps.", [((), log.rows)])
    yield gauge("headwater_log_bytes", "The log's size on disk.", [((), log.bytes)])
    yield gauge("headwater_log_disk_free_bytes", "Room left on the log's disk.", [((), log.disk_free_bytes)])
    yield gauge("headwater_log_tables", "Tables that the log has changes of.", [((), len(log.tables))])
    tables = sorted(log.tables, key=lambda table: -table.bytes)[:MAX_TABLES]
    yield gauge("headwater_log_table_rows", "Changes kept, by table (the largest).", [((t.name,), t.rows) for t in tables], "table")
    yield gauge(
        "headwater_log_table_bytes",
        "Bytes of changes kept, by table (the largest).",
        [((t.name,), t.bytes) for t in tables],
        "table",
    )


def _followers(followers: Iterable[FollowerReport]) -> Iterator[Metric]:
    known = list(followers)

    def each(name: str, text: str, value: str) -> Metric:
        return gauge(name, text, [((f.store,), getattr(f, value)) for f in known], "store")

    def lag(name: str, text: str, value: str) -> Metric:
        return gauge(name, text, [((f.store,), None if f.lag is None else getattr(f.lag, value)) for f in known], "store")

    yield gauge("headwater_store_info", "The configured stores.", [((f.store, f.kind), 1) for f in known], "store", "kind")
    yield each("headwater_store_up", "1 while the store's follower lives and reports.", "alive")
    yield states(
        "headwater_store_state", "What the follower is doing.", FOLLOWER_STATES, [((f.store,), f.state) for f in known], "store"
    )
    yield each("headwater_store_position", "The highest position that the store holds completely.", "position")
    yield each("headwater_store_commit_timestamp_seconds", "Time of the last commit that the store holds.", "commit_ts")
    yield lag("headwater_store_lag_changes", "Changes in the log that the store does not hold yet.", "changes")
    yield lag("headwater_store_lag_bytes", "Their bytes in the log.", "bytes")
    yield lag("headwater_store_lag_seconds", "Age of the oldest commit that the store does not hold yet.", "seconds")
    yield gauge(
        "headwater_store_catch_up_ratio",
        "Share of its changes that a store far behind holds; no sample otherwise.",
        [((f.store,), f.catch_up.done / f.catch_up.total) for f in known if f.catch_up is not None],
        "store",
    )
    yield gauge(
        "headwater_store_catch_up_eta_seconds",
        "Until a store far behind has caught up, at the present rate.",
        [((f.store,), f.catch_up.eta_s) for f in known if f.catch_up is not None],
        "store",
    )
    yield counter(
        "headwater_store_changes",
        "Changes handled since the follower started: written (by a store of events: read, whatever has become of their events), stale (a newer one was there); "
        "dead (set aside): since the store was empty.",
        [((f.store, kind), getattr(f, kind)) for f in known for kind in ("written", "stale", "dead")],
        "store",
        "outcome",
    )
    letters = [(f.store, one) for f in known for one in sorted(f.aside, key=lambda one: -one.letters)[:MAX_TABLES]]
    yield gauge(
        "headwater_store_dead_letters",
        "Rows that the store cannot hold now, and events that can never arrive as they are: aside (nobody has decided about them), edited, accepted.",
        [
            ((store, one.table, state), count)
            for store, one in letters
            for state, count in (("aside", one.undecided), ("edited", one.edited), ("accepted", one.accepted))
        ],
        "store",
        "table",
        "state",
    )
    yield gauge(
        "headwater_store_oldest_dead_letter_timestamp_seconds",
        "When the oldest of them that nobody has decided about was set aside.",
        [((store, one.table), one.oldest_at) for store, one in letters],
        "store",
        "table",
    )
    yield from _audits(known)
    yield counter(
        "headwater_store_batches",
        "Batches committed since the follower started.",
        [((f.store,), f.batches) for f in known],
        "store",
    )


def _views(views: Iterable[ViewReport]) -> Iterator[Metric]:
    known = [((one.view,), one) for one in views]
    if not known:
        return

    def each(name: str, text: str, value: str) -> Metric:
        return gauge(name, text, [(of, getattr(one, value)) for of, one in known], "view")

    def lag(name: str, text: str, value: str) -> Metric:
        return gauge(name, text, [(of, None if one.lag is None else getattr(one.lag, value)) for of, one in known], "view")

    yield each("headwater_view_up", "1 while the view's process lives and reports.", "alive")
    yield states("headwater_view_state", "What it is doing.", VIEW_STATES, [(of, one.state) for of, one in known], "view")
    yield each("headwater_view_position", "Up to here the view's rows show what its topics had.", "position")
    yield each("headwater_view_commit_timestamp_seconds", "Time of the last commit that it shows.", "commit_ts")
    yield lag("headwater_view_lag_changes", "Changes of its topics that it does not show yet.", "changes")
    yield lag("headwater_view_lag_seconds", "Age of the oldest commit that it does not show yet.", "seconds")
    yield counter(
        "headwater_view_changes",
        "Changes since its process started: taken in (of its topics), and written (to its own).",
        [((one.view, kind), getattr(one, kind)) for _, one in known for kind in ("taken", "written")],
        "view",
        "direction",
    )
    yield gauge(
        "headwater_view_step_seconds",
        "What its last range of the log took; no sample before the first.",
        [(of, one.step.seconds) for of, one in known if one.step is not None],
        "view",
    )
    yield each("headwater_view_kept_rows", "Rows of its state.", "state_rows")
    yield each("headwater_view_kept_bytes", "Their size on the disk.", "state_bytes")


def _generations(generations: Iterable[GenerationReport]) -> Iterator[Metric]:
    known = [((one.store, str(one.number), one.state), one) for one in generations]
    labels = ("store", "generation", "state")
    built = [(of, one.progress) for of, one in known if one.progress is not None]
    yield gauge(
        "headwater_generation_up",
        "1 while somebody builds or feeds a generation of a store that its readers do not see.",
        [(of, one.alive and one.error is None) for of, one in known],
        *labels,
    )
    yield gauge("headwater_generation_position", "What it holds completely.", [(of, one.position) for of, one in known], *labels)
    yield gauge(
        "headwater_generation_lag_changes",
        "Changes in the log that it does not hold yet.",
        [(of, one.lag.changes) for of, one in known],
        *labels,
    )
    yield gauge(
        "headwater_generation_kept_until_timestamp_seconds",
        "When one that is kept is removed; no sample where it never is.",
        [(of, one.until) for of, one in known],
        *labels,
    )
    yield gauge(
        "headwater_generation_done_ratio",
        "Share of its present phase.",
        [(of, far.done / far.total) for of, far in built],
        *labels,
    )
    yield gauge(
        "headwater_generation_eta_seconds", "Until that ends, at the present rate.", [(of, far.eta_s) for of, far in built], *labels
    )


def _audits(followers: Iterable[FollowerReport]) -> Iterator[Metric]:
    known = [(f.store, f.audit) for f in followers if f.audit is not None]
    tables = [
        (store, one)
        for store, audit in known
        for one in sorted(audit.tables, key=lambda one: (-one.differing, -one.rows))[:MAX_TABLES]
    ]
    yield gauge(
        "headwater_store_audit_round_ratio",
        "How far the continuous audit's present round over the store's tables is.",
        [((store,), audit.round_share) for store, audit in known],
        "store",
    )
    yield gauge(
        "headwater_store_whole_timestamp_seconds",
        "When the last of the store's tables was found whole by the continuous audit; no sample while one never was.",
        [((store,), audit.whole_at) for store, audit in known],
        "store",
    )
    yield gauge(
        "headwater_store_table_whole_timestamp_seconds",
        "When all of the table was last compared with the log and nothing differed.",
        [((store, one.table), one.whole_at) for store, one in tables],
        "store",
        "table",
    )
    yield gauge(
        "headwater_store_drift_rows",
        "Rows in which the store differs from the log, as the continuous audit found them.",
        [
            ((store, one.table, kind), getattr(one, kind))
            for store, one in tables
            if one.compared_at is not None or one.differing
            for kind in ("missing", "extra", "different")
        ],
        "store",
        "table",
        "kind",
    )
