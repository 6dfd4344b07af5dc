"""`cdc log append`: hands the rows of a file over to the log, through its inbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.invocation import finite, invocation, open_log
from cdc.commands.output import console, print_json, progress_bar, say
from cdc.errors import ConfigError, WriterElsewhere
from cdc.settings.implications import own_topics
from cdc.settings.models import Settings

if TYPE_CHECKING:
    from cdc.inbox.handover import Pump
    from cdc.model.table import Table


def append(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="schema.name; not a name that source.tables selects.")],
    file: Annotated[Path, typer.Argument(help="NDJSON (one object a line) or Parquet.", exists=True, dir_okay=False)],
    producer: Annotated[str | None, typer.Option(help="Who brings the topic's changes; append:TOPIC when left out.")] = None,
    key: Annotated[str | None, typer.Option(help="COL[,COL]: what tells rows apart. Needed for a new topic only.")] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="The mark that the log has to have of the producer; also appends the same file again."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds; exit 3 after that.", min=0.0, callback=finite)] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Append rows to a topic of your own. The same append again adds nothing twice."""
    from cdc.inbox.definition import split_topic
    from cdc.inbox.fileappend import append_rows
    from cdc.inbox.handover import Handover, HandoverDeadline
    from cdc.inbox.rows import read_rows

    settings = invocation(context).settings()
    name = producer or f"append:{topic}"
    try:
        split_topic(topic)
        known = _known(settings, topic)
        columns = tuple(key.split(",")) if key else tuple(column.name for column in known.key) if known else ()
        rows = read_rows(file, topic, columns, known)
        deadline = HandoverDeadline.within(timeout)
        with _pump(settings) as pump:
            handover = Handover(settings.log.dir, settings.run_dir, name, pump)
            out = console()
            with progress_bar(out, "rows", len(rows.rows), shown=out.is_terminal) as bar:
                done = append_rows(handover, topic, rows, begin, deadline, lambda count: bar(completed=count))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if as_json:
        print_json({"topic": topic, "producer": name, **asdict(done)})
    elif done.rows:
        say(f"{done.rows} rows are in {topic} at position {done.position} (mark {done.mark})")
    else:
        say(f"nothing to append: all of it is in {topic} at position {done.position} (mark {done.mark})")


def _known(settings: Settings, topic: str) -> Table | None:
    """The topic's definition in the log. Raises ConfigError when there is no log yet."""
    from cdc.log.contract import COMES_WITH_CAPTURE

    with closing(open_log(settings)) as log:
        if log.lineage() is None:
            raise ConfigError(f"there is no log in {settings.log.dir} yet", hint=COMES_WITH_CAPTURE)
        return next((one.table for one in log.topics() if one.name == topic), None)


@contextmanager
def _pump(settings: Settings) -> Iterator[Pump]:
    """Capture serves the inbox where it runs. Where nobody writes to the log, this process does so
    itself meanwhile.
    """
    from cdc.inbox.handover import let_time_pass
    from cdc.inbox.writerside import Inbox
    from cdc.log.home import open_writer

    source = settings.source
    try:
        writer = open_writer(settings.log.dir, segment_bytes=settings.log.segment_bytes, source=source.name)
    except WriterElsewhere:
        yield let_time_pass
        return
    with closing(writer):
        inbox = Inbox(settings.log.dir, writer, settings.run_dir, source=source.name, tables=own_topics(settings))

        def serve() -> None:
            if not inbox.serve():
                let_time_pass()

        yield serve
