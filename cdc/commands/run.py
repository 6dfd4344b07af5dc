"""`cdc run`: the daemon, or one of its parts."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import structlog
import typer

from cdc.commands.invocation import Invocation, invocation, store_options
from cdc.daemon.configuration import VARIABLE, Configuration, Handed, of_capture
from cdc.daemon.signals import DRAIN_S, die_with_parent, stop_on_signals
from cdc.daemon.supervisor import DRAIN_S as CHILDREN_DRAIN_S
from cdc.daemon.supervisor import PARENT_VARIABLE, alone, supervise
from cdc.diskspace import FULL, MAKE_ROOM, described
from cdc.errors import ConfigError, HeadwaterError, Stopped
from cdc.folders import own
from cdc.settings.models import Settings, StoreOptions
from cdc.state import status, stops

if TYPE_CHECKING:
    from cdc.derive.sourcerows import RowWorkers
    from cdc.log.contract import Topic

SUPERVISOR_DRAIN_S: Final = CHILDREN_DRAIN_S + 10.0
"""It ends by itself, with 0, after the last child has."""

_log = structlog.get_logger("run")


def run(
    context: typer.Context,
    only: Annotated[
        str | None, typer.Option(help="One part only: capture, follow:NAME, follow:* for all followers, or view:NAME.")
    ] = None,
) -> None:
    """The daemon: capture, all followers, HTTP port. SIGTERM drains and exits 0."""
    _allow_many_files()
    given = invocation(context)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        die_with_parent(int(parent))
    configuration = _configuration(given)
    settings = configuration.settings
    if (settings.contracts or settings.stores or settings.views) and parent is None:
        from cdc.commands.preflight import refuse_unknown

        refuse_unknown(settings)
    with stop_on_signals(DRAIN_S if only else SUPERVISOR_DRAIN_S) as stop:
        try:
            raise typer.Exit(_part(given, configuration, only, stop))
        except OSError as error:
            if error.errno not in FULL or error.filename is not None:
                raise
            settings = configuration.settings
            raise HeadwaterError(
                f"{described(error)}, on the disk of {settings.log.dir} or of {settings.run_dir}", hint=MAKE_ROOM
            ) from None
        except HeadwaterError as error:
            if parent is None or given.debug:
                raise
            # Its words belong into the daemon's log, in the same form as all others.
            structlog.get_logger(only or "run").error(error.line())
            raise typer.Exit(error.exit_code) from None


def _configuration(given: Invocation) -> Configuration | Handed:
    """The configuration that the supervisor has handed us; a part that runs by itself watches the file as the supervisor does."""
    from sinks import options_model

    handed = os.environ.get(VARIABLE)
    if handed is not None and PARENT_VARIABLE in os.environ:
        return Handed(int(handed), given.config, options_model)
    return Configuration(given.config, options_model, views_said=_views_said)


def _views_said(settings: Settings) -> Mapping[str, str]:
    if not settings.views:
        return {}  # without a look at all that is needed for views
    from cdc.derive.declarations import said_of_views

    return said_of_views(settings, _logged(settings))


def _logged(settings: Settings) -> Sequence[Topic]:
    from cdc.commands.invocation import open_log

    try:
        with closing(open_log(settings)) as log:
            return log.topics()
    except HeadwaterError:
        return ()  # whoever works with the log says why


def _allow_many_files() -> None:
    """The log keeps files of every table open; shells often allow a process 1,024, though the system would allow it far more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _part(given: Invocation, configuration: Configuration | Handed, only: str | None, stop: threading.Event) -> int:
    settings = configuration.settings
    own(settings.run_dir, "run_dir")
    if only is None:
        from cdc.http.serve import serving

        assert isinstance(configuration, Configuration), "the supervisor has no parent"
        with alone(settings.run_dir), serving(settings, current=lambda: configuration.settings) as url:
            _log.info(f"status page: {url}", facts={"url": url})
            return supervise(configuration, given.config, stop, listen=url, debug=given.debug)
    if only == "capture":

        def in_force() -> Settings:
            configuration.look()
            return configuration.settings

        return _capture(of_capture(configuration), stop, in_force)
    what, _, name = only.partition(":")
    if what == "view" and name:
        return _view(settings, name, stop)
    if what != "follow" or not name:
        raise ConfigError(
            f"--only {only} names no part", hint="use --only capture, --only follow:NAME, --only 'follow:*' or --only view:NAME"
        )
    return _followers(configuration, name, stop)


def _capture(settings: Settings, stop: threading.Event, in_force: Callable[[], Settings] | None = None) -> int:
    from cdc.ingest.process import run_capture

    stops.check(settings.run_dir, "capture")
    try:
        # What the collector would walk through again and again are the libraries' objects, several hundred thousand.
        return run_capture(settings, stop, warmed=gc.freeze, in_force=in_force)
    except Stopped as stopped:
        stops.record(settings.run_dir, "capture", stopped)
        raise


def _view(settings: Settings, name: str, stop: threading.Event) -> int:
    from cdc.derive.around import StepLimits
    from cdc.derive.declarations import declared_views
    from cdc.derive.process import run_view
    from cdc.settings.views import view_named

    view = view_named(settings.views, name)
    declared = declared_views(settings)[name]
    return run_view(
        name,
        declared,
        settings.log.dir,
        settings.run_dir,
        stop,
        limits=StepLimits(view.batch_rows, view.batch_bytes, 3600.0 * view.keep_former_hours),
        workers=_row_workers(settings, name, view.workers_from_rows),
    )


def _row_workers(settings: Settings, name: str, from_rows: int) -> RowWorkers | None:
    if not from_rows:
        return None
    from cdc.spark.viewrows import ViewRowWorkers

    return ViewRowWorkers(settings.log.dir, settings.run_dir / "spark" / status.view_part(name), from_rows, settings.spark)


def _followers(configuration: Configuration | Handed, name: str, stop: threading.Event) -> int:
    """Stopped followers are left out; the others run. All stopped is a stop state of the process."""
    from cdc.spark.queries import run_followers

    settings = configuration.settings
    if name != "*":
        store_options(settings, name)
    if not settings.stores:
        raise ConfigError("the configuration has no stores to follow", hint="add one: [stores.NAME]")
    wanted = Wanted(configuration, name)
    stores = wanted()
    with _auditing(settings, wanted), _feeding(settings, wanted):
        return run_followers(settings.log.dir, settings.run_dir, stores, stop=stop, settings=settings, wanted=wanted)


@contextmanager
def _auditing(settings: Settings, wanted: Wanted) -> Iterator[None]:
    """The continuous audit goes on inside, where it is wanted."""
    if not settings.audit.continuous:
        yield
        return
    from cdc.audit.rounds import ContinuousAudit

    stop = threading.Event()
    audit = ContinuousAudit(settings, lambda: wanted.latest, stop)
    audit.start()
    try:
        yield
    finally:
        stop.set()
        audit.join()


@contextmanager
def _feeding(settings: Settings, wanted: Wanted) -> Iterator[None]:
    """The generations that are kept are brought on inside."""
    from cdc.generations.feeder import GenerationFeeder

    stop = threading.Event()
    feeding = GenerationFeeder(settings, lambda: wanted.latest, stop)
    feeding.start()
    try:
        yield
    finally:
        stop.set()
        feeding.join()


class Wanted:
    """The stores that are to be followed by now: all of the configuration, or the one. The same object while they are the same."""

    def __init__(self, configuration: Configuration | Handed, name: str) -> None:
        self._configuration = configuration
        self._name = name
        self._settings = configuration.settings
        self._stores = self._chosen()

    def __call__(self) -> Mapping[str, StoreOptions]:
        self._configuration.look()
        if self._configuration.settings is not self._settings:
            self._settings = self._configuration.settings
            self._stores = self._chosen()
        return self._stores

    @property
    def latest(self) -> Mapping[str, StoreOptions]:
        """As they were when it was last asked; any thread may look."""
        return self._stores

    def _chosen(self) -> Mapping[str, StoreOptions]:
        return {name: options for name, options in self._settings.stores.items() if self._name in ("*", name)}
