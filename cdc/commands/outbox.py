"""`cdc outbox`: makes the outbox table, shows what has become of its rows, and gives events of the log again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.commands.changes import From, To
from cdc.commands.init import given_source
from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import console, print_json, say, say_lines, size, table_of
from cdc.errors import ConfigError, HeadwaterError, SourceError
from cdc.model.selection import matches
from cdc.terminal import counted, quoted

if TYPE_CHECKING:
    from cdc.replay.events import LoggedEvent
    from cdc.settings.models import Settings
    from cdc.settings.outbox import Outbox

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


@app.command("replay")
def replay(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic of events, such as outbox.order.")],
    begin: From = None,
    to: To = None,
    key: Annotated[str | None, typer.Option(help="Only events of this key.")] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="In place of printing them, write them again: as new events, whose header replayed-of names the old."
        ),
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="With --again: the database as a role that may write events; source.dsn when left out.")
    ] = None,
) -> None:
    """Print the events of a topic as JSON, one a line in the log's order, each as it was written; or write them again. This prints payloads.

    --again writes all of them in one transaction, in their order, through the outbox, so that they come to the log and to whoever reads events like
    any other. Each has a new id.
    """
    from cdc.replay.events import events
    from cdc.replay.place import parse_place
    from cdc.replay.query import span

    settings = invocation(context).settings()
    outbox = _outbox(settings)
    if source is not None and not again:
        raise ConfigError(
            "--source is for --again: events are read from the log", hint="cdc outbox replay TOPIC --again --source …"
        )
    if not matches((outbox.topics,), topic):
        raise ConfigError(f"{quoted(topic)} is not a topic of events", hint="cdc outbox ls names them")
    with closing(open_log(settings)) as log:
        after, until = span(log, None if begin is None else parse_place(begin), None if to is None else parse_place(to))
        found = events(log, topic, after, until, key)
        if not again:
            for event in found:
                say_lines(event.line())
            return
        dsn, given_as = _writer(settings, source)
        count = _write_again(dsn, given_as, outbox, topic, found)
    say(f"{counted(count, 'event')} of {quoted(topic)} written again")


def _writer(settings: Settings, source: str | None) -> tuple[str, str]:
    return (settings.source.dsn.get_secret_value(), "source.dsn") if source is None else (given_source(source), "--source")


def _write_again(dsn: str, given_as: str, outbox: Outbox, topic: str, found: Iterable[LoggedEvent]) -> int:
    """Returns how many. Raises ConfigError, SourceError; then none is written."""
    import psycopg

    from cdc.outbox import BadEvent, OutboxMessages, OutboxTable, emit
    from cdc.source.connection import connect, reason

    columns = outbox.columns
    if outbox.table and not columns.headers:
        raise ConfigError(
            f"{outbox.table} has no column for headers, of which replayed-of is one", hint="name one in [outbox.columns]"
        )
    own = (columns.id, columns.route, columns.key, columns.type, columns.payload, columns.headers)
    to = OutboxTable(outbox.table, *own) if outbox.table else OutboxMessages(outbox.prefix)
    route = topic.partition(".")[2].removeprefix(outbox.topic_name(""))
    count = 0
    with connect(dsn, application="headwater outbox replay", given_as=given_as) as connection:
        try:
            with connection.transaction():
                connection.execute("set transaction read write")
                for event in found:
                    try:
                        headers = {**_headers(event), "replayed-of": event.id}
                        emit(connection, event.type, event.key, event.payload, headers, aggregate=route, outbox=to, encode=str)
                    except BadEvent as bad:
                        raise ConfigError(
                            f"no event is written again, since that at position {event.position} cannot be: {bad}",
                            hint="leave it out: --from and --to say which are meant",
                        ) from None
                    count += 1
        except psycopg.Error as error:
            raise SourceError(
                f"cannot write events again: {reason(error)}",
                hint="cdc outbox replay --again --source with a role that may write events",
            ) from None
    return count


def _headers(event: LoggedEvent) -> dict[str, str]:
    """Raises BadEvent: a table's column may hold any JSON."""
    from cdc.outbox import BadEvent

    try:
        found = json.loads(event.headers or "null")
    except (ValueError, RecursionError):
        found = ()
    if not isinstance(found, dict | None):
        raise BadEvent("its headers are not an object")
    return found or {}


def _say_statement(text: str) -> None:
    for line in f"{text};".splitlines():
        say(line)


def _outbox(settings: Settings) -> Outbox:
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
