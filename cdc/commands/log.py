"""`cdc log`: look into the log."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from cdc.commands.invocation import invocation
from cdc.commands.output import console, moment, print_json, say, size, table_of
from cdc.model.position import format_lsn

app = typer.Typer(name="log", help="Look into the log.", rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Format(StrEnum):
    text = "text"
    json = "json"


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


@app.command("cat")
def cat(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="schema.table; all topics when left out.")] = None,
    after: Annotated[int, typer.Option(help="Only positions beyond this one.", min=0)] = 0,
    upto: Annotated[int | None, typer.Option(help="Only positions up to this one.", min=0)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many changes.", min=0)] = None,
    lsn: Annotated[str | None, typer.Option(help="Only what was committed at or after this LSN.")] = None,
    form: Annotated[Format, typer.Option("--format", help="json: one Debezium-style envelope a line.")] = Format.text,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """The changes themselves, in position order. This prints row values."""
    from cdc.client.wait import parse_wanted
    from cdc.log.embedded import inspect

    settings = invocation(context).settings()
    wanted = None if lsn is None else parse_wanted(lsn)
    for envelope in inspect.cat(settings.log.dir, topic, after, upto, limit, wanted):
        if as_json or form is Format.json:
            print_json(envelope)
        else:
            say(line(envelope["payload"]))


def line(payload: dict[str, Any]) -> str:
    """position, LSN, operation, table and values of one change."""
    source = payload["source"]
    values = payload["after"] or payload["before"] or {}
    shown = " ".join(f"{name}={'NULL' if value is None else value!r}" for name, value in values.items())
    return f"{source['position']} {format_lsn(source['lsn'])} {payload['op']} {source['schema']}.{source['table']} {shown}".rstrip()
