"""How long to wait for more bytes, so that what a read, a block or a group costs is shared by more rows. Pure."""

from __future__ import annotations

from typing import Final

PAUSE_S: Final = {True: 0.001, False: 0.0005}
"""Under a backlog a read waits this long (over TCP, over a Unix socket) so that messages gather: the server sends each by itself and
wakes an eager reader once per message. A Unix socket's buffer holds only some 300 of them, and 50 of 1.6 kB, so its pause is short; over TCP a
longer one lets the kernel's receive queue fill with small segments, which it then has to merge (twice the time, three times the CPU)."""

BACKLOG_BYTES: Final = 4 * 2**10
"""A read at least this large means that there is a backlog."""

FLOW_READS: Final = 64
FLOW_S: Final = 0.008
"""Where so many reads found something within this time, a pause gathers several messages: from then on reads wait for it …"""

FLOW_BYTES: Final = 512
"""… until one brings fewer bytes. So steady traffic that is read as fast as it comes does not wake us, and the server, for each message."""

READS: Final = 16
"""The number of reads in a row without the GIL, which the decoding thread may hold for longer than a pause."""

BLOCK_BYTES: Final = 4 * 2**20
"""Under a backlog the decoder waits for blocks of this size: the cost of a group (and the fsync behind it) is shared by more rows. Only wide
rows come so fast."""

BLOCK_S: Final = 0.03
"""… but at most this long."""

BATCH_BYTES: Final = 8 * 2**10
BATCH_S: Final = 0.00025
"""A table's share in a group (a batch, a frame, a file to sync) costs as much as many small rows and takes about this long. After a block of
very many tables the next one may therefore be larger by so much for each, and is waited for as long as they take: a backlog is then worked off
in fewer and larger groups …"""

LARGEST_BYTES: Final = 8 * 2**20
LONGEST_S: Final = 0.25
"""… but not larger than this, nor for longer."""


class Flow:
    """Whether messages come so fast that it is worth to wait a little before each read (``FLOW_READS``)."""

    def __init__(self) -> None:
        self.flows = False
        self._reads = 0
        self._since_s = float("-inf")

    def read(self, now_s: float) -> None:
        """A read without a pause has found something. ``now_s``: a monotonic clock."""
        self._reads += 1
        if self._reads == FLOW_READS:
            self.flows = now_s - self._since_s < FLOW_S
            self._reads, self._since_s = 0, now_s


def block_bytes(batches: int) -> int:
    """Under a backlog the decoder waits for so many bytes. ``batches``: what the block before became."""
    return min(max(BLOCK_BYTES, batches * BATCH_BYTES), LARGEST_BYTES)


def block_s(batches: int) -> float:
    """… but at most so long."""
    return min(max(BLOCK_S, batches * BATCH_S), LONGEST_S)
