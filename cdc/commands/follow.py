"""`cdc follow`: one follower in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.commands.invocation import invocation, store_options
from cdc.daemon.signals import stop_on_signals
from cdc.folders import own


def follow(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    until_caught_up: Annotated[bool, typer.Option("--until-caught-up", help="End when everything in the log is applied.")] = False,
) -> None:
    """Keep one store equal to the log, in this process."""
    settings = invocation(context).settings()
    options = store_options(settings, name)
    from cdc.spark.queries import run_followers
    from cdc.state import stops

    own(settings.run_dir, "run_dir")
    stops.check(settings.run_dir, f"follow-{name}")
    with stop_on_signals() as stop:
        code = run_followers(
            settings.log.dir,
            settings.run_dir,
            {name: options},
            until_caught_up=until_caught_up,
            stop=stop,
            contracts=settings.contracts,
        )
    raise typer.Exit(code)
