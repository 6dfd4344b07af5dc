"""The report as Prometheus metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cdc.http.metrics import MAX_TABLES, ReportCollector
from cdc.report.shape import Report, SnapshotReport, TopicReport
from tests.unit.http import reports

DEPLOY = Path(__file__).parents[3] / "deploy"


def scraped(report: Report) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(ReportCollector(report))
    openmetrics(registry)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def names(report: Report) -> set[str]:
    return {name for name, _ in scraped(report)}


def test_values() -> None:
    found = scraped(reports.healthy(at=1_700_000_000.0))
    warehouse = (("store", "warehouse"),)
    assert found["headwater_healthy", ()] == 1
    assert found["headwater_log_head_position", ()] == 1_482_113
    assert found["headwater_store_lag_changes", warehouse] == 1_840
    assert found["headwater_store_lag_bytes", warehouse] == 1_840 * 180
    assert found["headwater_store_lag_seconds", warehouse] == 3.6
    assert found["headwater_slot_retained_bytes", ()] == 330_000_000
    assert found["headwater_slot_safe_wal_bytes", ()] == 3_670_000_000
    assert found["headwater_source_wal_lsn_bytes", ()] == 0x16_B374DA10
    assert found["headwater_store_changes_total", (("outcome", "stale"), ("store", "cache"))] == 3
    assert found["headwater_capture_state", (("state", "streaming"),)] == 1
    assert found["headwater_capture_state", (("state", "stopped"),)] == 0
    assert found["headwater_snapshot_done_rows", (("table", "public.flights"),)] == 336_776


def test_views_are_series_of_their_own() -> None:
    found = scraped(reports.with_views())
    busiest = (("view", "busiest"),)
    assert found["headwater_view_up", busiest] == 1
    assert found["headwater_view_lag_changes", busiest] == 12
    assert found["headwater_view_lag_seconds", busiest] == 0.42
    assert found["headwater_view_state", (("state", "following"), *busiest)] == 1
    assert found["headwater_view_changes_total", (("direction", "taken"), *busiest)] == 40_200
    assert found["headwater_view_step_seconds", busiest] == 0.0121
    assert found["headwater_view_kept_bytes", busiest] == 7_340_032
    assert not any(name.startswith("headwater_view") for name, _ in scraped(reports.healthy()))


HOSTILE = 'public.x"} 1\nheadwater_healthy 0\n#\\{a="b'


def test_a_tables_name_is_a_label_whatever_it_holds() -> None:
    report = reports.healthy()
    table = TopicReport(HOSTILE, 7, 70, 1, 7)
    found = scraped(replace(report, log=replace(report.log, tables=(table,))))
    assert found["headwater_log_table_rows", (("table", HOSTILE),)] == 7
    assert found["headwater_healthy", ()] == 1


def test_tables_do_not_make_series_without_end() -> None:
    report = reports.healthy()
    many = tuple(TopicReport(f"public.t{number}", 1, number, 1, 1) for number in range(3 * MAX_TABLES))
    loads = tuple(SnapshotReport(f"public.t{number}", 1, 2, number > 5) for number in range(3 * MAX_TABLES))
    assert report.capture is not None
    found = scraped(replace(report, log=replace(report.log, tables=many), capture=replace(report.capture, snapshot=loads)))
    for name in ("headwater_log_table_bytes", "headwater_snapshot_done_rows"):
        assert sum(family == name for family, _ in found) == MAX_TABLES
    assert found["headwater_log_tables", ()] == 3 * MAX_TABLES
    assert ("headwater_log_table_bytes", (("table", f"public.t{3 * MAX_TABLES - 1}"),)) in found, "the largest is there"
    assert found["headwater_snapshot_finished", (("table", "public.t3"),)] == 0, "and what is not finished"


def test_what_differs_is_told_by_table_and_kind() -> None:
    found = scraped(reports.drifting())
    of = (("store", "cache"), ("table", "public.flights"))
    assert found["headwater_store_drift_rows", (("kind", "missing"), *of)] == 2
    assert found["headwater_store_drift_rows", (("kind", "extra"), *of)] == 0
    assert found["headwater_store_drift_rows", (("kind", "different"), *of)] == 1
    assert found["headwater_store_audit_round_ratio", (("store", "cache"),)] == 0.5
    whole = scraped(reports.healthy())
    assert whole["headwater_store_whole_timestamp_seconds", (("store", "cache"),)] == reports.FOUND_AT - 60
    assert whole["headwater_store_table_whole_timestamp_seconds", of] == reports.FOUND_AT
    assert sum(value for (name, _), value in whole.items() if name == "headwater_store_drift_rows") == 0
    assert not {labels for name, labels in whole if "drift" in name or "whole" in name} & {(("store", "warehouse"),)}


def test_generations_are_series_of_their_own() -> None:
    found = scraped(reports.bootstrapping())
    one, three = (
        (("generation", number), ("state", state), ("store", "search")) for number, state in (("1", "kept"), ("3", "building"))
    )
    assert found["headwater_generation_up", one] == found["headwater_generation_up", three] == 1
    assert (found["headwater_generation_position", one], found["headwater_generation_lag_changes", three]) == (90, 14)
    assert found["headwater_generation_kept_until_timestamp_seconds", one] == 1_700_000_000.0
    assert ("headwater_generation_kept_until_timestamp_seconds", three) not in found
    assert (found["headwater_generation_done_ratio", three], found["headwater_generation_eta_seconds", three]) == (0.25, 6)
    assert ("headwater_generation_done_ratio", one) not in found


def test_stop_states_are_series() -> None:
    found = scraped(reports.stopped())
    assert found["headwater_stop", (("part", "capture"), ("state", "SLOT_LOST"))] == 1
    assert found["headwater_slot_wal_status", (("state", "lost"),)] == 1
    assert found["headwater_capture_up", ()] == 0


def test_what_is_not_known_has_no_sample() -> None:
    report = reports.healthy()
    first, *_ = report.followers
    unknown = replace(
        report, capture=None, source=replace(report.source, slot=None), followers=(replace(first, lag=None, commit_ts=None),)
    )
    found = names(unknown)
    assert "headwater_store_position" in found
    assert not {name for name in found if name.startswith(("headwater_slot", "headwater_capture", "headwater_store_lag"))}


def test_names_end_in_their_unit() -> None:
    report = reports.snapshotting()
    for name in names(report):
        assert re.search(
            r"_(bytes|seconds|ratio|rows|tables|changes|position|total|info|up|active|healthy|problems|state|status|stop|finished)$",
            name,
        ), name


@pytest.mark.parametrize(
    "file", sorted(DEPLOY.glob("grafana/*.json")) + sorted(DEPLOY.glob("prometheus/*.yml")), ids=lambda path: path.name
)
def test_dashboards_and_alerts_use_metrics_that_exist(file: Path) -> None:
    told = {
        name
        for report in (reports.healthy(), reports.stopped(), reports.snapshotting(), reports.store_down(), reports.with_views())
        for name in names(report)
    } | {"headwater_process_restarts_total"}
    used = set(re.findall(r"\bheadwater_[a-z_]+", file.read_text()))
    assert used
    assert used <= told, used - told
