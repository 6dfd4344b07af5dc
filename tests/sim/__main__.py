"""``make sim SEEDS=10000 [START=0]``: any number of seeds on all cores; ``python -m tests.sim --trace SEED``: one, told step by step."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests import counters
from tests.sim.running import Failure, grouped, run_timed, too_gentle, warm_up
from tests.sim.world import simulate

PIECE = 25
"""Seeds that a process takes at a time."""
LINE_EVERY_S = 10.0


def _run_all(start: int, count: int, console: Console) -> int:
    pieces = [range(at, min(at + PIECE, start + count)) for at in range(start, start + count, PIECE)]
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    cpu_s = 0.0
    said_at = time.monotonic()
    columns = (
        TextColumn("simulator"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"), TimeRemainingColumn(),
    )  # fmt: skip
    with (
        multiprocessing.get_context("spawn").Pool(min(os.cpu_count() or 1, len(pieces)), warm_up) as pool,
        Progress(*columns, console=console, disable=not console.is_terminal) as bars,
    ):
        task = bars.add_task("seeds", total=count, failed=0)
        for done, failed, took_s in pool.imap_unordered(run_timed, pieces):
            counts += done
            cpu_s += took_s
            failures += failed
            for failure in failed:
                console.print(str(failure), highlight=False, markup=False)
            bars.update(task, completed=counts["runs"], failed=len(failures))
            if not console.is_terminal and (time.monotonic() - said_at > LINE_EVERY_S or counts["runs"] == count):
                said_at = time.monotonic()
                console.print(f"simulator: {counts['runs']} of {count} seeds, {len(failures)} failed", highlight=False)
    console.print(counters.table(counters.grouped(grouped(counts))))
    if cpu_s:
        speed = f"{counts['runs'] / cpu_s:.1f} runs a second and core ({cpu_s / counts['runs'] * 1000:.0f} ms of CPU time a run)"
        console.print(f"simulator: {speed}", highlight=False)
    return conclude(counts, failures, console)


def conclude(counts: Counter[str], failures: Sequence[Failure], console: Console) -> int:
    """Says what went wrong. Returns the exit code."""
    if failures:
        console.print(f"failed: {' '.join(str(failure.seed) for failure in sorted(failures, key=lambda one: one.seed))}")
    gentle = too_gentle(counts)
    if gentle is not None:
        console.print(f"failed: {gentle}", highlight=False, soft_wrap=True)
    return 1 if failures or gentle is not None else 0


def _trace(seed: int, console: Console) -> int:
    try:
        simulate(seed, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
    except Exception:
        traceback.print_exc()
        return 1
    console.print(f"seed {seed} is fine")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run only this one and tell every step")
    given = parser.parse_args()
    console = Console()
    if given.trace is not None:
        return _trace(given.trace, console)
    return _run_all(given.start, given.seeds, console)


if __name__ == "__main__":
    sys.exit(main())
