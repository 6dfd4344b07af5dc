"""`cdc bootstrap`: the next generation of a store, built beside the live one and put in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdc.commands.invocation import invocation, open_log, store_options
from cdc.commands.output import console, line, print_json, progress_bar
from cdc.daemon.signals import stop_on_signals
from cdc.folders import own
from cdc.terminal import counted, visible

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.generations.bootstrap import Bootstrapped, BuildProgress

_LINE_EVERY_S: Final = 5.0


def bootstrap(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build a search index again from the log beside the live one, compare every row, and swap the two in one step. Exit 1, and nothing swapped, if a row differs."""
    settings = invocation(context).settings()
    options = store_options(settings, name)
    from cdc.follow.rules import Rules
    from cdc.generations.bootstrap import Bootstrap
    from cdc.lookup.former import held_log
    from cdc.state.approvals import approved
    from sinks import generations_of

    out = console()
    own(settings.run_dir, "run_dir")
    with stop_on_signals() as stop, closing(open_log(settings)) as log, closing(generations_of(name, options)) as generations:
        rules = Rules(name, options, settings.contracts, approved(settings.run_dir, name))
        with _shown(out, name, quiet=as_json) as show:
            done = Bootstrap(
                name, options, settings.log.dir, held_log(log, name, options, settings.log.dir), generations, rules, stop, show
            ).carry_out()
    if as_json:
        print_json(facts(name, done))
    else:
        for one in lines(name, done):
            out.print(line(one))
    raise typer.Exit(0 if done.swapped else 1)


def facts(name: str, done: Bootstrapped) -> dict[str, object]:
    tables = [
        {"table": one.table, "rows": one.rows, "differ": one.differ, "aside": one.aside, "keys": list(one.keys)}
        for one in done.tables
    ]
    return {
        "store": name,
        "generation": done.number,
        "former": done.former,
        "swapped": done.swapped,
        "position": int(done.cut.position),
        "rows": done.rows,
        "seconds": done.seconds,
        "tables": tables,
    }


def lines(name: str, done: Bootstrapped) -> Iterator[str]:
    for table in done.tables:
        apart = f", {counted(table.aside, 'dead letter')} apart" if table.aside else ""
        said = f"DIFFERENT from the log, {counted(table.differ, 'key')}" if table.differ else "equal to the log"
        yield f"{name} {table.table}: {said}, {counted(table.rows, 'row')}{apart}"
        for key in table.keys:
            yield "  (" + ", ".join(f"{column}={'NULL' if value is None else value}" for column, value in key.items()) + ")"
    took = f"{counted(done.rows, 'row')} in {done.seconds:.1f} s"
    if done.swapped:
        yield f"{name}: generation {done.number} is live at position {done.cut.position}, {took}"
        yield f"generation {done.former} is kept as it stands: cdc rollback {name} puts it back, cdc generations {name} --drop {done.former} removes it"
    else:
        yield f"{name}: generation {done.number} is not live, {took}: nothing has changed for readers; cdc generations {name} --drop {done.number} removes it"


@contextmanager
def _shown(out: Console, name: str, *, quiet: bool) -> Iterator[Callable[[BuildProgress], None]]:
    """A progress bar on a terminal, a line for each phase and now and then elsewhere."""
    phase, began, shown_at = "", time.monotonic(), 0.0
    with progress_bar(out, name, shown=out.is_terminal and not quiet) as update:

        def show(now: BuildProgress) -> None:
            nonlocal phase, began, shown_at
            at = time.monotonic()
            new = now.phase != phase
            if new:
                phase, began = now.phase, at
            rate = f", {now.rows / (at - began):.0f} rows/s" if now.rows and at > began else ""
            update(description=visible(f"{name} {now.phase}{rate}"), completed=now.rows, total=max(now.expected, now.rows) or None)
            if not out.is_terminal and not quiet and (new or at - shown_at >= _LINE_EVERY_S):
                shown_at = at
                of = f" {now.rows} of at most {now.expected} rows{rate}" if now.expected else ""
                out.print(line(f"{name} {now.phase}{of}"))

        yield show
