"""A group of whole transactions as batches: capture's output, ready to append to the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Transactions:
    """The group's commits, in commit order; all arrays have one entry per transaction."""

    xid: npt.NDArray[np.uint32]
    end_lsn: npt.NDArray[np.int64]
    """The commit's end LSN: the only kind of LSN that is ever confirmed."""
    commit_ts_us: npt.NDArray[np.int64]
    """Microseconds since 1970-01-01 UTC."""
    last_position: npt.NDArray[np.int64]
    """Position of the transaction's last change; equal to the previous one's where it changed nothing of ours."""

    def xid_of(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The transaction that made each change."""
        return self.xid[np.searchsorted(self.last_position, positions)]


@dataclass(frozen=True, slots=True)
class Watermark:
    """One of our logical messages (prefix ``headwater``), seen in the stream."""

    content: bytes
    lsn: int


@dataclass(frozen=True, slots=True)
class EmittedMessages:
    """Logical messages that are to be events, in the order of the stream; all arrays have one entry per message."""

    commit_lsn: npt.NDArray[np.int64]
    """LSN of the commit record of the message's transaction; never falling."""
    commit_ts_us: npt.NDArray[np.int64]
    """Microseconds since 1970-01-01 UTC."""
    bodies: pa.Array
    """binary"""

    def slice(self, begin: int, end: int) -> EmittedMessages:
        """Those from ``begin`` up to ``end``."""
        return EmittedMessages(self.commit_lsn[begin:end], self.commit_ts_us[begin:end], self.bodies[begin:end])


@dataclass(frozen=True, slots=True)
class Group:
    """Whole transactions; the batches' positions together are dense. A watermark, where present, comes after all of them:
    its own transaction is the group's last."""

    batches: tuple[pa.RecordBatch, ...]
    transactions: Transactions
    watermark: Watermark | None = None
    complete: bool = True
    """False: the last transaction goes on in the next group (its ``end_lsn`` is 0 here); append, but do not commit."""
    again: Mapping[int, bool] = field(default_factory=dict)
    """The tables (OIDs) whose stored rows changed without events in these transactions, or that are gone: to be read again; each with whether it
    has just joined the publication."""
    messages: EmittedMessages | None = None
    """They have no positions: whoever makes events of them gives these."""
