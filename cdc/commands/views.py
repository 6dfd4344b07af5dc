"""`cdc views`: the views, how far each is, and what one is made of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import console, line, print_json, seconds, size
from cdc.commands.status import state_of, view_generation_lines, view_line, view_table
from cdc.terminal import counted

if TYPE_CHECKING:
    from cdc.log.contract import LogReader
    from cdc.report.shape import ViewReport
    from cdc.settings.models import Settings
    from cdc.settings.views import View

AGAIN_S: Final = 1.0

app = typer.Typer(help="Views: topics that are computed from other topics.", invoke_without_command=True)


@app.callback()
def views(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the views: state, position, how far behind their tables, what they do, the size of their state, and their generations."""
    if context.invoked_subcommand is not None:
        return
    settings = invocation(context).settings()
    with closing(open_log(settings)) as log:
        found = _reports(settings, log)
        if as_json:
            print_json({"views": [_json(settings, log, one) for one in found]})
            return
    out = console()
    if out.is_terminal and found:
        out.print(view_table(found, out.width))
    for one in [] if out.is_terminal else found:
        out.print(line(view_line(one)))
    for one in found:
        for text in view_generation_lines(one):
            out.print(line(text))
        for why in _troubles(settings, one):
            out.print(line(f"! view {one.view}: {why}"))
    if not found:
        out.print(line("the configuration has no views"))


@app.command()
def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The view's name in the configuration.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a view reads, under which key and definition, how large it is, and the SQL, and the function, that it is equal to."""
    from cdc.derive.declarations import declared_views
    from cdc.settings.views import topic_of, view_named

    settings = invocation(context).settings()
    view = view_named(settings.views, name)
    declared = declared_views(settings)[name]
    with closing(open_log(settings)) as log:
        [report] = _reports(settings, log, name)
        known = {topic.name: topic for topic in log.topics()}
        schemas = {topic: known[topic].schema for topic in declared.topics if topic in known}
        bound = declared.bind(schemas) if len(schemas) == len(declared.topics) else None
        reads = {} if bound is None else bound.reads
        own = known.get(topic_of(name))
        facts = _json(settings, log, report) | {
            "topic": topic_of(name),
            "key": list(view.key),
            "reads": {topic: list(reads.get(topic, ())) for topic in declared.topics},
            "rows": None if own is None else _rows(log, own.name),
            "select": (declared.query.sql if bound is None else bound.definition.sql).strip(),
            "function": _function(view),
        }
    if as_json:
        print_json(facts)
        return
    out = console()
    out.print(line(f"view {name} is topic {facts['topic']}, by its key {', '.join(view.key)}"))
    out.print(line(f"{state_of(report)} at {report.position}, {_fresh(report)}"))
    for why in _troubles(settings, report):
        out.print(line(f"! {why}"))
    for topic, columns in facts["reads"].items():
        missing = "its columns are known once all of these are in the log" if topic in known else "not in the log yet"
        out.print(line(f"reads {topic}: {', '.join(columns) if columns else missing}"))
    out.print(line(f"held by: {', '.join(report.stores) or 'no store'}"))
    state = f"{counted(report.state_rows, 'row')}, {size(report.state_bytes)}"
    out.print(line(f"rows: {'none yet' if facts['rows'] is None else facts['rows']}; state: {state}"))
    if view.python:
        shown = ", ".join(f"{column} {kind}" for column, kind in view.returns.items())
        out.print(line(f"its rows are those that {view.python} returns ({shown}), for each {' and '.join(view.by)} of:"))
    else:
        out.print(line("its rows are those of:"))
    for text in facts["select"].splitlines():
        out.print(line(f"    {text}"))


@app.command()
def top(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The view's name in the configuration; without one, all.")] = None,
) -> None:
    """Watch what views do: rate, lag, rows of their state, and what the last step cost. Again every second, until Ctrl-C."""
    from cdc.report.currentlog import CurrentLog
    from cdc.settings.views import view_named

    settings = invocation(context).settings()
    if name is not None:
        view_named(settings.views, name)
    log = CurrentLog(open_log(settings), settings.log.dir)
    out = console()

    def look() -> list[ViewReport]:
        with log.looked_at() as reader:
            return _reports(settings, reader, name)

    if not out.is_terminal:
        while True:
            for one in look():
                out.print(line(view_line(one)))
            out.file.flush()
            time.sleep(AGAIN_S)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(settings, look(), out.width), refresh=True)
            time.sleep(AGAIN_S)


def _screen(settings: Settings, found: list[ViewReport], width: int) -> RenderableType:
    """What a terminal of this many columns shows of the views."""
    steps = [
        f"last step of {one.view}: {seconds(one.step.seconds)}, {counted(one.step.taken, 'change')} in, {counted(one.step.written, 'change')} out"
        for one in found
        if one.step is not None
    ]
    wrong = [f"! view {one.view}: {why}" for one in found for why in _troubles(settings, one)]
    return Group(view_table(found, width), *map(line, steps), *(line(one, "red") for one in wrong))


def _reports(settings: Settings, log: LogReader, name: str | None = None) -> list[ViewReport]:
    """This view's, or all views'."""
    from cdc.report.views import view_report
    from cdc.state import status

    names = list(settings.views) if name is None else [name]
    head, now = log.head(), time.time()
    return [view_report(settings, one, status.read_view(settings.run_dir, one), log, head, now) for one in names]


def _json(settings: Settings, log: LogReader, report: ViewReport) -> dict[str, Any]:
    """The report's facts, what stops the view, and what the log says that it shows."""
    from cdc.client.throughviews import reflected_by

    return asdict(report) | {"error": _trouble(settings, report), "reflected": int(reflected_by(log, report.view))}


def _function(view: View) -> dict[str, Any] | None:
    """As the configuration declares it; None where the view's rows are those of its SELECT."""
    if not view.python:
        return None
    return {"python": view.python, "by": list(view.by), "returns": dict(view.returns), "version": view.version}


def _rows(log: LogReader, topic: str) -> int:
    """The topic's rows as of the log's head."""
    from cdc.replay.state import rows_as_of

    return sum(map(len, rows_as_of(log, topic, log.head().position)))


def _trouble(settings: Settings, report: ViewReport) -> str | None:
    """Why the view does not go on, with what helps where it waits for an operator."""
    from cdc.state import status, stops

    stop = stops.held_by(settings.run_dir, status.view_part(report.view))
    return report.error if stop is None else stop.error().line()


def _troubles(settings: Settings, report: ViewReport) -> Iterator[str]:
    """The same, and why its next generation is not built."""
    from cdc.state import status, stops

    if (why := _trouble(settings, report)) is not None:
        yield why
    if (stop := stops.held_by(settings.run_dir, status.next_part(report.view))) is not None:
        yield stop.error().line()


def _fresh(report: ViewReport) -> str:
    lag = report.lag
    if lag is None or not report.position:
        return "shows nothing yet"
    return "up to date" if not lag.changes else f"{counted(lag.changes, 'change')} behind, as of {seconds(lag.seconds)} ago"
