"""Where a view is kept up, and what bounds that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cdc.clock import MACHINE, Clock
from cdc.derive.sourcerows import RowWorkers
from cdc.errors import HeadwaterError
from cdc.inbox.handover import draw_token
from cdc.log.contract import LogReader


class Halted(HeadwaterError):
    """The process was asked to end while a view waited for something."""


@dataclass(frozen=True, slots=True)
class Around:
    """The log in which a view is kept up. ``log_dir``: its folder. ``pump``: brings things forward while a group waits in the inbox; it may raise to end that
    (``Halted``)."""

    log: LogReader
    log_dir: Path
    run_dir: Path
    pump: Callable[[], None]
    clock: Clock = MACHINE
    token: Callable[[], str] = draw_token
    """Draws the word by which an opening of the producer is known."""
    now: Callable[[], float] = time.time
    """The time of day, in seconds since 1970."""
    workers: RowWorkers | None = None
    """Find the rows that a view is computed from where these are many."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that one step takes of the log, and for how long the state of a former definition is kept."""

    rows: int = 200_000
    bytes: int = 64 * 2**20
    kept_s: float = 86_400.0


@dataclass(slots=True)
class StepCounts:
    """``taken``: changes of the view's topics that were taken in. ``written``: changes of its own that were handed over."""

    taken: int = 0
    written: int = 0
