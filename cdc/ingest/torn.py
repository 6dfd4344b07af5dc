"""Messages that come in several blocks of bytes: what is kept of them, and when there is something to decode again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cdc.pgvalues.values import Bytes


@dataclass(frozen=True, slots=True)
class Remainder:
    """The rest that decoding has left of a block."""

    consumed: int
    """Bytes from its beginning that are done with."""
    lacks: int
    """Bytes that have to come before there is more to decode."""
    foreign: int
    """Bytes at its end that belong to a large message of somebody else's, as do the bytes that it lacks."""


class Torn:
    """The bytes that decoding has not used up, and those that came since. A message much larger than a block is not put together again with
    every piece of it that comes, and one that is somebody else's not at all."""

    def __init__(self) -> None:
        self._kept: list[Bytes] = []
        self._lacks = 0
        self._passing = 0
        """The number of next bytes that belong to a message of somebody else's."""

    def join(self, taken: Bytes, behind: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        """Returns the block to decode now; None while what has come does not suffice. behind: puts two blocks together."""
        if self._passing:
            passed = min(self._passing, len(taken))
            self._passing -= passed
            if passed == len(taken):
                return None
            taken = np.concatenate([*self._kept, taken[passed:]])
            self._kept = []
        self._lacks -= len(taken)
        if self._lacks > 0:
            self._kept.append(taken.copy())
            return None
        return behind(np.concatenate(self._kept), taken) if self._kept else taken

    def keep(self, block: Bytes, rest: Remainder) -> None:
        """After the block has been decoded."""
        if rest.foreign:
            self._kept = [block[rest.consumed : len(block) - rest.foreign].copy()]
            self._passing, self._lacks = rest.lacks, 0
            return
        self._kept = [block[rest.consumed :].copy()] if rest.consumed < len(block) else []
        self._lacks = rest.lacks
