"""``python -m cdc.demo``: sets everything up, runs the real daemon under traffic, and with ``--seconds`` passes judgement."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import psycopg

from cdc.demo import daemon, eventcount, firstload, flights, flightviews, kernels, show, stage, verdict
from cdc.demo.accidents import DemoAccidents
from cdc.demo.dashboard import Dashboard, DashboardFacts
from cdc.demo.milestones import Milestones
from cdc.demo.tour import AFTER_S, Tour
from cdc.demo.traffic import Traffic
from cdc.embedded.__main__ import fetch
from cdc.embedded.processes import free_port_like
from cdc.errors import HeadwaterError

STILL_S = 180
INTERRUPTED = 130
_DASHBOARD_PORT = 8842


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return Demo(options).run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except HeadwaterError as error:
        print(f"error: {error.line()}", file=sys.stderr)
        return error.exit_code


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo ARGS=…", description="Headwater on a real airport's year.")
    parser.add_argument(
        "--seconds", type=float, help="run that long, then compare every store with the database; exit 0 when all agree"
    )
    parser.add_argument("--rate", type=float, default=100.0, help="changes per second (default: 100)")
    parser.add_argument("--json", action="store_true", help="with --seconds: the last line on standard output is one JSON object")
    parser.add_argument("--fresh", action="store_true", help="begin with empty servers and an empty log")
    parser.add_argument("--folder", type=Path, default=Path("var/demo"), help="where everything is kept (default: var/demo)")
    parser.add_argument(
        "--tour-after",
        type=float,
        default=AFTER_S,
        metavar="SECONDS",
        help=f"without --seconds: when the tour begins, which shows a rebuild, a repair and a dead letter (default: {AFTER_S:.0f})",
    )
    options = parser.parse_args(arguments)
    if options.rate < 0 or (options.seconds is not None and options.seconds <= 0):
        parser.error("--rate must not be negative, and --seconds must be more than 0")
    if options.json and options.seconds is None:
        parser.error("--json needs --seconds")
    return options


class Demo:
    """One run, from nothing (or from what the last run left) to an orderly end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        # Standard output is the machine's when it asked for it.
        self._out: TextIO = sys.stderr if options.json else sys.stdout
        self._began = time.monotonic()
        self._milestones = Milestones()
        self._told_at = 0.0

    def run(self) -> int:
        """0, or 1 when a timed run found a store that differs. Raises HeadwaterError, KeyboardInterrupt (timed runs only)."""
        with ExitStack() as stack:
            here = stage.claim(self._options.folder, fresh=self._options.fresh, say=self._say)
            stack.callback(_undisturbed, here.stop)
            fetch(warm=False)
            data = self._set_up(here, stack)
            here.write_configuration()
            running = daemon.Daemon(here.configuration, here.page, self._milestones.look)
            stack.callback(_undisturbed, running.stop)
            self._milestones.set_up()
            running.start()
            running.wait_for(lambda _told: True, "the status page", STILL_S)
            self._print(show.welcome(here, sys.executable, _dashboard(here, running, stack).url))
            running.wait_for(daemon.is_capturing, "the start of capture", STILL_S)
            self._say(f"cdc run captures (its log: {running.log})")
            traffic = Traffic(here.dsn, data.flights, self._options.rate)
            stack.callback(_undisturbed, traffic.end)
            traffic.start()
            if self._options.seconds is not None:
                return self._timed(here, running, traffic)
            tour = Tour(running.beside, self._say, DemoAccidents(here), after_s=self._options.tour_after)
            stack.callback(_undisturbed, tour.end)
            try:
                self._watch(running, traffic, None, tour)
            except KeyboardInterrupt:
                self._say("stopping; the next start goes on from here")
        return 0

    def _set_up(self, here: stage.Stage, stack: ExitStack) -> flights.Airport:
        """Starts the servers and fills the database; what can be done meanwhile is done beside."""
        compiling = kernels.Compiling()
        stack.callback(compiling.stop)
        if here.first:
            compiling.start(here.folder / "kernels.log")
        with ThreadPoolExecutor(1, "flights") as beside:
            reading = beside.submit(flights.load)
            here.start(self._say)
            data = reading.result()
        self._load(here, data)
        here.wait_ready(self._say)
        compiling.wait()
        return data

    def _load(self, here: stage.Stage, data: flights.Airport) -> None:
        with psycopg.connect(here.dsn, autocommit=True) as connection:
            if not firstload.is_loaded(connection):
                rows = firstload.load(connection, data)
                self._say(f"loaded {rows:,} flights: the year up to {firstload.BEGINS.astype('datetime64[D]')}")

    def _watch(self, running: daemon.Daemon, traffic: Traffic, seconds: float | None, tour: Tour | None = None) -> None:
        """Prints a line now and then, until the time is over or Ctrl-C."""
        began = time.monotonic()
        while seconds is None or time.monotonic() - began < seconds:
            left = 1.0 if seconds is None else min(1.0, seconds - (time.monotonic() - began))
            time.sleep(max(0.0, left))
            traffic.check()
            told = running.status()
            self._tell(traffic, told)
            if tour is not None:
                tour.look(told)

    def _tell(self, traffic: Traffic, told: dict[str, Any] | None) -> None:
        """A line of progress, when it is time for one."""
        now = time.monotonic()
        if now - self._told_at >= (1.0 if self._out.isatty() else 5.0):
            self._told_at = now
            self._line(show.progress(told, traffic.sent, traffic.sent / max(traffic.seconds, 1e-3)))

    def _timed(self, here: stage.Stage, running: daemon.Daemon, traffic: Traffic) -> int:
        self._watch(running, traffic, self._options.seconds)
        traffic.end()
        traffic.check()
        self._say(f"traffic stopped after {traffic.sent:,} changes; waiting for the stores")
        running.wait_for(daemon.is_caught_up, "catching up", STILL_S, lambda told: self._tell(traffic, told))
        waited = verdict.wait_for_stores(running, stage.STORES)
        self._say("every store has everything; comparing each with the database")
        audited = verdict.audit(running)
        events = eventcount.judged(here, traffic.told)
        views = flightviews.compared(here.configuration, here.dsn, here.opensearch.url, here.valkey.url)
        with psycopg.connect(here.dsn) as connection:
            row = connection.execute("select count(*) from flights").fetchone()
        exit_code = running.stop()
        result = verdict.verdict(
            verdict.Driven(traffic.seconds, self._options.rate, traffic.sent, int(row[0]) if row else 0),
            waited=waited,
            audited=audited,
            exit_code=exit_code,
            milestones=self._milestones,
            events=events,
            views=views,
        )
        self._judge(result)
        return 0 if result["ok"] else 1

    def _judge(self, result: dict[str, Any]) -> None:
        for name, store in result["stores"].items():
            rows = sum(table["source_rows"] for table in store["tables"].values())
            self._say(f"{name}: {'equal' if store['equal'] else 'DIFFERS'}, {rows:,} rows compared")
        for view, held in result["views"].items():
            words = ", ".join(f"{store} {'equal' if not rows['different'] else 'DIFFERS'}" for store, rows in held.items())
            self._say(f"view {view}, against its SQL in Postgres: {words}, {next(iter(held.values()))['source_rows']:,} rows")
        events = result["events"]
        self._say(f"{events['committed']} events were committed: on the stream {events['bus']}, at the receiver {events['tower']}")
        if self._options.json:
            print(json.dumps(result), flush=True)

    def _say(self, line: str) -> None:
        self._end_line()
        self._print(f"{time.monotonic() - self._began:6.1f} s  {line}")

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _line(self, text: str) -> None:
        """On a terminal the line is overwritten by the next."""
        if self._out.isatty():
            print(f"\r\033[K{text}", end="", file=self._out, flush=True)
            self._unfinished = True
        else:
            self._print(text)

    _unfinished = False

    def _end_line(self) -> None:
        if self._unfinished:
            self._unfinished = False
            self._print("")


def _dashboard(here: stage.Stage, running: daemon.Daemon, stack: ExitStack) -> Dashboard:
    """Serves the dashboard until the demo ends."""
    facts = DashboardFacts(here.opensearch.url, here.valkey.url, running.asked)
    stack.callback(facts.close)
    dashboard = Dashboard(free_port_like(_DASHBOARD_PORT), facts.take)
    stack.callback(dashboard.stop)
    return dashboard


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _undisturbed(step: Any) -> None:
    """Runs a step of the end to its end: an impatient second Ctrl-C would leave servers behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        step()
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
