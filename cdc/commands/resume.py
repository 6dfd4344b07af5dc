"""`cdc resume`: ends a stop state after the operator has dealt with its reason."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc import stops
from cdc.commands.invocation import invocation
from cdc.errors import ConfigError


def resume(
    context: typer.Context,
    stop: Annotated[str, typer.Argument(help="STATE, or STATE:part for one part only, as `cdc status` names it.")],
) -> None:
    """Clear a stop state, so that the stopped part runs again. deploy/runbook.md says what to do before."""
    settings = invocation(context).settings()
    cleared = stops.clear(settings.run_dir, stop)
    if not cleared:
        names = ", ".join(held.name for held in stops.held(settings.run_dir))
        raise ConfigError(
            f"no part is stopped for {stop!r}", hint=f"stopped are: {names}" if names else "nothing is stopped; cdc status"
        )
    for gone in cleared:
        typer.echo(f"resumed {gone.part} (was {gone.state})")
