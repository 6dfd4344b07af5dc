from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.http.past import BEGINS_S, EPISODES, FILE, MINUTES, Past, save
from cdc.log.contract import COMES_WITH_CAPTURE
from cdc.report.problems import STARTS
from cdc.report.shape import FollowerReport, Lag, LogReport, Report, SourceReport

LOG = LogReport(dir="log", position=0, commit_lsn=None, commit_ts=None, rows=0, bytes=0, disk_free_bytes=0, tables=())
REPORT = Report("0", 600.0, True, (), SourceReport(True, None, "here", None), None, LOG, (), (), ())


def at(seconds: float, position: int = 0, written: int = 0, lag_s: float = 0.0, problems: tuple[str, ...] = ()) -> Report:
    follower: Any = FollowerReport(
        "cache", "redis", "following", True, None, None, position, None, None, Lag(0, 0, lag_s), written, 0, 0, 0, 0.0, seconds
    )
    return replace(REPORT, at=seconds, problems=problems, log=replace(LOG, position=position), followers=(follower,))


def test_a_minute_sums_changes_and_keeps_the_longest_lag() -> None:
    past = Past()
    completed = [past.take(at(600 + second, position=10 * second, written=5 * second, lag_s=second / 10)) for second in range(60)]
    assert not any(completed)
    assert past.take(at(660, position=600, written=300)), "the minute is complete"
    first, second = past.minutes
    assert (first.at, first.captured, first.stores) == (600, 590, {"cache": (295, 5.9)})
    assert (second.at, second.captured, second.stores) == (660, 10, {"cache": (5, 0.0)})


def test_a_process_that_began_again_takes_nothing_back() -> None:
    past = Past()
    for written in (100, 150, 0, 20):
        past.take(at(600, written=written))
    assert past.minutes[0].stores["cache"][0] == 70


def test_a_problem_with_other_numbers_is_the_same_until_it_goes() -> None:
    past = Past()
    past.take(at(600, problems=("store cache is 5 s behind",)))
    past.take(at(601, problems=("store cache is 6 s behind", "store search waits")))
    past.take(at(602, problems=("store search waits",)))
    past.take(at(603))
    assert [(one.text, one.since, one.until) for one in past.episodes] == [
        ("store cache is 6 s behind", 600, 602),
        ("store search waits", 601, 603),
    ]


@pytest.mark.parametrize(
    "starts", [f"capture is starting → {STARTS}", f"follower cache is waiting: no log yet → {COMES_WITH_CAPTURE}"]
)
def test_a_start_is_no_problem_of_the_past_unless_it_lasts(starts: str) -> None:
    past = Past()
    past.take(at(600, problems=(starts, "store search waits")))
    assert [one.text for one in past.episodes] == [starts, "store search waits"]
    past.take(at(610))
    assert [one.text for one in past.episodes] == ["store search waits"]
    past.take(at(620, problems=(starts,)))
    past.take(at(620 + BEGINS_S))
    assert [one.text for one in past.episodes] == ["store search waits", starts]


def test_it_is_bounded() -> None:
    past = Past()
    for number in range(2 * MINUTES):
        past.take(at(60.0 * number, problems=(("a", "b")[number % 2],)))
    assert (len(past.minutes), len(past.episodes)) == (MINUTES, EPISODES)


def test_it_is_kept_over_a_restart(tmp_path: Path) -> None:
    past, again = Past(), Past()
    past.take(at(600, position=5, problems=("it is down",)))
    past.take(at(660, position=9, problems=("it is down",)))
    save(tmp_path, past.to_json())
    again.load(tmp_path)
    assert [(one.at, one.captured, one.stores) for one in again.minutes] == [
        (one.at, one.captured, one.stores) for one in past.minutes
    ]
    assert [(one.text, one.since, one.until) for one in again.episodes] == [("it is down", 600, 720)]


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"crc32c": "00000000", "format": 1}', b"\xff\xff"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    past = Past()
    past.load(tmp_path)
    assert not past.minutes
