"""A thousand small tables under steady traffic, captured as it comes: whether capture keeps up, and how far it is behind.

A generator in the database writes multi-row inserts into all tables in turn, ten tables a transaction, as fast as the rate allows and no
faster. Beside it there runs first a drain, which only receives and drops bytes, and then, over as many rows again, capture, which confirms and
is done when the last row is durable. Generator, walsender and whoever reads share the processors, so the generator may not reach the rate:
``offered`` and ``offered_to_drain`` say which one it reached, against the rate wanted. ``captured`` is the speed from the generator's first row
to the last one durable, against the drain's from the first row to the last byte.

``lag``: how old the newest durable commit is, looked at every 20 ms from the first one to the last (``lag_max_s``), and how long after its
commit the last row was durable (``lag_end_s``). The first group makes a folder and a file for each table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg

from bench.capture import QUIET, _drain, capture
from bench.result import Figure, Result, faster, lower
from bench.workloads import SLOT, TABLES, WORKLOADS
from cdc.capture.pace import PAUSE_S
from cdc.embedded.postgres import Postgres

ROWS_PER_S: Final = 100
"""Of each table."""
TABLES_A_TRANSACTION: Final = 10
LOOK_S: Final = 0.02
SILENCE_S: Final = 5.0
"""A drain is done when nothing has come for so long: the generator pauses for less."""
LAG_END_S: Final = 1.0
LAG_MAX_S: Final = 5.0
"""The bounds aimed at."""

_WRITE: Final = f"""
create or replace procedure write_live(first_round int, rounds int, n int, period_s float8) language plpgsql as $$
declare
    began timestamptz := clock_timestamp();
    ahead_s float8;
begin
    for r in 0 .. rounds - 1 loop
        for t in 0 .. {TABLES - 1} loop
            execute format('insert into t%s select $1 + g, ''new'', g * 0.25, clock_timestamp() from generate_series(1, $2) g', t)
                using (first_round + r)::bigint * n, n;
            if t % {TABLES_A_TRANSACTION} = {TABLES_A_TRANSACTION - 1} then
                commit;
                ahead_s := (r + (t + 1) / {TABLES}.0) * period_s - extract(epoch from clock_timestamp() - began);
                if ahead_s > 0.002 then
                    perform pg_sleep(ahead_s);
                end if;
            end if;
        end loop;
    end loop;
end $$"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench live", description=__doc__)
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--rows", type=int, default=20, help="of one insert")
    parser.add_argument("--rate", type=int, default=ROWS_PER_S, help=f"rows a second of each of the {TABLES} tables")
    parser.add_argument("--transport", choices=("unix", "tcp"), default="unix")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        server = Postgres(Path(folder) / "pg", options=QUIET)
        server.start()
        try:
            result = measure(server, Path(folder) / "log", options.seconds, options.rows, options.rate, options.transport)
        finally:
            server.stop("immediate")
    print(result.line())
    return 0


def measure(server: Postgres, log: Path, seconds: int, rows: int, rate: int, transport: str) -> Result:
    rounds = seconds * rate // rows
    changes = rounds * rows * TABLES
    dsn = server.unix_dsn() if transport == "unix" else server.dsn()
    with (
        psycopg.connect(server.unix_dsn(), autocommit=True) as connection,
        psycopg.connect(server.unix_dsn(), autocommit=True) as look,
    ):
        WORKLOADS["tables"].create(connection)
        connection.execute(_WRITE)
        connection.execute("set synchronous_commit = off")
        offers = []
        for number, reader in enumerate(("drain", "capture")):
            connection.execute("checkpoint")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
            write = partial(connection.execute, "call write_live(%s, %s, %s, %s)", (number * rounds, rounds, rows, rows / rate))
            offers.append(_offer(look, connection.info.backend_pid, write, reader, dsn, changes, log))
            while connection.execute("select 1 from pg_replication_slots where active").fetchone() is not None:
                time.sleep(0.05)  # the server lets go of it a little after the reader
            connection.execute("select pg_drop_replication_slot(%s)", (SLOT,))
    drain, ours = offers
    run = ours.run
    result = Result("capture-live")
    wanted = float(rate * TABLES)
    for name, offer in (("offered", ours), ("offered_to_drain", drain)):
        offered = changes / offer.wrote_s
        result.figures[name] = Figure(round(offered), "changes/s", wanted, round(offered / wanted, 3), None, (round(offered),))
    result.figures["captured"] = faster([changes / ours.read_s], [changes / drain.read_s], "changes/s", bar=0.95)
    result.figures["lag_end_s"] = lower([run["lag_end_s"]], LAG_END_S, "s")
    result.figures["lag_max_s"] = lower([run["lag_max_s"]], LAG_MAX_S, "s")
    result.cpu_s, result.rss_mb = round(run["cpu_s"], 3), round(run["rss_mb"])
    result.orientation = {
        "tables": TABLES,
        "seconds": round(ours.wrote_s, 1),
        "rows_an_insert": rows,
        "transport": transport,
        "lag_median_s": round(run["lag_median_s"], 3),
        "groups": run["cuts"],
        "cpu_s": ours.cpu_s,
        "cpu_s_with_drain": drain.cpu_s,
    }
    return result


@dataclass(frozen=True, slots=True)
class _Offer:
    """The generator's rows, once, to one reader."""

    wrote_s: float
    read_s: float
    """From the first row written to the last one read."""
    cpu_s: dict[str, float]
    """Of the reader, the generator and the walsender."""
    run: dict[str, Any]
    """What the reader told."""


def _offer(
    look: psycopg.Connection, generator: int, write: Callable[[], object], reader: str, dsn: str, changes: int, log: Path
) -> _Offer:
    """generator: its backend's process. reader: ``drain`` or ``capture``."""
    follower = subprocess.Popen(
        [sys.executable, "-m", "bench.live", "--child", reader, dsn, str(changes), str(log)], stdout=subprocess.PIPE
    )
    try:
        walsender = _when_streaming(look, follower)
        before = _cpu_s(generator), _cpu_s(walsender)
        began = time.time()
        write()
        wrote_s = time.time() - began
        # The walsender is gone with the connection, which ends with the last change: from here on it has only what was waiting to send.
        cpu = {"generator": round(_cpu_s(generator) - before[0], 1), "walsender": round(_cpu_s(walsender) - before[1], 1)}
        said, _ = follower.communicate(timeout=600)
    finally:
        follower.kill()
        follower.wait()
    if follower.returncode:
        raise RuntimeError(f"the {reader} ended with {follower.returncode}")
    run: dict[str, Any] = json.loads(said.splitlines()[-1])
    return _Offer(wrote_s, run["ended_at"] - began, {reader: round(run["cpu_s"], 1), **cpu}, run)


def _when_streaming(look: psycopg.Connection, follower: subprocess.Popen[bytes]) -> int:
    """The walsender's process, once it streams."""
    while follower.poll() is None:
        found = look.execute("select active_pid from pg_replication_slots where slot_name = %s", (SLOT,)).fetchone()
        if found is not None and found[0] is not None:
            return int(found[0])
        time.sleep(0.05)
    raise RuntimeError(f"the reader ended with {follower.returncode} before it streamed")


def _cpu_s(pid: int) -> float:
    """User and system time of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_drain(dsn: str) -> dict[str, Any]:
    """Receives and drops bytes until no more come."""
    usage = time.process_time()
    _, last = _drain(dsn, None, PAUSE_S["@127" in dsn], silence_s=SILENCE_S)
    return {"ended_at": time.time() - (time.perf_counter() - last), "cpu_s": time.process_time() - usage}


def run_capture(dsn: str, changes: int, log: Path) -> dict[str, Any]:
    """Captures until so many changes are durable, and tells how far it was behind meanwhile."""
    lags: list[float] = []

    def look(ended: Callable[[], bool], commit_ts_us: Callable[[], int]) -> None:
        while not ended():
            if commit_ts_us():
                lags.append(time.time() - commit_ts_us() / 1e6)
            time.sleep(LOOK_S)

    over = threading.Event()
    newest = [0]
    watcher = threading.Thread(target=look, args=(over.is_set, lambda: newest[0]))
    watcher.start()

    def durable(commit_ts_us: int) -> None:
        newest[0] = commit_ts_us

    try:
        run = capture(dsn, changes, log, confirm=True, durable=durable)
    finally:
        over.set()
        watcher.join()
    ended_at = time.time() - (time.perf_counter() - run["ended"])
    return {
        **run,
        "ended_at": ended_at,
        "lag_end_s": ended_at - newest[0] / 1e6,
        "lag_max_s": max(lags),
        "lag_median_s": median(lags),
    }


if __name__ == "__main__":
    assert sys.argv[1] == "--child"
    what, dsn, changes, log = sys.argv[2:]
    print(json.dumps(run_drain(dsn) if what == "drain" else run_capture(dsn, int(changes), Path(log))))
