"""A SQL store's history of some days, in Postgres and in DuckDB, against the whole log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.agedlog import (
    Version,
    test_days_may_be_said_later_and_be_fewer_or_more,
    test_times_within_the_days_are_answered_as_the_whole_log_does,
    test_what_the_log_no_longer_has_is_said,
    us,
)
from tests.integration.sqllabs import Ask, ask, lab

__all__ = [
    "ask",
    "lab",
    "test_days_may_be_said_later_and_be_fewer_or_more",
    "test_times_within_the_days_are_answered_as_the_whole_log_does",
    "test_what_the_log_no_longer_has_is_said",
]


@pytest.fixture
def versions(ask: Ask) -> Callable[[], list[Version]]:
    query = "select id, status, valid_from_position, valid_to_position, valid_from, valid_to from public.orders_history"
    return lambda: [Version(*row[:4], us(row[4]) or 0, us(row[5])) for row in ask(query)]


@pytest.fixture
def complete_from(ask: Ask) -> Callable[[], int | None]:
    query = "select complete_from from headwater_stores.histories where table_schema = 'public' and table_name = 'orders_history'"
    return lambda: next((us(when) for (when,) in ask(query)), None)
