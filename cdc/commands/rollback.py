"""`cdc rollback`: the generation of a store that was live before takes its place again."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from cdc.commands.bootstrap import decided, decision_lines, kept_line
from cdc.commands.invocation import KEEP_OLD, checked_time, generations, invocation, kept_for, open_log, store_options
from cdc.commands.output import console, line, print_json
from cdc.daemon.signals import stop_on_signals
from cdc.folders import own
from cdc.terminal import counted


def rollback(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    to: Annotated[
        int | None, typer.Option("--to", metavar="NUMBER", help="Which generation; the newest that is kept when left out.")
    ] = None,
    keep_old: Annotated[
        str,
        typer.Option(
            "--keep-old",
            metavar="TIME",
            callback=checked_time,
            help="How long the one that is live now is kept and fed, as of cdc bootstrap.",
        ),
    ] = KEEP_OLD,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a store's readers the generation again that they saw before, with all that the live one holds by now."""
    settings = invocation(context).settings()
    options = store_options(settings, name)
    from cdc.follow.rules import Rules
    from cdc.generations.alone import alone
    from cdc.generations.follower import GenerationFollower
    from cdc.generations.rollback import roll_back
    from cdc.lookup.former import held_log
    from cdc.state.approvals import approved

    own(settings.run_dir, "run_dir")
    with stop_on_signals() as stop, closing(open_log(settings)) as log, generations(settings, name) as found:
        rules = Rules(name, options, settings.contracts, approved(settings.run_dir, name))
        follower = GenerationFollower(settings.log.dir, held_log(log, name, options, settings.log.dir), rules, stop)
        with alone(settings.log.dir, name):
            done = roll_back(follower, found, settings.run_dir, kept_for(keep_old), to)
    if as_json:
        print_json(
            {
                "store": name,
                "generation": done.number,
                "former": done.former,
                "position": int(done.cut.position),
                "brought": done.brought,
                "decisions": decided(done.decisions),
            }
        )
        return
    out = console()
    brought = f", after {counted(done.brought, 'change')} that it lacked" if done.brought else ""
    out.print(line(f"{name}: generation {done.number} is live again, at position {done.cut.position}{brought}"))
    for one in (*decision_lines(done.decisions), kept_line(name, done.former, keep_old)):
        out.print(line(one))
