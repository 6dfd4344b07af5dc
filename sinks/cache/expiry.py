"""Rows that have gone by themselves: which of the keys that are not there have outlived their table's ``ttl``, by the log alone."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError, PositionGone
from cdc.log.contract import LogReader, Topic, present_history
from cdc.model.batch import ALONE, OP, TS, Op, topic_schema
from cdc.model.position import START, Position
from sinks.cache.letters import name_texts
from sinks.cache.standing import CacheStanding

CLOCKS_APART_MS: Final = 5000
"""So much earlier than by this machine's clock a key may have expired by the server's."""
_NEVER: Final = -1
_STAYS: Final = np.iinfo(np.int64).max


def expired(log: LogReader, topic: str, known: CacheStanding, names: pa.Array, ttl_ms: int) -> npt.NDArray[np.bool_]:
    """``names``: of keys of this topic that are not there (utf8). A key has expired when the last change of its row was committed more
    than ``ttl_ms`` ago. One whose changes the log has let go has, where even the first change that is left would have."""
    found = _topic(log, topic)
    while found is not None:
        try:
            return _expired(log, found, known, names, ttl_ms)
        except PositionGone:  # compacted since the topic was asked for
            before, found = found, _topic(log, topic)
            if found is not None and found.kept_from <= before.kept_from:
                raise
    return np.zeros(len(names), np.bool_)


def _topic(log: LogReader, name: str) -> Topic | None:
    return next((one for one in log.topics() if one.name == name), None)


def _expired(log: LogReader, topic: Topic, known: CacheStanding, names: pa.Array, ttl_ms: int) -> npt.NDArray[np.bool_]:
    last, now_ms = np.full(len(names), _NEVER, np.int64), time.time_ns() // 1_000_000 + CLOCKS_APART_MS
    after, first = Position(max(START, topic.kept_from - 1)), _STAYS
    for batch in log.read(topic.name, after, log.head().position, present_history(log)):
        if batch.column(OP)[0].as_py() in ALONE:
            continue
        commits = batch.column(TS).cast(pa.int64()).fill_null(now_ms * 1000).to_numpy() // 1000
        first = min(first, int(commits[0]))
        try:
            own = name_texts(known.keys(topic_schema(batch.schema)).texts(batch))
        except ConfigError:
            continue  # rows that were set aside
        at = pc.index_in(own, value_set=names)
        found = at.is_valid().to_numpy(zero_copy_only=False)
        # A row that was deleted meanwhile is not missing because it has expired. Of several changes of a key the last one counts.
        until = np.where(batch.column(OP).to_numpy() == int(Op.DELETE), _STAYS, commits)
        last[at.drop_null().to_numpy()] = until[found]
    if after > START:
        last[last == _NEVER] = first
    gone: npt.NDArray[np.bool_] = (last != _NEVER) & (last <= now_ms - ttl_ms)
    return gone
