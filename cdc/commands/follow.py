"""`cdc follow`: one follower in this process."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from cdc.commands.changes import PLACE
from cdc.commands.invocation import invocation, open_log, store_options
from cdc.daemon.signals import stop_on_signals
from cdc.folders import own


def follow(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    until_caught_up: Annotated[bool, typer.Option("--until-caught-up", help="End when everything in the log is applied.")] = False,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help=f"Begin with the first change at or after {PLACE}. Only for a store that keeps nothing, such as the console. A store with rows keeps its "
            "own place beside them: going back would write nothing that is not there already, and going ahead would lose changes, so both are refused, "
            "with the command that does what may be meant.",
        ),
    ] = None,
) -> None:
    """Keep one store equal to the log, in this process. Stands by while another process does, and takes its place."""
    settings = invocation(context).settings()
    options = store_options(settings, name)
    from cdc.follow.beginning import beginning_at, beginning_of
    from cdc.spark.queries import run_followers
    from cdc.state import stops

    own(settings.run_dir, "run_dir")
    stops.check(settings.run_dir, f"follow-{name}")
    ports = None
    if begin is not None:
        with closing(open_log(settings)) as log:
            ports = beginning_at(beginning_of(log, settings.run_dir, name, options, begin))
    with stop_on_signals() as stop:
        code = run_followers(
            settings.log.dir,
            settings.run_dir,
            {name: options},
            until_caught_up=until_caught_up,
            stop=stop,
            settings=settings,
            ports=ports,
        )
    raise typer.Exit(code)
