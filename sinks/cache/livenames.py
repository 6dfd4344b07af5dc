"""Which names of keys are live, by 16 bytes for each: what a store that is built again compares everything else with that stands there.

Ten million take 160 MB, and 560 MB for the moment in which they are sorted. The chance that any two names of so large a store have one digest
is one in 10²⁴.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sinks.render.texts import Texts

Half = npt.NDArray[np.int64]


class LiveNames:
    """First all are added, then any number of them is asked for."""

    def __init__(self) -> None:
        self._high: list[Half] = []
        self._low: list[Half] = []
        self._sorted: tuple[Half, Half] | None = None

    def add(self, names: Texts) -> None:
        high, low = _digests(names.to_array().to_pylist())
        self._high.append(high)
        self._low.append(low)

    def among(self, names: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Whether each is live."""
        if self._sorted is None:
            high, low = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (self._high, self._low))
            order = np.lexsort((low, high))
            self._sorted = high[order], low[order]
            self._high, self._low = [], []
        high, low = self._sorted
        asked_high, asked_low = _digests(names)
        found = np.zeros(len(names), np.bool_)
        if len(high):
            # Two live names may share one half of their digest; three never do.
            first, last = np.searchsorted(high, asked_high, "left"), np.searchsorted(high, asked_high, "right") - 1
            for at in (np.minimum(first, len(high) - 1), np.maximum(last, 0)):
                found |= (high[at] == asked_high) & (low[at] == asked_low)
        return found


def _digests(names: Sequence[bytes]) -> tuple[Half, Half]:
    # Python's own hash of bytes: SipHash under a secret of this process, so nobody can choose names that collide.
    high = np.fromiter(map(hash, names), np.int64, len(names))
    low = np.fromiter((hash(name + b"\0") for name in names), np.int64, len(names))
    return high, low
