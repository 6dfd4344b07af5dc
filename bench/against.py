"""Capture, snapshot, backlog and the simulator beside an earlier commit: the same benchmark in both checkouts, in turn, each by its own code and driven
from outside by its command line. Medians over the runs; a ratio above 1 says that ours is faster.

Both run in this Python's environment. What they have of their own is the folder they are started in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.live_cost import check_out
from bench.result import Result, faster

REFERENCE: Final = "6167901"
"""The last commit before the product was divided into rooms."""
RUN_TIMEOUT_S: Final = 900


@dataclass(frozen=True, slots=True)
class Case:
    """``command``: after the interpreter. ``figures``: ours in the benchmark's answer → where it stands here; none: the simulator's own line."""

    command: str
    bar: float
    unit: str
    figures: tuple[str, ...] = ()


CASES: Final = {
    "capture": Case("-m bench capture --changes {capture} --runs 1", 0.95, "changes/s", ("drain_unix", "drain_tcp")),
    "snapshot": Case("-m bench snapshot --rows {snapshot} --runs 1", 0.95, "rows/s", ("copy", "wide")),
    "backlog": Case("-m bench backlog --changes {backlog} --runs 1 --stores redis", 0.95, "changes/s", ("redis_apply",)),
    "simulator": Case("-m tests.sim --seeds {seeds}", 1.25, "runs a second and core"),
}
SPEED: Final = re.compile(r"simulator: ([\d.]+) runs a second and core")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench against", description=__doc__)
    parser.add_argument("--against", default=REFERENCE, help="a commit, or the folder of a checkout")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--capture", type=int, default=200_000, help="changes")
    parser.add_argument("--snapshot", type=int, default=500_000, help="rows")
    parser.add_argument("--backlog", type=int, default=200_000, help="changes")
    parser.add_argument("--seeds", type=int, default=100, help="of the simulator")
    options = parser.parse_args(arguments)
    ours = Path(__file__).resolve().parents[1]
    result = Result("against", orientation={"against": options.against, "runs": options.runs})
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        given = Path(options.against)
        earlier = given.resolve() if given.is_dir() else check_out(ours, options.against, Path(folder) / "reference")
        for name in options.cases:
            case = CASES[name]
            command = case.command.format(**vars(options)).split()
            result.orientation[name] = " ".join(command)
            found: dict[str, tuple[list[float], list[float]]] = {}
            for number in range(options.runs):
                for side, checkout in ((1, earlier), (0, ours)):
                    for figure, value in run(checkout, command, case).items():
                        found.setdefault(figure, ([], []))[side].append(value)
                last = {figure: (round(mine[-1], 1), round(theirs[-1], 1)) for figure, (mine, theirs) in found.items()}
                print(f"{name} {number + 1}/{options.runs}: (ours, earlier) {last}", file=sys.stderr, flush=True)
            for figure, (mine, theirs) in found.items():
                key = name if figure == name else f"{name}_{figure}"
                result.figures[key] = faster(mine, theirs, case.unit, case.bar)
    print(result.line())
    return 0


def run(checkout: Path, command: list[str], case: Case) -> dict[str, float]:
    """One run in that checkout: its figures' values. Raises RuntimeError with the end of what it said."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{checkout}: {' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    if not case.figures:
        speed = SPEED.search(done.stdout)
        if speed is None:
            raise RuntimeError(f"{checkout}: {' '.join(command)} says no speed: {done.stdout[-2000:]}")
        return {"simulator": float(speed[1])}
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    return {name: float(figures[name]["value"]) for name in case.figures}
