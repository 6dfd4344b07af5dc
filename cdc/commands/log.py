"""`cdc log`: look into the log, and append to it."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from cdc.commands import append, changes
from cdc.commands.invocation import invocation
from cdc.commands.output import console, moment, print_json, say, size, table_of
from cdc.model.position import format_lsn
from cdc.model.selection import matches
from cdc.settings.models import Settings
from cdc.terminal import counted, quoted

app = typer.Typer(name="log", help="Look into the log.", rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("ls")
def ls(context: typer.Context, as_json: Json = False) -> None:
    """One line per topic: rows, bytes, segments, first and last position. A captured table that has no change yet is listed with zeros."""
    from cdc.log.embedded import inspect

    settings = invocation(context).settings()
    topics = inspect.ls(settings.log.dir, _captured(settings))
    if as_json:
        print_json(topics)
        return
    heads = ("topic", ">rows", ">bytes", ">on disk", ">segments", ">sealed", ">first", ">last")
    out = console()
    if not out.is_terminal:
        for topic in topics:
            say(
                f"{quoted(topic['topic'])} rows={topic['rows']} bytes={topic['bytes']} disk_bytes={topic['disk_bytes']} segments={topic['segments']} "
                f"sealed={topic['sealed_segments']} first={topic['first']} last={topic['last']}"
            )
        return
    out.print(table_of("topics", heads, [_cells(topic) for topic in topics]))


def _captured(settings: Settings) -> list[str]:
    """The tables that capture has in its publication, as it saw them last."""
    from cdc.source.facts import load_facts

    known = [facts for facts in load_facts(settings.log.dir).values() if facts.publishing and not facts.attached]
    return [
        one.table().qualified
        for one in known
        if one.publishing
        and one.publishing.published
        and not one.publishing.refused
        and matches(settings.source.tables, one.table())
    ]


def _cells(topic: dict[str, Any]) -> tuple[str, ...]:
    counts = (topic["segments"], topic["sealed_segments"], topic["first"], topic["last"])
    return (str(topic["topic"]), str(topic["rows"]), size(topic["bytes"]), size(topic["disk_bytes"]), *map(str, counts))


@app.command("stat")
def stat(context: typer.Context, as_json: Json = False) -> None:
    """The log as a whole: head, groups, sizes, how much is sealed, what of each topic is kept, which stores hold that back, and its states."""
    from dataclasses import asdict

    from cdc.compaction.space import Space
    from cdc.compaction.standing import kept
    from cdc.diskspace import free_bytes
    from cdc.log.embedded import inspect
    from cdc.log.home import open_reader

    settings = invocation(context).settings()
    facts = inspect.stat(settings.log.dir)
    facts["commit_lsn"] = format_lsn(facts["commit_lsn"])
    facts["free_bytes"] = free_bytes(settings.log.dir)
    space = Space(settings.log)
    space.look()
    with closing(open_reader(settings.log.dir)) as reader:
        topics = kept(settings, reader)
    if as_json:
        print_json({**facts, "scarce": space.scarce, "kept": [asdict(topic) for topic in topics]})
        return
    for name, value in facts.items():
        say(f"{name.removesuffix('_us')}: {_readable(name, value)}")
    for topic in topics:
        whole = f"whole from position {topic.clean_from}" if topic.clean_from else "whole"
        if topic.kept_from:
            whole = f"kept from position {topic.kept_from}, {whole}{', for new stores too' if topic.whole else ''}"
        held = ", ".join(f"{store} (at {position})" for store, position in topic.held_by.items())
        lapsed = "".join(f"; no longer held back by {store}: {why}" for store, why in topic.lapsed.items())
        states = (
            f", {counted(topic.states, 'state')} of {size(topic.state_bytes)} (the newest at {topic.state_at})"
            if topic.states
            else ""
        )
        say(
            f"{quoted(topic.topic)}: {topic.cleanup}, {topic.rows} changes, {whole}{states}{f'; held back by {held}' if held else ''}{lapsed}"
        )
    if space.scarce is not None and any(topic.cleanup != "keep" for topic in topics):
        say(space.scarce)


@app.command("compact")
def compact(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="A topic, such as public.orders; every one when left out.")] = None,
) -> None:
    """Drop what is superseded, too old or too much now, as far as [log] and the stores allow. cdc run does it by itself, and has to be stopped for this."""
    from cdc.compaction.standing import compact_now

    for done in compact_now(invocation(context).settings(), topic):
        say(f"{quoted(done.topic)}: {done.dropped} of {done.read} changes were {done.why}; {size(done.written)} written")


def _readable(name: str, value: Any) -> str:
    if name.endswith("_ts_us"):
        return moment(value / 1e6) if value else "-"
    return size(value) if name.endswith("bytes") else str(value)


app.command("cat")(changes.cat)
app.command("grep")(changes.grep)
app.command("diff")(changes.diff)
app.command("export")(changes.export)
app.command("append")(append.append)
