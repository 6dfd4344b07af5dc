"""The ids of the events that the log has: asked about rows that may have come before, such as those that a snapshot reads.

An event is known by a digest of its id, of 128 bits, 16 bytes of memory each; nothing is read or held before somebody asks. From then on only what has come
since is read. Two ids of one digest are as likely as a damaged disk that nobody notices: with 10**9 events less than 10**-20.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import LogAway
from cdc.kernels.digests import U64, digests
from cdc.log.contract import LogReader, left_between, present_history
from cdc.model.position import START, Position
from cdc.outbox.router import ids_of

Flags = npt.NDArray[np.bool_]


class SortedDigests(NamedTuple):
    """Digests, sorted by both halves."""

    high: U64
    low: U64


_NONE = SortedDigests(np.empty(0, np.uint64), np.empty(0, np.uint64))


class EventIds:
    """``open_log``: gives a reader of the log, which is closed again. ``topics``: the pattern of the event topics."""

    def __init__(self, open_log: Callable[[], LogReader], topics: str) -> None:
        self._open_log = open_log
        self._topics = topics
        self._seed = secrets.randbits(63)
        self._durable = _NONE
        self._upto = START
        self._staged: list[pa.Array] = []
        self._undurable = _NONE
        self._new = 0
        self._digests(pa.array([""]))  # compiled before anything is streamed, which would wait for that

    def stage(self, ids: pa.Array) -> None:
        """Takes note of events (utf8) that the log's next commit brings."""
        self._staged.append(ids)

    def settle(self) -> None:
        """Forgets what was staged: it is durable, or was dropped, and the log itself says which."""
        self._staged.clear()
        self._undurable, self._new = _NONE, 0

    def known(self, ids: pa.Array) -> Flags:
        """Says which of the ids (utf8) the log has, or gets with its next commit. Raises ConnectionError when the log does not give what it would take to say so."""
        self._catch_up()
        if len(self._staged) > self._new:
            self._undurable = _merged(self._undurable, self._ids(pa.concat_arrays(self._staged[self._new :])))
            self._new = len(self._staged)
        wanted = self._digests(ids)
        return _among(self._durable, wanted) | _among(self._undurable, wanted)

    def _catch_up(self) -> None:
        try:
            with closing(self._open_log()) as log:
                head, history = log.head().position, present_history(log)
                for part in left_between(log, (self._topics,), self._upto, head) if head > self._upto else ():
                    for batch in log.read(part.topic, part.after, part.upto, history, keys_only=True):
                        self._durable = _merged(self._durable, self._ids(ids_of(batch)))
                self._upto = Position(head)
        except LogAway as error:
            # As when the source does not answer: whoever streams begins again from what is durable, after a while.
            raise ConnectionError(f"cannot tell which events the log has: {error}") from None

    def _digests(self, ids: pa.Array) -> SortedDigests:
        found = digests(pa.RecordBatch.from_arrays([ids], names=["id"]), (0,), self._seed)
        return SortedDigests(found.high, found.low)

    def _ids(self, ids: pa.Array) -> SortedDigests:
        found = self._digests(ids)
        order = np.lexsort((found.low, found.high))
        return SortedDigests(found.high[order], found.low[order])


def _merged(one: SortedDigests, other: SortedDigests) -> SortedDigests:
    if not len(one.high):
        return other
    at = one.high.searchsorted(other.high)
    high, low = np.insert(one.high, at, other.high), np.insert(one.low, at, other.low)
    twins = np.flatnonzero(high[1:] == high[:-1])
    if len(twins):  # one id twice, or, once in ages, two digests that begin alike
        order = np.lexsort((low, high))
        high, low = high[order], low[order]
    return SortedDigests(high, low)


def _among(ids: SortedDigests, wanted: SortedDigests) -> Flags:
    found = np.zeros(len(wanted.high), bool)
    if not len(ids.high):
        return found
    at = ids.high.searchsorted(wanted.high, "left")
    end = ids.high.searchsorted(wanted.high, "right")
    while (left := np.flatnonzero(~found & (at < end))).size:
        found[left] = ids.low[at[left]] == wanted.low[left]
        at = at + 1
    return found
