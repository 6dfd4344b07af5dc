"""The bytes of a stream between whoever receives them and whoever decodes them."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.pgvalues.values import Bytes

BUFFER_BYTES: Final = 16 * 2**20
"""Two of these: one fills while the other is decoded. The longer a group takes, as with changes of very many tables, the larger the next one
may become, and what each table costs in a group is shared by more rows."""

HEADROOM_BYTES: Final = 2**20
"""Before what a buffer is filled with: the beginning of a transaction whose end comes with it is put there, instead of both elsewhere."""


class StreamBuffers:
    """Two: one fills while what was taken of the other is decoded."""

    def __init__(self) -> None:
        self._filling = np.empty(HEADROOM_BYTES + BUFFER_BYTES, np.uint8)
        self._spare = np.empty(HEADROOM_BYTES + BUFFER_BYTES, np.uint8)
        self.filled = 0

    def put(self, received: Bytes) -> None:
        end = HEADROOM_BYTES + self.filled
        self._filling[end : end + len(received)] = received
        self.filled += len(received)

    def take(self) -> Bytes:
        """A view, valid until the next call that gives something."""
        taken = self._filling[HEADROOM_BYTES : HEADROOM_BYTES + self.filled]
        if len(taken):
            self._filling, self._spare = self._spare, self._filling
            self.filled = 0
        return taken

    def behind(self, torn: Bytes, taken: Bytes) -> Bytes:
        """See ``Stream.behind``."""
        if len(torn) > HEADROOM_BYTES:
            return np.concatenate([torn, taken])
        begin = HEADROOM_BYTES - len(torn)
        self._spare[begin:HEADROOM_BYTES] = torn
        return self._spare[begin : HEADROOM_BYTES + len(taken)]
