"""A SQL store's history of some days, in Postgres and in DuckDB, against the whole log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.labs import Lab
from tests.integration.agedlog import AgedLog, Version, days_that_change, random_days, whole_from_later
from tests.integration.sqllabs import Ask, ask, lab

__all__ = ["ask", "lab"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def us(when: dt.datetime | None) -> int | None:
    return None if when is None else (when - _EPOCH) // dt.timedelta(microseconds=1)


@pytest.fixture
def versions(ask: Ask) -> Callable[[], list[Version]]:
    query = "select id, status, valid_from_position, valid_to_position, valid_from, valid_to from public.orders_history"
    return lambda: [Version(*row[:4], us(row[4]) or 0, us(row[5])) for row in ask(query)]


@pytest.fixture
def complete_from(ask: Ask) -> Callable[[], int | None]:
    query = "select complete_from from headwater_stores.histories where table_schema = 'public' and table_name = 'orders_history'"
    return lambda: next((us(when) for (when,) in ask(query)), None)


def test_times_within_the_days_are_answered_as_the_whole_log_does(
    lab: Lab, tmp_path: Path, seed: int, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    random_days(lab, AgedLog(tmp_path / "aged", 72), seed, versions, complete_from)


def test_days_may_be_said_later_and_be_fewer_or_more(
    lab: Lab, tmp_path: Path, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    days_that_change(lab, AgedLog(tmp_path / "aged", 1000000), versions, complete_from)


def test_what_the_log_no_longer_has_is_said(
    lab: Lab, tmp_path: Path, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    whole_from_later(lab, AgedLog(tmp_path / "aged", 12), versions, complete_from)
