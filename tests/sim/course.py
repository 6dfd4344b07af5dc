"""What all parts of one run share: its chance, what it was dealt, and what has happened so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.sim.asking import Asking
from tests.sim.clock import Clock
from tests.sim.lots import Dangers, Ddl, Rare, Ways, Work

Trace = Callable[[str], None]


@dataclass(slots=True)
class Course:
    chance: Random
    dangers: Dangers
    work: Work
    ways: Ways
    ddl: Ddl
    rare: Rare
    trace: Trace | None
    identities: Random
    """What logs are told apart by is drawn of its own: it stands in names that are told."""
    clock: Clock = field(default_factory=Clock)
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    faulty: bool = True
    """Until the work is done: then nothing goes wrong any more."""
    asking: Asking = field(init=False)

    def __post_init__(self) -> None:
        self.asking = Asking(self.met)

    @property
    def told(self) -> bool:
        """Whether anybody listens to what ``say`` says."""
        return self.trace is not None

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.steps:5d}  {text}")

    def fault(self, name: str) -> None:
        self.counts[f"fault: {name}"] += 1
        self.say(f"! {name}")

    def met(self, name: str) -> None:
        """Something rare that is no fault."""
        self.counts[name] += 1
