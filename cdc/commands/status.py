"""`cdc status`: how far every part is, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import budget_lasts, console, line, moment, print_json, seconds, size, table_of
from cdc.terminal import counted, visible

if TYPE_CHECKING:
    from cdc.report.shape import (
        CaptureReport,
        FollowerReport,
        GenerationReport,
        Report,
        SourceReport,
        ViewGenerationReport,
        ViewReport,
    )

WIDE_COLUMNS: Final = 120
_WIDE: Final = ("store", "kind", "state", ">position", ">behind", ">bytes", ">seconds", ">rows/s", ">written", ">set aside")
_NARROW: Final = ("store", "state", ">behind", ">seconds", ">rows/s", ">set aside")
"""Where there is no room for more; the rest is in --json and on the page."""
_WIDE_VIEWS: Final = ("view", "state", ">position", ">behind", ">seconds", ">taken/s", ">written/s", ">rows kept", ">bytes kept")
_NARROW_VIEWS: Final = ("view", "state", ">behind", ">seconds", ">rows kept", ">bytes kept")
_WATCH_S: Final = 1.0


def status(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (its keys: cdc/report/shape.py).")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until Ctrl-C.")] = False,
) -> None:
    """Lag per follower, slot and WAL budget, log size, stop states with their way out."""
    from cdc.report.collector import gather
    from cdc.report.currentlog import CurrentLog
    from cdc.report.probe import SourceProbe

    settings = invocation(context).settings()
    log = CurrentLog(open_log(settings), settings.log.dir)
    probe = SourceProbe(settings.source.dsn, settings.source.slot)
    out = console()

    def look() -> Report:
        with log.looked_at() as reader:
            return gather(settings, reader, probe)

    try:
        if not watch:
            report = look()
            print_json(report.to_json()) if as_json else out.print(_shown(report, None if not out.is_terminal else out.width))
            return
        if as_json or not out.is_terminal:
            while True:
                report = look()
                print_json(report.to_json()) if as_json else out.print(_shown(report, None))
                time.sleep(_WATCH_S)
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_shown(look(), out.width), refresh=True)
                time.sleep(_WATCH_S)
    finally:
        probe.close()


def _shown(report: Report, width: int | None) -> RenderableType:
    """The report for a terminal of this many columns; as plain lines where it is none."""
    if width is None:
        return Text("\n".join(map(visible, lines(report))))
    wide = width >= WIDE_COLUMNS
    stores = _picked("stores", _WIDE, _WIDE if wide else _NARROW, map(_cells, report.followers))
    return Group(
        *(_indented(one) for one in (_source_line(report.source), _capture_line(report.capture), _log_line(report))),
        *(
            _indented(one)
            for one in (
                *_snapshot_lines(report.capture),
                *_loading_lines(report),
                *_generation_lines(report),
                *_audit_lines(report),
            )
        ),
        Text(""),
        *((view_table(report.views, width), Text("")) if report.views else ()),
        stores,
        *(_indented(f"! {problem}", "red") for problem in report.problems),
        *(_indented(f"· {note}") for note in report.notes),
    )


def _picked(title: str, known: Sequence[str], heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of these columns of the ``known`` ones."""
    return table_of(title, heads, [[cell for head, cell in zip(known, row, strict=True) if head in heads] for row in rows])


def view_table(views: Sequence[ViewReport], width: int) -> Table:
    """The views, for a terminal of this many columns."""
    return _picked("views", _WIDE_VIEWS, _WIDE_VIEWS if width >= WIDE_COLUMNS else _NARROW_VIEWS, map(_view_cells, views))


def _indented(text: str, style: str = "") -> Table:
    """One line, and what of it does not fit under it, further in."""
    label, _, rest = text.partition(" ")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(line(label, style or "bold"), line(rest, style))
    return grid


def lines(report: Report) -> Iterator[str]:
    """The report as plain lines."""
    yield _source_line(report.source)
    yield _capture_line(report.capture)
    yield from _snapshot_lines(report.capture)
    yield _log_line(report)
    yield from map(view_line, report.views)
    for follower in report.followers:
        lag = follower.lag
        behind = f"{counted(lag.changes, 'change')}, {size(lag.bytes)}, {seconds(lag.seconds)} behind" if lag else "has not begun"
        yield f"follower {follower.store} ({follower.kind}): {state_of(follower)} at {follower.position}, {behind}, {follower.undecided} set aside"
    yield from _loading_lines(report)
    yield from _generation_lines(report)
    yield from _audit_lines(report)
    for process in report.processes:
        yield f"process {process.name}: {process.state}, pid {process.pid or '-'}, {counted(process.restarts, 'restart')}"
    for problem in report.problems:
        yield f"! {problem}"
    for note in report.notes:
        yield f"· {note}"


def view_line(view: ViewReport) -> str:
    """How far a view is, what it does, and how large its state is."""
    lag, step = view.lag, view.step
    behind = f"{counted(lag.changes, 'change')}, {size(lag.bytes)}, {seconds(lag.seconds)} behind" if lag else "has not begun"
    last = f", last step {seconds(step.seconds)} for {counted(step.taken, 'change')}" if step else ""
    return (
        f"view {view.view}: {state_of(view)} at {view.position}, {behind}, {view.taken_per_s:.0f}/s taken, {view.written_per_s:.0f}/s written, "
        f"{counted(view.state_rows, 'row')} and {size(view.state_bytes)} of state{last}"
    )


def view_generation_lines(view: ViewReport) -> Iterator[str]:
    """One for each generation of a view, where it has several."""
    for one in view.generations if len(view.generations) > 1 else ():
        yield f"generation {one.number} of view {view.view}: {_how_one_stands(one, view.position)}" + (
            f", {size(one.bytes)}" if one.bytes else ""
        )


def _how_one_stands(one: ViewGenerationReport, live_at: int) -> str:
    if one.state == "live":
        return f"live at {one.position}"
    if one.state == "kept":
        return f"kept at {one.position} until {moment(one.until or 0.0)}"
    if one.state == "refused":
        return f"refused: {one.error}"
    if one.error:
        return f"being built, waits: {one.error}"
    if one.total:
        left = f", about {seconds(one.eta_s)} left" if one.eta_s is not None else ""
        return f"being built, {one.done} of at most {one.total} rows, {100 * one.done // one.total} %{left}"
    return f"being built, at {one.position} of {live_at}"


def _loading_lines(report: Report) -> Iterator[str]:
    for follower in report.followers:
        if (far := follower.catch_up) is not None:
            left = f", about {seconds(far.eta_s)} left" if far.eta_s is not None else ""
            share = 100 * far.done // far.total
            yield f"loading {follower.store}: {share} %, {far.done} of {far.total} changes, {far.rows_per_s:.0f}/s{left}"


def _generation_lines(report: Report) -> Iterator[str]:
    yield from (text for view in report.views for text in view_generation_lines(view))
    for one in report.generations:
        yield f"generation {one.number} of {one.store}: {_how_it_stands(one)}"


def _how_it_stands(one: GenerationReport) -> str:
    behind = f"at {one.position}, {counted(one.lag.changes, 'change')} behind"
    if one.state == "kept":
        kept = "kept" if one.until is None else f"kept until {moment(one.until)}"
        wrong = f"; not fed: {one.error}" if one.error else "" if one.alive else "; not fed → cdc run"
        return f"{kept}, {behind}{wrong}"
    if not one.alive:
        return f"was being built ({one.phase}), {behind} → cdc bootstrap goes on with it; cdc generations --drop removes it"
    far = one.progress
    of = f", {far.done} of at most {far.total} rows, {far.rows_per_s:.0f}/s" if far else ""
    left = f", about {seconds(far.eta_s)} left" if far and far.eta_s else ""
    return f"{one.phase}{of}{left}, {behind}"


def _audit_lines(report: Report) -> Iterator[str]:
    """What differs is among the problems."""
    for follower in report.followers:
        audit = follower.audit
        if audit is None or (not audit.tables and audit.waits is None):
            continue
        if audit.drift:
            found = f"{len(audit.drift)} of {counted(len(audit.tables), 'table')} with drift"
        elif audit.whole_at is None:
            found = "not every table has been compared yet"
        else:
            found = f"every table whole, the oldest finding of {moment(audit.whole_at)}"
        waits = f"; waits: {audit.waits}" if audit.waits else ""
        yield f"audit {follower.store}: {found}, round {100 * audit.round_share:.0f} %{waits}"
        yield from (f"audit {follower.store} {one.table}: not compared: {one.problem}" for one in audit.tables if one.problem)


def _cells(follower: FollowerReport) -> tuple[str, ...]:
    lag = follower.lag
    behind = (str(lag.changes), size(lag.bytes), seconds(lag.seconds)) if lag else ("-", "-", "-")
    return (
        follower.store,
        follower.kind,
        state_of(follower),
        str(follower.position),
        *behind,
        f"{follower.rows_per_s:.0f}",
        str(follower.written),
        str(follower.undecided),
    )


def _view_cells(view: ViewReport) -> tuple[str, ...]:
    lag = view.lag
    behind = (str(lag.changes), seconds(lag.seconds)) if lag else ("-", "-")
    return (
        view.view,
        state_of(view),
        str(view.position),
        *behind,
        f"{view.taken_per_s:.0f}",
        f"{view.written_per_s:.0f}",
        str(view.state_rows),
        size(view.state_bytes),
    )


def state_of(part: FollowerReport | CaptureReport | ViewReport) -> str:
    """One or two words."""
    return part.stop or (part.state if part.alive or part.state in ("exited", "never started") else f"dead (was {part.state})")


def _source_line(source: SourceReport) -> str:
    slot = source.slot
    if slot is None:
        return f"source {source.address}: unreachable"
    if not slot.exists:
        return f"source {source.address}: at {slot.server_lsn}, no slot {slot.name!r} yet"
    unlimited = "no limit" if slot.wal_status != "lost" else "used up"
    budget = unlimited if slot.safe_wal_bytes is None else f"{size(slot.safe_wal_bytes)} left"
    eta = f", for {budget_lasts(slot.budget_eta_s)} at the present rate" if slot.budget_eta_s is not None else ""
    return (
        f"source {source.address}: at {slot.server_lsn}, slot {slot.name!r} {slot.wal_status}, {'active' if slot.active else 'not read'}, "
        f"{size(slot.lag_bytes)} unconfirmed, {size(slot.held_bytes)} WAL held, WAL budget {budget}{eta}"
    )


def _capture_line(capture: CaptureReport | None) -> str:
    if capture is None:
        return "capture: never started"
    return (
        f"capture: {state_of(capture)}, received {capture.received_lsn or '-'}, {counted(capture.changes, 'change')}, {capture.changes_per_s:.0f}/s, "
        f"confirmed {capture.confirmed_lsn or '-'}"
    )


def _snapshot_lines(capture: CaptureReport | None) -> Iterator[str]:
    for entry in capture.snapshot if capture else ():
        if not entry.finished:
            yield f"snapshot {entry.table}: {entry.done} of about {entry.total} rows"
    if capture and capture.snapshot_paused:
        yield f"snapshot pauses: {capture.snapshot_paused}"


def _log_line(report: Report) -> str:
    log = report.log
    when = f", commit of {moment(log.commit_ts)}" if log.commit_ts else ""
    return (
        f"log {log.dir}: position {log.position}{when}, {counted(log.rows, 'change')} in {counted(len(log.tables), 'table')}, {size(log.bytes)}, "
        f"{size(log.disk_free_bytes)} free"
    )
