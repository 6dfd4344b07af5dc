"""For how long versions stay, by which clock, and what of a log is no longer there for them."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn, Position
from sinks.rowversions import TO
from sinks.versionage import VersionAge, later, time_of, time_text, whole_since_us, without_ended
from tests.contract.rows import ORDERS, batch, order, upserts
from tests.logs import LooseLog, cut

DAY_US = 86_400_000_000
NOW_S = 20_000 * 86_400.0
CLOCK = pa.timestamp("us", tz="UTC")


def cut_of(time_us: int) -> Cut:
    return Cut(Position(1), Lsn(1), time_us)


def test_the_horizon_is_counted_from_the_last_commit_or_from_this_clock_if_that_is_earlier() -> None:
    age = VersionAge(2)
    assert age.horizon_us(cut_of(19_000 * DAY_US), NOW_S) == 18_998 * DAY_US
    assert age.horizon_us(cut_of(30_000 * DAY_US), NOW_S) == 19_998 * DAY_US, "the source's clock has jumped ahead"
    assert age.horizon_us(cut_of(0), NOW_S) is None, "no commit yet"
    assert VersionAge(math.inf).horizon_us(cut_of(19_000 * DAY_US), NOW_S) is None
    assert VersionAge(1e9).horizon_us(cut_of(19_000 * DAY_US), NOW_S) is None


def test_versions_go_once_a_hundredth_of_their_time_has_passed() -> None:
    age = VersionAge(1)
    assert age.is_due(DAY_US, None)
    assert not age.is_due(DAY_US, DAY_US)
    assert not age.is_due(DAY_US + DAY_US // 101, DAY_US)
    assert age.is_due(DAY_US + DAY_US // 99, DAY_US)
    assert not age.is_due(DAY_US, 5 * DAY_US), "a clock that was set back"


def test_what_ended_at_the_horizon_is_not_needed_and_what_is_open_always_is() -> None:
    found = pa.table({TO: pa.array([10, 11, None, 9], pa.int64()).cast(CLOCK)})
    assert without_ended(found, 10).column(TO).cast(pa.int64()).to_pylist() == [11, None]
    assert without_ended(found, None) is found


def test_a_log_that_was_compacted_has_all_since_its_clean_point() -> None:
    log = LooseLog()
    log.put(upserts(ORDERS, 1, [order(1), order(2)]))
    for position in range(3, 9):
        log.put(batch(ORDERS, [(Op.UPDATE, position, order(1, f"at {position}"))]))
    reader = log.reader()
    assert whole_since_us(reader, reader.topics(), "public.orders", Position(0)) is None
    log.supersede("public.orders", 7)
    assert whole_since_us(reader, reader.topics(), "public.orders", Position(0)) == cut(6).commit_ts_us
    assert whole_since_us(reader, reader.topics(), "public.orders", Position(5)) == cut(6).commit_ts_us
    assert whole_since_us(reader, reader.topics(), "public.orders", Position(6)) is None, (
        "what it has held before is not read again"
    )
    assert whole_since_us(reader, reader.topics(), "public.others", Position(0)) is None


@pytest.mark.parametrize("time_us", [1, 20_000 * DAY_US + 123_456, 40_000 * DAY_US])
def test_a_time_s_text_says_it(time_us: int) -> None:
    assert time_of(time_text(time_us)) == time_us
    assert later(time_us, None) == later(0, time_us) == time_us
    assert later(None, None) is None
