"""A small service inside a test: real capture into a real log, and a follower for each store, in threads, without Spark."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from cdc.capture.warm import warm
from cdc.derive.declarations import declared_views
from cdc.derive.process import run_view
from cdc.follow.follower import Follower
from cdc.ingest.process import run_capture
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.settings.models import Settings
from cdc.spark.causes import place_of
from cdc.state import status
from sinks import options_model
from tests import counters
from tests.conftest import Database

AFTER_AN_ACCIDENT_S: Final = 0.2


def settings_of(postgres: Database, folder: Path, stores: Mapping[str, Mapping[str, object]]) -> Settings:
    return Settings(
        source={"dsn": postgres.dsn, "slot": f"audit_{postgres.name}"[:60]},
        log={"dir": folder / "log"},
        stores={name: options_model(str(given["kind"])).model_validate(given) for name, given in stores.items()},
        run_dir=folder / "run",
    )  # type: ignore[arg-type]


@contextmanager
def service(settings: Settings) -> Iterator[Mapping[str, Follower]]:
    """Capture and one follower for each store, in threads. Gives the followers that have begun."""
    warm()  # compiling may take a minute, and no deadline shall count it
    stop = threading.Event()
    followers: dict[str, Follower] = {}

    def follow(store: str) -> None:
        with closing(open_reader(settings.log.dir)) as reader:
            follower = Follower(store, settings.stores[store], settings.log.dir, reader, settings.run_dir, stop)
            followers[store] = follower
            while not stop.is_set():
                try:
                    follower.start()
                    keep_up(follower, reader)
                except Exception as error:  # as in the product: an accident is told, and the store goes on
                    counters.add("accidents of followers", place_of(error))
                    traceback.print_exc(file=sys.stdout)
                    stop.wait(AFTER_AN_ACCIDENT_S)
            follower.close()

    def keep_up(follower: Follower, reader: LogReader) -> None:
        while not stop.is_set():
            head = reader.wait(follower.applied.position, 0.05)
            if head.position > follower.applied.position:
                follower.follow_to(head)
            follower.idle()
            follower.report()

    threads = [threading.Thread(target=run_capture, args=(settings, stop))]
    threads += [threading.Thread(target=follow, args=(store,)) for store in settings.stores]
    for thread in threads:
        thread.start()
    try:
        # Else an audit might find that nobody is at work on the log.
        deadline = time.monotonic() + 120
        while threads[0].is_alive() and status.read_capture(settings.run_dir) is None:
            assert time.monotonic() < deadline, "capture does not begin"
            time.sleep(0.01)
        yield followers
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "it does not end"


@contextmanager
def kept_up(settings: Settings) -> Iterator[None]:
    """The views, each in a thread of its own."""
    stop = threading.Event()
    declared = declared_views(settings)

    def keep_up(name: str) -> None:
        run_view(name, declared[name], settings.log.dir, settings.run_dir, stop)

    threads = [threading.Thread(target=keep_up, args=(name,)) for name in declared]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
