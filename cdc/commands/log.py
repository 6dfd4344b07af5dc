"""`cdc log`: look into the log."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cdc.commands import changes
from cdc.commands.invocation import invocation
from cdc.commands.output import console, moment, print_json, say, size, table_of
from cdc.model.position import format_lsn

app = typer.Typer(name="log", help="Look into the log.", rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("ls")
def ls(context: typer.Context, as_json: Json = False) -> None:
    """One line per topic: rows, bytes, segments, first and last position."""
    from cdc.log.embedded import inspect

    topics = inspect.ls(invocation(context).settings().log.dir)
    if as_json:
        print_json(topics)
        return
    heads = ("topic", ">rows", ">bytes", ">on disk", ">segments", ">sealed", ">first", ">last")
    out = console()
    if not out.is_terminal:
        for topic in topics:
            say(
                f"{topic['topic']} rows={topic['rows']} bytes={topic['bytes']} disk_bytes={topic['disk_bytes']} segments={topic['segments']} "
                f"sealed={topic['sealed_segments']} first={topic['first']} last={topic['last']}"
            )
        return
    out.print(table_of("topics", heads, [_cells(topic) for topic in topics]))


def _cells(topic: dict[str, Any]) -> tuple[str, ...]:
    counts = (topic["segments"], topic["sealed_segments"], topic["first"], topic["last"])
    return (str(topic["topic"]), str(topic["rows"]), size(topic["bytes"]), size(topic["disk_bytes"]), *map(str, counts))


@app.command("stat")
def stat(context: typer.Context, as_json: Json = False) -> None:
    """The log as a whole: head, groups, sizes, how much is sealed."""
    from cdc.log.embedded import inspect

    facts = inspect.stat(invocation(context).settings().log.dir)
    facts["commit_lsn"] = format_lsn(facts["commit_lsn"])
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        say(f"{name.removesuffix('_us')}: {_readable(name, value)}")


def _readable(name: str, value: Any) -> str:
    if name.endswith("_ts_us"):
        return moment(value / 1e6) if value else "-"
    return size(value) if name.endswith("bytes") else str(value)


app.command("cat")(changes.cat)
app.command("grep")(changes.grep)
app.command("diff")(changes.diff)
app.command("export")(changes.export)
