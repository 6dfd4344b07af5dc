"""How long a request that was not taken rests before it is sent again, and for how long that goes on. Pure."""

from __future__ import annotations

import random
from typing import Self

from pydantic import Field, model_validator

from cdc.settings.strict import Strict


class Retry(Strict):
    """How often an event is tried again that the receiver has not taken."""

    first_s: float = Field(1.0, gt=0)
    """The pause after the first attempt; after each further one it is twice as long …"""
    most_s: float = Field(300.0, gt=0)
    """… but never longer than this, unless the receiver says so (`Retry-After`). A quarter of each pause is left to chance."""
    for_hours: float = Field(24.0, gt=0)
    """For so long, from the first attempt on; then the event is a dead letter, behind which later ones of its key wait."""

    @property
    def for_s(self) -> float:
        return self.for_hours * 3600.0

    def pause_s(self, failed: int, chance: random.Random) -> float:
        """After so many failed attempts."""
        doubled: float = self.first_s * 2.0 ** min(failed - 1, 60)
        return min(doubled, self.most_s) * chance.uniform(0.75, 1.0)

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.most_s < self.first_s:
            raise ValueError("most_s is shorter than first_s")
        return self
