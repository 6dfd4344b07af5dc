"""`cdc bootstrap`: the next generation of a store, built beside the live one and put in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdc.commands.audit import lines as audit_lines
from cdc.commands.invocation import KEEP_OLD, checked_time, generations, invocation, kept_for, open_log, store_options
from cdc.commands.output import console, line, print_json, progress_bar, seconds
from cdc.daemon.signals import stop_on_signals
from cdc.errors import ConfigError, HeadwaterError
from cdc.folders import own
from cdc.terminal import counted, visible

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.generations.bootstrap import Bootstrapped, BuildProgress
    from cdc.generations.decisions import CarriedDecisions
    from cdc.settings.models import Settings


class Against(StrEnum):
    """The values of ``--audit`` and ``--from``."""

    LOG = "log"
    SOURCE = "source"


_LINE_EVERY_S: Final = 5.0
_POLL_S: Final = 0.2


def bootstrap(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    keep_old: Annotated[
        str,
        typer.Option(
            "--keep-old",
            metavar="TIME",
            callback=checked_time,
            help="How long the former generation is kept and fed for cdc rollback, such as 90s, 15m, 24h or 7d; or forever. cdc run removes it then.",
        ),
    ] = KEEP_OLD,
    from_: Annotated[
        Against,
        typer.Option(
            "--from",
            help="Build it from the log; or have capture read the rows of all its tables into the log again first, where that no longer has them all.",
        ),
    ] = Against.LOG,
    audit: Annotated[
        Against,
        typer.Option(help="Compare every row before the swap: with the log, or with the log and then with the database."),
    ] = Against.LOG,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Have cdc run build the store again where it stands: rows over rows, and what the log does not have goes at the end. For every kind of store.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build a store again from the log beside the live one, compare every row, and swap the two in one step. Exit 1, and nothing swapped, if a row differs."""
    settings = invocation(context).settings()
    options = store_options(settings, name)
    if in_place and from_ is Against.SOURCE:
        raise ConfigError("a store is built in place from the log", hint="cdc snapshot TABLE --replace reads a table again")
    if in_place and audit is Against.SOURCE:
        raise ConfigError(
            "nothing is compared before readers see it where a store is built in place", hint=f"cdc audit {name}, afterwards"
        )
    if in_place:
        rebuild_in_place(settings, name, as_json=as_json)
        return
    from cdc.follow.rules import Rules
    from cdc.generations.bootstrap import Bootstrap
    from cdc.generations.database import AskedDatabase, refuse_without_capture
    from cdc.lookup.former import held_log
    from cdc.state.approvals import approved

    out = console()
    own(settings.run_dir, "run_dir")
    if Against.SOURCE in (audit, from_):
        refuse_without_capture(settings)
    with stop_on_signals() as stop, closing(open_log(settings)) as log, generations(settings, name) as found:
        rules = Rules(name, options, settings.contracts, approved(settings.run_dir, name))
        with _shown(out, name, quiet=as_json) as show:
            held = held_log(log, name, options, settings.log.dir)
            database = AskedDatabase(settings, name, held, from_ is Against.SOURCE, audit is Against.SOURCE, stop.is_set)
            done = Bootstrap(
                settings.log.dir, settings.run_dir, held, found, rules, kept_for(keep_old), stop, show, database
            ).carry_out()
    if as_json:
        print_json(facts(name, done))
    else:
        for one in lines(name, done):
            out.print(line(one))
        if done.swapped:
            out.print(line(kept_line(name, done.former, keep_old)))
    raise typer.Exit(0 if done.swapped else 1)


def rebuild_in_place(settings: Settings, name: str, *, as_json: bool) -> None:
    """Asks the store's follower for it, and waits. Raises ConfigError where the store keeps nothing, HeadwaterError where nobody follows it, or it stops."""
    from cdc.state import rebuilds, status, stops
    from sinks import refuse_without_rows, traits_of

    refuse_without_rows(name, store_options(settings, name), "nothing can be built again")
    if traits_of(store_options(settings, name)).passing:
        raise ConfigError(f"store {name} keeps nothing that could be built again", hint=f"cdc follow {name} --from")
    run_dir, part, began = settings.run_dir, f"follow-{name}", time.monotonic()
    stops.check(run_dir, part)
    told = status.read_follower(run_dir, name)
    if told is None or not status.reports(told):
        raise HeadwaterError(f"nobody follows store {name}, so nobody can build it again", hint="cdc run")
    rebuilds.request(run_dir, name, None)
    out = console()
    with stop_on_signals() as stop, progress_bar(out, f"{name} is built again", shown=out.is_terminal and not as_json):
        while rebuilds.requested(run_dir, name) is not None:
            stops.check(run_dir, part)
            if stop.wait(_POLL_S):
                raise HeadwaterError(f"store {name} is still being built again, by cdc run", hint=f"cdc status; cdc wait {name}")
    took = time.monotonic() - began
    if as_json:
        print_json({"store": name, "in_place": True, "seconds": took})
    else:
        out.print(line(f"{name}: every row was written again where it stood, in {took:.1f} s"))


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
        "decisions": decided(done.decisions),
        "audit": None if done.audit is None else done.audit.to_json(),
    }


def decided(decisions: CarriedDecisions) -> dict[str, object]:
    """The JSON of what became of operators' decisions about dead letters."""
    return {"carried": decisions.carried, "left": [{"letter": one.letter, "why": one.text} for one in decisions.left]}


def decision_lines(decisions: CarriedDecisions) -> Iterator[str]:
    from cdc.generations.decisions import in_words

    if decisions.carried:
        yield f"{counted(decisions.carried, 'decision')} about dead letters came along"
    yield from in_words(decisions.left)


def kept_line(name: str, former: int, keep_old: str) -> str:
    how = "without an end" if keep_old == "forever" else f"for {keep_old}"
    return (
        f"generation {former} is kept {how}, and fed while cdc run runs: cdc rollback {name} puts it back, "
        f"cdc generations {name} --drop {former} removes it"
    )


def lines(name: str, done: Bootstrapped) -> Iterator[str]:
    for table in done.tables:
        apart = f", {counted(table.aside, 'dead letter')} apart" if table.aside else ""
        said = f"DIFFERENT from the log, {counted(table.differ, 'key')}" if table.differ else "equal to the log"
        yield f"{name} {table.table}: {said}, {counted(table.rows, 'row')}{apart}"
        for key in table.keys:
            yield "  (" + ", ".join(f"{column}={'NULL' if value is None else value}" for column, value in key.items()) + ")"
    yield from [] if done.audit is None else audit_lines([done.audit])
    took = f"{counted(done.rows, 'row')} in {done.seconds:.1f} s"
    if done.swapped:
        yield f"{name}: generation {done.number} is live at position {done.cut.position}, {took}"
        yield from decision_lines(done.decisions)
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
            per_s = now.rows / (at - began) if now.rows and at > began else 0.0
            rate = f", {per_s:.0f} rows/s" if per_s else ""
            if per_s and now.expected > now.rows:
                rate += f", about {seconds((now.expected - now.rows) / per_s)} left"
            update(description=visible(f"{name} {now.phase}{rate}"), completed=now.rows, total=max(now.expected, now.rows) or None)
            if not out.is_terminal and not quiet and (new or at - shown_at >= _LINE_EVERY_S):
                shown_at = at
                of = f" {now.rows} of at most {now.expected} rows{rate}" if now.expected else ""
                out.print(line(f"{name} {now.phase}{of}"))

        yield show
