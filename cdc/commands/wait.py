"""`cdc wait`: returns when a store shows everything up to an LSN."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from cdc.commands.invocation import finite, invocation, open_log, store_options
from cdc.commands.output import print_json, say, seconds
from cdc.model.position import format_lsn


def wait(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    lsn: Annotated[str | None, typer.Option(help="An LSN such as 16/B374D848; everything committed by now when left out.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds; exit 3 after that.", min=0.0, callback=finite)] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Return when the store shows everything up to an LSN; exit 3 on timeout."""
    from cdc.client.wait import parse_wanted
    from cdc.client.wait import wait as wait_for

    settings = invocation(context).settings()
    store_options(settings, name)
    with closing(open_log(settings)) as log:
        waited = wait_for(settings, log, name, lsn=None if lsn is None else parse_wanted(lsn), timeout_s=timeout)
    if as_json:
        print_json({**asdict(waited), "lsn": format_lsn(waited.lsn)})
    else:
        say(f"{name} shows {format_lsn(waited.lsn)} (position {waited.position}) after {seconds(waited.seconds)}")
