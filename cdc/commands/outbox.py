"""`cdc outbox`: makes the outbox table, and shows what has become of its rows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.commands.init import given_source
from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import console, print_json, say, size, table_of
from cdc.errors import HeadwaterError
from cdc.terminal import counted, quoted

if TYPE_CHECKING:
    from cdc.settings.models import Settings

app = typer.Typer(name="outbox", help="Events that services write in their own transactions.", rich_markup_mode=None)


@app.command("init")
def init(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Option(help="The database as the tables' owner, as postgresql://owner@host/database; source.dsn when left out."),
    ] = None,
    only_sql: Annotated[bool, typer.Option("--sql", help="Print the statements, and run nothing.")] = False,
) -> None:
    """Make the outbox table, the rights that capture needs on it, and its entry in the publication. What is there already stays as it is."""
    from cdc.source.connection import connect
    from cdc.source.outboxtable import OutboxSetup, is_published, set_up

    settings = invocation(context).settings()
    setup = OutboxSetup.of(settings)
    if not setup.outbox.table:
        say(f"nothing is to be made: events are messages under {quoted(setup.outbox.prefix)} (docs/outbox.md)")
        return
    if only_sql:
        for statement in setup.statements():
            _say_statement(statement.as_string())
        return
    dsn, given_as = (settings.source.dsn.get_secret_value(), "source.dsn") if source is None else (given_source(source), "--source")
    with connect(dsn, application="headwater outbox init", given_as=given_as) as connection:
        done = 0
        for text in set_up(connection, setup):
            _say_statement(text)
            done += 1
        published = is_published(connection, setup)
    if published is None:
        say(
            f"publication {quoted(setup.publication)} does not exist yet: cdc doctor --fix or the first cdc run makes it, with the table in it"
        )
    say(f"{quoted(setup.outbox.table)} is ready{'' if done else '; nothing was to do'}")


@app.command("ls")
def ls(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """One line per topic of events: how many the log has, and its last position; and how many rows are still in the table, if there is one."""
    settings = invocation(context).settings()
    outbox = _outbox(settings)
    topics = _topics(settings)
    rows, problem = _rows(settings) if outbox.table else (None, None)
    if as_json:
        print_json({"table": outbox.table or None, "rows": rows, "topics": topics})
        return
    out = console()
    if out.is_terminal:
        cells = [(one["topic"], str(one["events"]), size(one["bytes"]), str(one["last"])) for one in topics]
        out.print(table_of("events", ("topic", ">events", ">bytes", ">last"), cells))
    else:
        for one in topics:
            say(f"{quoted(one['topic'])} events={one['events']} bytes={one['bytes']} last={one['last']}")
    if outbox.table:
        say(f"{quoted(outbox.table)}: {counted(rows, 'row') if rows is not None else problem}")


def _say_statement(text: str) -> None:
    for line in f"{text};".splitlines():
        say(line)


def _outbox(settings: Settings) -> Any:
    from cdc.source.outboxtable import OutboxSetup

    return OutboxSetup.of(settings).outbox


def _topics(settings: Settings) -> list[dict[str, Any]]:
    from cdc.outbox.router import PRODUCER

    with closing(open_log(settings)) as log:
        return [
            {"topic": topic.name, "events": topic.rows, "bytes": topic.bytes, "last": int(topic.last)}
            for topic in log.topics()
            if topic.producer == PRODUCER
        ]


def _rows(settings: Settings) -> tuple[int | None, str | None]:
    """How many are in the table; or why nobody knows."""
    from cdc.source.connection import connect
    from cdc.source.outboxtable import OutboxSetup, rows_left

    try:
        with connect(settings.source.dsn.get_secret_value(), application="headwater outbox ls") as connection:
            return rows_left(connection, OutboxSetup.of(settings).outbox), None
    except HeadwaterError as error:
        return None, error.line()
