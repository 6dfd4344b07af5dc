"""`cdc resume`: ends a stop state after the operator has dealt with its reason, or in the way that reads tables or builds a store again."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from cdc.commands.invocation import invocation
from cdc.commands.output import say
from cdc.errors import ConfigError, StopState
from cdc.model.position import Lsn, parse_lsn
from cdc.settings.models import Settings
from cdc.state import rebuilds, reloads, stops

_LSN: Final = re.compile(r"LSN ([0-9A-F]{1,8}/[0-9A-F]{1,8})")


def resume(
    context: typer.Context,
    stop: Annotated[str, typer.Argument(help="STATE, or STATE:part for one part only, as `cdc status` names it.")],
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="capture: give up what was missed, make slot and publication again, read the tables again. "
            "A store: build it again from the log; its rows stay there until they are replaced.",
        ),
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
            _check(settings, one, skip)
        for one in held:
            _request(settings, one)
    for gone in stops.clear(settings.run_dir, stop):
        say(f"resumed {gone.part} (was {gone.state})")


def _check(settings: Settings, stop: stops.Stop, skip: str | None) -> None:
    """Raises ConfigError when a rebuild is not a way out of this stop, or another LSN is to be skipped than it names."""
    from sinks import refuse_without_rows

    store = _store(stop)
    if store is not None:
        if skip is not None:
            raise ConfigError(f"{stop.name} names no LSN to skip", hint=f"deploy/runbook.md, {stop.state}")
        if (options := settings.stores.get(store)) is not None:
            refuse_without_rows(store, options, "nothing can be built again")
        if stop.state not in rebuilds.STATES:
            raise ConfigError(f"building the store again does not help with {stop.name}", hint=f"deploy/runbook.md, {stop.state}")
        return
    if stop.state not in reloads.WHOLE | reloads.TABLES:
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
        raise ConfigError(f"{text!r} is not an LSN: {error}", hint="cdc status shows the one that is meant") from None


def _store(stop: stops.Stop) -> str | None:
    """The store that the stopped part follows; None for capture."""
    part, _, store = stop.part.partition("-")
    return store if part == "follow" else None


def _request(settings: Settings, stop: stops.Stop) -> None:
    store = _store(stop)
    if store is not None:
        rebuilds.request(settings.run_dir, store, stop.state)
        say(f"store {store} will be built again from {settings.log.dir}; its rows stay there until they are replaced")
        return
    reloads.request(settings.log.dir, stop.state)
    tables = "every table" if stop.state in reloads.WHOLE else "the tables that were out of the publication"
    say(f"capture will read {tables} again into {settings.log.dir}")
