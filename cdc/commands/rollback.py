"""`cdc rollback`: the generation of a store that was live before takes its place again."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from cdc.commands.invocation import invocation, open_log, store_options
from cdc.commands.output import console, line, print_json
from cdc.terminal import counted


def rollback(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    to: Annotated[
        int | None, typer.Option("--to", metavar="NUMBER", help="Which generation; the newest that is kept when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a store's readers the generation again that they saw before, at once; the follower then brings it up to the log."""
    settings = invocation(context).settings()
    options = store_options(settings, name)
    from cdc.generations.alone import alone
    from cdc.generations.rollback import roll_back
    from cdc.lookup.former import held_log
    from sinks import generations_of

    with closing(open_log(settings)) as log, closing(generations_of(name, options)) as generations, alone(settings.log.dir, name):
        done = roll_back(name, generations, held_log(log, name, options, settings.log.dir), to)
    if as_json:
        print_json(
            {
                "store": name,
                "generation": done.number,
                "former": done.former,
                "position": int(done.cut.position),
                "behind": done.behind,
            }
        )
        return
    out = console()
    out.print(
        line(f"{name}: generation {done.number} is live again, at position {done.cut.position}; generation {done.former} is kept")
    )
    if done.behind:
        out.print(
            line(
                f"it lacks {counted(done.behind, 'change')}, which readers do not see until its follower has brought it up: cdc status, cdc wait {name}"
            )
        )
