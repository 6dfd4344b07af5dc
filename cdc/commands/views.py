"""`cdc views`: the views, how far each is, and what one is made of."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import console, line, print_json, seconds, size, table_of

if TYPE_CHECKING:
    from cdc.log.contract import LogReader
    from cdc.settings.models import Settings

app = typer.Typer(help="Views: topics that are computed from other topics.", invoke_without_command=True)


@app.callback()
def views(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the views: state, position, how far behind their tables, how fresh, and the size of their state."""
    if context.invoked_subcommand is not None:
        return
    settings = invocation(context).settings()
    with closing(open_log(settings)) as log:
        found = [_facts(settings, log, name) for name in settings.views]
    if as_json:
        print_json({"views": found})
        return
    out = console()
    rows = [
        [one["view"], one["state"], str(one["position"]), str(one["behind"]), _fresh(one), size(one["state_bytes"])]
        for one in found
    ]
    if out.is_terminal:
        out.print(table_of("views", ("view", "state", ">position", ">behind", ">shows", ">state"), rows))
    for name, state, position, behind, fresh, large in [] if out.is_terminal else rows:
        out.print(line(f"view {name}: {state} at {position}, {behind} behind, {fresh}, state {large}"))
    for one in found:
        if one["error"]:
            out.print(line(f"! view {one['view']}: {one['error']}"))
    if not found:
        out.print(line("the configuration has no views"))


@app.command()
def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The view's name in the configuration.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a view reads, under which key and definition, how large it is, and the SQL that it is equal to."""
    from cdc.derive.declarations import declared_views
    from cdc.settings.views import topic_of, view_named

    settings = invocation(context).settings()
    view = view_named(settings.views, name)
    declared = declared_views(settings)[name]
    with closing(open_log(settings)) as log:
        facts = _facts(settings, log, name)
        known = {topic.name: topic for topic in log.topics()}
        schemas = {topic: known[topic].schema for topic in declared.topics if topic in known}
        reads = declared.bind(schemas).reads if len(schemas) == len(declared.topics) else {}
        own = known.get(topic_of(name))
        facts |= {
            "topic": topic_of(name),
            "key": list(view.key),
            "reads": {topic: list(reads.get(topic, ())) for topic in declared.topics},
            "rows": None if own is None else _rows(log, own.name),
            "select": declared.sql.strip(),
        }
    if as_json:
        print_json(facts)
        return
    out = console()
    out.print(line(f"view {name} is topic {facts['topic']}, by its key {', '.join(view.key)}"))
    out.print(line(f"{facts['state']} at {facts['position']}, {facts['behind']} behind; {_fresh(facts)}"))
    for topic, columns in facts["reads"].items():
        out.print(line(f"reads {topic}: {', '.join(columns) if columns else 'not in the log yet'}"))
    out.print(line(f"rows: {'none yet' if facts['rows'] is None else facts['rows']}; state: {size(facts['state_bytes'])}"))
    out.print(line("its rows are those of:"))
    for text in facts["select"].splitlines():
        out.print(line(f"    {text}"))


def _rows(log: LogReader, topic: str) -> int:
    """The topic's rows as of the log's head."""
    from cdc.replay.state import rows_as_of

    return sum(map(len, rows_as_of(log, topic, log.head().position)))


def _facts(settings: Settings, log: LogReader, name: str) -> dict[str, Any]:
    from cdc.client.throughviews import reflected_by
    from cdc.log.contract import left_between
    from cdc.model.position import Position
    from cdc.model.selection import literal
    from cdc.state import status, stops

    saved = status.read_view(settings.run_dir, name) or status.ViewStatus(name, state="never started")
    stop = stops.held_by(settings.run_dir, status.view_part(name))
    state = saved.state if status.alive(saved.pid) or saved.state in ("never started", "stopped") else "does not run"
    at, head = Position(saved.position), log.head()
    left = left_between(log, [literal(one) for one in saved.topics], at, head.position) if saved.topics else []
    age_s = None if not saved.commit_ts_us else max(0.0, time.time() - saved.commit_ts_us / 1e6)
    return {
        "view": name,
        "state": "stopped" if stop is not None else state,
        "error": stop.error().line() if stop is not None else saved.error,
        "position": saved.position,
        "behind": sum(piece.rows for piece in left),
        "reflected": int(reflected_by(log, name)),
        "seconds": 0.0 if not left and saved.position else age_s,
        "state_bytes": saved.state_bytes,
    }


def _fresh(one: dict[str, Any]) -> str:
    if one["seconds"] is None:
        return "shows nothing yet"
    return "up to date" if not one["behind"] else f"as of {seconds(one['seconds'])} ago"
