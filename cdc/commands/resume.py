"""`cdc resume`: ends a stop state after the operator has dealt with its reason, or in the way that reads the tables again."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from cdc import reloading, stops
from cdc.commands.invocation import invocation
from cdc.commands.printing import say
from cdc.errors import ConfigError, StopState
from cdc.model.position import Lsn, parse_lsn
from cdc.settings import Settings

_LSN: Final = re.compile(r"LSN ([0-9A-F]{1,8}/[0-9A-F]{1,8})")


def resume(
    context: typer.Context,
    stop: Annotated[str, typer.Argument(help="STATE, or STATE:part for one part only, as `cdc status` names it.")],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Give up what was missed: make slot and publication anew, read the tables again.")
    ] = False,
    skip: Annotated[
        str | None, typer.Option(help="For POISON_ROW: the LSN that the stop names; passes it, as --rebuild does.")
    ] = None,
) -> None:
    """Clear a stop state, so that the stopped part runs again. deploy/runbook.md says what to do before."""
    settings = invocation(context).settings()
    held = stops.matching(settings.run_dir, stop)
    if not held:
        names = ", ".join(one.name for one in stops.held(settings.run_dir))
        raise ConfigError(
            f"no part is stopped for {stop!r}", hint=f"stopped are: {names}" if names else "nothing is stopped; cdc status"
        )
    if rebuild or skip is not None:
        for one in held:
            _check(one, skip)
        for one in held:
            _request(settings, one.state)
    for gone in stops.clear(settings.run_dir, stop):
        say(f"resumed {gone.part} (was {gone.state})")


def _check(stop: stops.Stop, skip: str | None) -> None:
    """Raises ConfigError when reading the tables again is no way out of this stop, or another LSN is to be skipped than it names."""
    if stop.part != "capture" or stop.state not in reloading.WHOLE | reloading.TABLES:
        raise ConfigError(f"reading the tables again does not help with {stop.name}", hint=f"deploy/runbook.md, {stop.state}")
    if stop.state is not StopState.POISON_ROW:
        if skip is not None:
            raise ConfigError(f"{stop.name} names no LSN to skip", hint=f"cdc resume {stop.name} --rebuild")
        return
    named = _LSN.search(stop.message)
    at = named[1] if named else "?"
    if skip is None or not named or _lsn(skip) != parse_lsn(at):
        raise ConfigError(f"{stop.name} stands at LSN {at}, and that has to be named", hint=f"cdc resume {stop.name} --skip {at}")


def _lsn(text: str) -> Lsn:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no LSN: {error}", hint="cdc status shows the one that is meant") from None


def _request(settings: Settings, state: StopState) -> None:
    reloading.request(settings.log.dir, state)
    tables = "every table" if state in reloading.WHOLE else "the tables that were out of the publication"
    say(f"capture will read {tables} again into {settings.log.dir}")
