"""Which logical messages are ours. Anybody may emit messages, under our prefixes, too: they must cost no more than others.

So nothing of a message is looked at but its beginning before it is known whose it is: one with facts bears a password, and a watermark is one that
a chunk of the snapshot waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdc.capture import letters
from cdc.capture.ddlmessages import DDL_PREFIX, DdlMessages
from cdc.capture.eventmessages import NO_EVENTS, EventMessages
from cdc.capture.messages import Index
from cdc.pgvalues.values import Bytes

WATERMARK_PREFIX: Final = "headwater"

_PREFIX_AT: Final = 9
"""In a logical message, behind flags and LSN."""
_HEAD_BYTES: Final = _PREFIX_AT + len(DDL_PREFIX) + 1 + 4
"""The bytes of a logical message up to its content."""
_WATERMARK_BYTES: Final = 64
"""No watermark is longer."""
_OURS: Final = WATERMARK_PREFIX.encode()
_MARK: Final = _OURS + b"\0"


@dataclass(frozen=True, slots=True)
class Expected:
    """The messages that somebody beside the definitions waits for."""

    watermark: Callable[[bytes], bool] = lambda _: True
    """Whether a watermark with this content is on its way; another is somebody else's."""
    events: EventMessages = NO_EVENTS


NOBODYS: Final = Expected()
"""Every watermark is believed, and no message is an event."""


class Authenticity:
    def __init__(self, ours: DdlMessages, expected: Expected) -> None:
        self._ours = ours
        self._awaits = expected.watermark
        self.events = expected.events
        self._most = _HEAD_BYTES + max(ours.head_bytes, _WATERMARK_BYTES)

    def mark(self, block: Bytes, index: Index) -> None:
        """Gives those that are not ours the kind ``letters.PASSED``, and those that are events ``letters.EVENT``."""
        if letters.MESSAGE not in index.kind.tobytes():
            return  # nearly always
        for at in self.events.find(block, index, (index.kind == letters.MESSAGE).nonzero()[0]).tolist():
            if not self._is_ours(block, int(index.body[at]), int(index.end[at])):
                index.kind[at] = letters.PASSED

    def _is_ours(self, block: Bytes, begin: int, end: int) -> bool:
        head = block[begin : min(end, begin + self._most)].tobytes()
        if len(head) <= _PREFIX_AT:
            return True  # refused where it is parsed
        if not head[0] & 1 or not head.startswith(_OURS, _PREFIX_AT):
            return False
        prefix, _, rest = head[_PREFIX_AT:].partition(b"\0")
        if prefix == _OURS:
            return end - begin <= self._most and self._awaits(rest[4:])
        return prefix == DDL_PREFIX.encode() and self._ours.bears_password(rest[4:])


def watermarks(block: Bytes, index: Index, begin: int, end: int) -> list[int]:
    """Which of the messages [begin, end), once they are marked, are watermarks."""
    if letters.MESSAGE not in index.kind[begin:end].tobytes():
        return []
    messages = begin + (index.kind[begin:end] == letters.MESSAGE).nonzero()[0]
    heads = [(at, int(index.body[at]) + _PREFIX_AT) for at in messages.tolist()]
    return [at for at, prefix in heads if np.array_equal(block[prefix : prefix + len(_MARK)], np.frombuffer(_MARK, np.uint8))]
