"""Logical messages that are to be events: those that come under one prefix, each within a transaction (``pg_logical_emit_message(true, …)``). Pure.

Anybody may emit messages, so of one under another prefix nothing is read but its beginning. What the content of ours means is not known here
(``cdc.outbox.message``): it is taken out of the block as it is. One that was not emitted within a transaction is there whatever becomes of
the transaction, so it says nothing that can be relied on, and is refused; so is one that is too large to be put together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.capture import letters
from cdc.capture.messages import Index
from cdc.errors import ProtocolError
from cdc.model.group import EmittedMessages
from cdc.outbox.message import MOST_BYTES, NOT_TRANSACTIONAL, TOO_LARGE
from cdc.pgvalues.values import Bytes

MOST_PREFIX_BYTES: Final = 63
_PREFIX_AT: Final = 9
"""In a logical message, behind flags and LSN."""
_LENGTH_BYTES: Final = 4


def _nothing(why: str) -> None:
    del why


class EventMessages:
    """``prefix``: what events come under; empty where none do. ``passed_lsn``: of transactions that end at or before it no more events are made.

    ``refuse``: hears why a message under the prefix does not become an event.
    """

    def __init__(self, prefix: str = "", passed_lsn: int = 0, refuse: Callable[[str], None] = _nothing) -> None:
        self._mark = prefix.encode() + b"\0" if prefix else b""
        self._passed_lsn = passed_lsn
        self._refuse = refuse

    def find(self, block: Bytes, index: Index, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Gives those of the messages ``at`` that are events the kind ``letters.EVENT``, and returns the others."""
        if not self._mark:
            return at
        begins = index.body[at]
        mine = index.end[at] - begins >= _PREFIX_AT + len(self._mark) + _LENGTH_BYTES
        for place, byte in enumerate(self._mark, _PREFIX_AT):
            which = mine.nonzero()[0]
            mine[which] = block[begins[which] + place] == byte
        index.kind[at[mine]] = letters.EVENT
        return at[~mine]

    def pass_over(self, block: Bytes, loose: npt.NDArray[np.int64]) -> None:
        """Messages outside of any transaction, by where they begin behind their letters: whoever meant them to be events hears of it."""
        for at in loose.tolist() if self._mark else ():
            if block[at + _PREFIX_AT : at + _PREFIX_AT + len(self._mark)].tobytes() == self._mark:
                self._refuse(NOT_TRANSACTIONAL)

    def awaits(self, torn: bytes) -> bool:
        """Whether the message that begins so, behind its letter, is to be put together although it is large."""
        if not self._mark or not torn.startswith(self._mark, _PREFIX_AT):
            return False
        size = torn[_PREFIX_AT + len(self._mark) :][:_LENGTH_BYTES]
        fits = int.from_bytes(size, "big") <= MOST_BYTES
        if not torn[0] & 1 or not fits:
            self._refuse(TOO_LARGE if torn[0] & 1 else NOT_TRANSACTIONAL)
            return False
        return True

    def taken(self, block: Bytes, index: Index, begin: int, end: int) -> EmittedMessages | None:
        """The events among messages [begin, end), in their order. Raises ProtocolError."""
        if letters.EVENT not in index.kind[begin:end].tobytes():
            return None  # nearly always
        at = begin + (index.kind[begin:end] == letters.EVENT).nonzero()[0]
        transactions = index.transaction[at]
        ends, commits = index.end_lsn[transactions], index.commit_lsn[transactions]
        at = at[np.where(ends > 0, ends > self._passed_lsn, commits >= self._passed_lsn)]
        within = (block[index.body[at]] & 1).astype(np.bool_)
        for _ in at[~within]:
            self._refuse(NOT_TRANSACTIONAL)
        at = at[within]
        if not len(at):
            return None
        content = index.body[at] + _PREFIX_AT + len(self._mark) + _LENGTH_BYTES
        ends = index.end[at]
        for length_at, size in zip((content - _LENGTH_BYTES).tolist(), (ends - content).tolist(), strict=True):
            if int.from_bytes(block[length_at : length_at + _LENGTH_BYTES].tobytes(), "big") != size:
                raise ProtocolError("a logical message is not as long as it says")
        bodies = [block[one:end].tobytes() for one, end in zip(content.tolist(), ends.tolist(), strict=True)]
        transactions = index.transaction[at]
        return EmittedMessages(index.commit_lsn[transactions], index.commit_ts_us[transactions], pa.array(bodies, pa.binary()))


NO_EVENTS: Final = EventMessages()
