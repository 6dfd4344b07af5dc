"""Which keys a scan has given already, by eight bytes for each: SCAN may give a key twice, above all while the server's table grows or shrinks.

Ten million keys take 134 MB (201 MB for the moment in which the table grows), where the names themselves took more than 1 GB. Two names
have one code once in 370,000 scans of ten million keys. The later one is then left out, so whoever asks must be able to do without one:
the audit reads what it misses once more by its key, and where it cannot, running it again is under another secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import kernel

Codes = npt.NDArray[np.int64]

_FEWEST_SLOTS: Final = 1 << 12
_NO_CODE: Final = 0


class SeenKeys:
    def __init__(self) -> None:
        self._slots: Codes = np.zeros(_FEWEST_SLOTS, np.int64)
        self._count = 0

    @property
    def nbytes(self) -> int:
        return int(self._slots.nbytes)

    def fresh(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those that were not seen before, each once; from now on they are."""
        # Python's own hash of bytes: SipHash under a secret of this process, so nobody can choose names that collide.
        codes = np.fromiter(map(hash, keys), np.int64, len(keys))
        return list(compress(keys, self.add(codes).tolist()))

    def add(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Whether each was added: it is the first of its kind."""
        while 4 * (self._count + len(codes)) > 3 * len(self._slots):
            grown = np.zeros(2 * len(self._slots), np.int64)
            _move(grown, self._slots)
            self._slots = grown
        added = np.empty(len(codes), np.bool_)
        self._count += _add(self._slots, codes, added)
        return added


@kernel
def _add(slots: Any, codes: Any, added: Any) -> int:
    """Returns how many were added."""
    mask = len(slots) - 1
    count = 0
    for k in range(len(codes)):
        code = codes[k] if codes[k] != _NO_CODE else 1
        at = code & mask
        while slots[at] != _NO_CODE and slots[at] != code:
            at = (at + 1) & mask
        added[k] = slots[at] == _NO_CODE
        slots[at] = code
        count += added[k]
    return count


@kernel
def _move(slots: Any, former: Any) -> None:
    """Into slots that are empty."""
    mask = len(slots) - 1
    for k in range(len(former)):
        code = former[k]
        if code != _NO_CODE:
            at = code & mask
            while slots[at] != _NO_CODE:
                at = (at + 1) & mask
            slots[at] = code
