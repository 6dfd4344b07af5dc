"""A view's part of the report."""

from __future__ import annotations

from cdc.log.contract import LogReader
from cdc.model.position import Cut, Position
from cdc.model.selection import literal, matches
from cdc.report.lag import commit_lsn, commit_ts, lag_of
from cdc.report.shape import StepReport, ViewGenerationReport, ViewReport
from cdc.settings.models import Settings
from cdc.settings.views import topic_of
from cdc.state import status


def view_report(
    settings: Settings, name: str, saved: status.ViewStatus | None, reader: LogReader, head: Cut, now: float
) -> ViewReport:
    """``saved``: its status file's content; None where it has never run. ``now``: as of ``lag_of``."""
    lag = None
    if saved is None:
        saved = status.ViewStatus(name, state="never started")
    elif saved.position:  # one that shows nothing yet is behind by more than its changes
        lag = lag_of(reader, head, Position(saved.position), [literal(one) for one in saved.topics], now)
    alive = status.reports(saved)
    return ViewReport(
        view=name,
        state=saved.state,
        alive=alive,
        stop=saved.stop,
        error=saved.error,
        position=saved.position,
        commit_lsn=commit_lsn(saved.commit_lsn),
        commit_ts=commit_ts(saved.commit_ts_us),
        lag=lag,
        taken=saved.taken,
        written=saved.written,
        taken_per_s=saved.taken_per_s if alive else 0.0,
        written_per_s=saved.written_per_s if alive else 0.0,
        step=StepReport(saved.step_s, saved.step_taken, saved.step_written) if saved.steps else None,
        state_rows=saved.state_rows,
        state_bytes=saved.state_bytes,
        reads=tuple(saved.topics),
        stores=tuple(store for store, options in settings.stores.items() if matches(options.tables, topic_of(name))),
        updated_at=saved.updated_at,
        generations=tuple(map(_generation, saved.generations)),
    )


def _generation(one: status.ViewGeneration) -> ViewGenerationReport:
    until = one.until or None
    eta_s = max(one.expected - one.done, 0) / one.rows_per_s if one.rows_per_s else None
    return ViewGenerationReport(one.number, one.state, one.position, one.done, one.expected, one.bytes, until, one.error, eta_s)
