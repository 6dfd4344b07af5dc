"""Many seeds, one after the other, and what became of them."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tests.sim.world import HURT, simulate

HURT_SHARE: Final = 0.3
"""In at least so many of many runs a store has to be hurt."""
MANY: Final = 1_000
"""Of fewer runs such a share says little."""


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.reason}\n    rerun it alone: {command(self.seed)}"


def command(seed: int) -> str:
    """What reruns one seed and tells every step."""
    return f"python -m tests.sim --trace {seed}"


def run_seeds(seeds: Sequence[int]) -> tuple[Counter[str], list[Failure]]:
    """Runs them one after the other, whatever becomes of each."""
    counts: Counter[str] = Counter()
    failures = []
    # A run leaves little behind; walking through all that the process holds (libraries, mostly) takes a tenth of the time.
    gc.disable()
    try:
        for seed in seeds:
            counts["runs"] += 1
            try:
                counts += simulate(seed)
            except Exception as error:
                failures.append(Failure(seed, f"{type(error).__name__}: {str(error)[:400]}"))
    finally:
        gc.enable()
    return counts, failures


def too_gentle(counts: Counter[str]) -> str | None:
    """One line when there were many runs and too few of them hurt a store: that nothing failed then says little."""
    runs, hurt = counts["runs"], counts[HURT]
    if runs < MANY or hurt >= HURT_SHARE * runs:
        return None
    return f"a store was hurt in {hurt} of {runs} runs only, {hurt / runs:.1%} of them where it has to be {HURT_SHARE:.0%}"


def warm_up() -> None:
    """Loads what is compiled, so that the speed that is told is that of the runs. `make test` runs these seeds, so what fails is seen there."""
    # What the product logs of a run is no news here; writing it takes time.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    run_seeds(range(5))


def run_timed(seeds: Sequence[int]) -> tuple[Counter[str], list[Failure], float]:
    """``run_seeds``, and how many seconds of CPU time it took: others on the machine take little part in those."""
    began = time.process_time()
    counts, failures = run_seeds(seeds)
    return counts, failures, time.process_time() - began


def grouped(counts: Counter[str]) -> Iterator[tuple[str, str, int]]:
    """(group, name, count) as ``tests.counters`` takes them."""
    for name, n in counts.items():
        _, colon, rest = name.partition(": ")
        if not colon:
            yield "simulator", name, n
        elif rest.startswith("dies at "):
            yield "simulator: dies at", rest.removeprefix("dies at "), n
        else:
            yield "simulator: faults", rest, n
