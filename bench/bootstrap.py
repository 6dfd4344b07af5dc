"""A store's next generation built from the log beside the live one, against what the same store takes from us at best.

The log holds so many rows, each inserted once, and the live generation has them all. Then `cdc bootstrap` is carried out in this very process. Two figures for each
store: the rows per second until the generation is filled and has caught up (the fold of the log and the writes), and until it is swapped, for which every row is
compared with the log as well. The limit is that of `backlog`: the same rows prebuilt, as plain writes into the emptied store, with nothing else beside. Ours and the
limit alternate.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bench import audit, backlog
from bench.result import Result, faster
from cdc.embedded.postgres import Postgres
from cdc.follow.rules import Rules
from cdc.generations.bootstrap import Bootstrap, BuildProgress
from cdc.log.home import open_reader
from sinks import generations_of, make_sink
from sinks.heldlog import HeldLog

BAR: Final = 0.8
POINTER: Final = "live"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench bootstrap", description=__doc__)
    parser.add_argument("stores", nargs="*", default=list(STORES), metavar="STORE", help=f"which of them: {', '.join(STORES)}")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--heap-mb", type=int, default=1024, help="OpenSearch's heap, at least 1024")
    options = parser.parse_args(arguments)
    options.changes = options.rows
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    result = Result("bootstrap", orientation={"rows": options.rows, "heap_mb": options.heap_mb})
    try:
        fill_log(folder, options.rows)
        for name in options.stores:
            measure(STORES[name](folder, options), result, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.rss_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(result.line())
    return 0


def fill_log(folder: Path, rows: int) -> None:
    """The rows, captured once: ``folder/log``."""
    server = Postgres(folder / "pg", options={"wal_sender_timeout": "0", "max_wal_size": "4GB"})
    try:
        server.start()
        audit.fill(server, folder, rows)
    finally:
        server.stop("immediate")
        shutil.rmtree(folder / "pg", ignore_errors=True)


def measure(store: backlog.Store, result: Result, options: argparse.Namespace) -> None:
    """Adds the store's two figures."""
    built: list[float] = []
    swapped: list[float] = []
    limits: list[float] = []
    cpu: list[float] = []
    store.start()
    try:
        for _ in range(options.runs):
            store.empty()
            limits.append(options.rows / limit_s(store))
            store.empty()
            began = time.process_time()
            filled_s, whole_s = bootstrap_s(store, options.rows)
            cpu.append((time.process_time() - began) * 1e6 / options.rows)
            built.append(options.rows / filled_s)
            swapped.append(options.rows / whole_s)
            print(
                f"{store.name}: built {built[-1]:.0f}/s, swapped {swapped[-1]:.0f}/s, limit {limits[-1]:.0f}/s",
                file=sys.stderr,
                flush=True,
            )
    finally:
        store.stop()
    result.figures[store.name] = faster(built, limits, "rows/s", BAR)
    result.figures[f"{store.name}_swapped"] = faster(swapped, limits, "rows/s")
    result.cpu_s = round(max(sorted(cpu)[len(cpu) // 2], result.cpu_s or 0.0), 2)
    result.orientation[store.name] = {"cpu_s_per_million": [round(one, 2) for one in cpu], **store.more()}


def limit_s(store: backlog.Store) -> float:
    """Seconds that the store takes at best."""
    if not isinstance(store, backlog.Cache):
        return store.limit()
    spent: list[backlog.Spent] = []
    store.plain(spent)
    return spent[-1].seconds


def bootstrap_s(store: backlog.Store, rows: int) -> tuple[float, float]:
    """Seconds of one bootstrap beside a live generation that holds the rows: until it is filled, and until it is swapped."""
    options: Any = store.store_options
    if isinstance(store, backlog.Cache):
        options = options.model_copy(update={"pointer": POINTER})
    phases: dict[str, float] = {}

    def show(now: BuildProgress) -> None:
        phases.setdefault(now.phase, time.perf_counter())

    reader = open_reader(store.log)
    with closing(reader), closing(generations_of(store.name, options)) as generations:
        with closing(make_sink(store.name, options)) as live:
            audit.load(live, reader)
        run_dir, held = store.folder / "run", HeldLog(reader, store.name, options)
        made = Bootstrap(store.log, run_dir, held, generations, Rules(store.name, options), None, threading.Event(), show)
        began = time.perf_counter()
        done = made.carry_out()
        ended = time.perf_counter()
    assert done.swapped, done
    assert done.rows == rows, f"{done.rows} rows were swapped, not {rows}"
    return phases["comparing"] - began, ended - began


class Lake(backlog.Lake):
    """Spark is here already, as it is where a warehouse is followed: its start does not count."""

    @property
    def _pointer(self) -> Path:
        return self.folder / "live-warehouse"

    def empty(self) -> None:
        super().empty()
        self._pointer.unlink(missing_ok=True)

    def start(self) -> None:
        from cdc.spark import session as sessions
        from sinks.sparksession import use_session

        super().start()
        self.settings["pointer"] = str(self._pointer)
        use_session(lambda: sessions.session(app="bench-bootstrap", scratch=self.folder / "spark"))

    def stop(self) -> None:
        from cdc.spark import session as sessions

        sessions.stop()


STORES: Final[dict[str, Callable[[Path, argparse.Namespace], backlog.Store]]] = {
    "opensearch": backlog.Search,
    "redis": backlog.Cache,
    "redis-hash": backlog.HashCache,
    "warehouse": Lake,
}
