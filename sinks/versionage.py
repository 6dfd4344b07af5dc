"""For how long versions of rows stay after they have ended (``history_days``), and since when a history has all that there were.

A question as of a time needs the versions that end after it. So of those that ended at or before the *horizon*, so many days before the last commit that the
store holds, none is needed for any later time, whichever clock the source goes by. The horizon goes by this machine's clock where that is earlier, as the log's
compaction does: a clock at the source that jumps ahead takes nothing away.

Compaction leaves each row's last change from below its clean point, so a history that was made from there lacks the versions between, and one that was being
made meanwhile has them end too late. Both ended before the clean point, so times from there on are answered as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.log.contract import LogReader, Topic
from cdc.model.position import START, Cut, Position
from sinks.rowversions import TO

_DAY_US: Final = 86_400_000_000
_STEP_SHARE: Final = 0.01
"""Versions are taken away once this share of their time has passed since that was done last."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class VersionAge:
    """For how long the versions of one topic stay, in days after they have ended; ``math.inf``: for ever."""

    days: float = math.inf

    def horizon_us(self, cut: Cut, now_s: float) -> int | None:
        """Versions that ended at or before this time (microseconds since 1970-01-01 UTC) are not needed at the cut; None: all are."""
        if math.isinf(self.days):
            return None
        found = min(cut.commit_ts_us, int(now_s * 1e6)) - int(self.days * _DAY_US)
        return found if found > 0 else None

    def is_due(self, horizon_us: int, done_us: int | None) -> bool:
        """Whether it is time to take away what is not needed. ``done_us``: up to where that was done; None: nobody knows."""
        return done_us is None or horizon_us - done_us >= _STEP_SHARE * self.days * _DAY_US


def whole_since_us(log: LogReader, topics: Iterable[Topic], topic: str, held: Position) -> int | None:
    """The time before which the log may lack versions of the topic for a store that has held its changes up to ``held``, and has read the others by now;
    None: it lacks none."""
    found = next((one for one in topics if one.name == topic), None)
    if found is None or found.clean_from <= max(held, START) + 1:
        return None
    return log.cut_within(Position(found.clean_from - 2), 1, 1).commit_ts_us


def later(one: int | None, other: int | None) -> int | None:
    """The later of two times, of which either may not be there."""
    return max((time for time in (one, other) if time is not None), default=None)


def time_text(time_us: int) -> str:
    """The time as databases and Iceberg's readers read it."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(" ")


def time_of(text: str) -> int:
    """The time that ``time_text`` was given. Raises ValueError."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def ended(times: pa.Array | pa.ChunkedArray, horizon_us: int) -> pa.Array | pa.ChunkedArray:
    """True for each of these (ends of versions) that lies at or before the horizon. An open version has no end."""
    return pc.less_equal(times, pa.scalar(horizon_us, times.type)).fill_null(False)


def without_ended(versions: pa.Table, horizon_us: int | None) -> pa.Table:
    """The versions without those that nobody needs."""
    return versions if horizon_us is None else versions.filter(pc.invert(ended(versions.column(TO), horizon_us)))
