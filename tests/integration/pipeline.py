"""A small service inside a test: real capture into a real log, and a follower for each store, in threads, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from cdc import status
from cdc.capture.warm import warm
from cdc.capturing import run_capture
from cdc.log.reader import open_reader
from cdc.settings import Settings
from cdc.spark.follower import Follower
from sinks import options_model
from tests.conftest import Database


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
            follower.start()
            while not stop.is_set():
                head = reader.wait(follower.applied.position, 0.05)
                if head.position > follower.applied.position:
                    follower.follow_to(head)
                follower.idle()
                follower.report()
            follower.close()

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
