"""`cdc run`: the daemon, or one of its parts."""

from __future__ import annotations

import gc
import os
import resource
import threading
from typing import Annotated, Final

import structlog
import typer

from cdc import stops
from cdc.commands.invocation import Invocation, invocation, store_options
from cdc.commands.signals import DRAIN_S, die_with_parent, stop_on_signals
from cdc.errors import ConfigError, Stopped
from cdc.folders import own
from cdc.settings import Settings
from cdc.supervise import DRAIN_S as CHILDREN_DRAIN_S
from cdc.supervise import PARENT_VARIABLE, refuse_second, supervise

SUPERVISOR_DRAIN_S: Final = CHILDREN_DRAIN_S + 10.0
"""It ends by itself, with 0, after the last child has."""

_log = structlog.get_logger("run")


def run(
    context: typer.Context,
    only: Annotated[str | None, typer.Option(help="One part only: capture, follow:NAME, or follow:* for all followers.")] = None,
) -> None:
    """The daemon: capture, all followers, HTTP port. SIGTERM drains and exits 0."""
    _allow_many_files()
    given = invocation(context)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        die_with_parent(int(parent))
    settings = given.settings()
    if settings.contracts and parent is None:
        from cdc.commands.preflight import refuse_unknown_contracts

        refuse_unknown_contracts(settings)
    with stop_on_signals(DRAIN_S if only else SUPERVISOR_DRAIN_S) as stop:
        raise typer.Exit(_part(given, settings, only, stop))


def _allow_many_files() -> None:
    """The log keeps files of every table open; shells often allow a process 1,024, though the system would allow it far more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _part(given: Invocation, settings: Settings, only: str | None, stop: threading.Event) -> int:
    own(settings.run_dir, "run_dir")
    if only is None:
        from cdc.http.serve import serving

        refuse_second(settings.run_dir)
        with serving(settings) as url:
            _log.info("serving", url=url)
            return supervise(settings, given.config, stop, listen=url, debug=given.debug)
    if only == "capture":
        return _capture(settings, stop)
    what, colon, name = only.partition(":")
    if what != "follow" or not colon or not name:
        raise ConfigError(f"--only {only} names no part", hint="use --only capture, --only follow:NAME or --only 'follow:*'")
    return _followers(settings, name, stop)


def _capture(settings: Settings, stop: threading.Event) -> int:
    from cdc.capturing import run_capture

    stops.check(settings.run_dir, "capture")
    try:
        # What the collector would walk through again and again are the libraries' objects, several hundred thousand.
        return run_capture(settings, stop, warmed=gc.freeze)
    except Stopped as stopped:
        stops.record(settings.run_dir, "capture", stopped)
        raise


def _followers(settings: Settings, name: str, stop: threading.Event) -> int:
    """Stopped followers are left out; the others run. All stopped is a stop state of the process."""
    from cdc.spark.follow import run_followers

    chosen = dict(settings.stores) if name == "*" else {name: store_options(settings, name)}
    held = {store: found for store in chosen if (found := stops.held_by(settings.run_dir, f"follow-{store}")) is not None}
    for store, found in held.items():
        _log.warning("follower is stopped", store=store, state=str(found.state), resume=f"cdc resume {found.name}")
    running = {store: options for store, options in chosen.items() if store not in held}
    if held and not running:
        raise next(iter(held.values())).error()
    if not running:
        raise ConfigError("the configuration has no stores to follow", hint="add one: [stores.NAME]")
    return run_followers(settings.log.dir, settings.run_dir, running, stop=stop, contracts=settings.contracts)
