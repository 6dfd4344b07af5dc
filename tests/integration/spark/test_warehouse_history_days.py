"""A warehouse's history of some days against the whole log, and what becomes of its files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from tests.integration.agedlog import (
    Version,
    test_days_may_be_said_later_and_be_fewer_or_more,
    test_times_within_the_days_are_answered_as_the_whole_log_does,
    test_what_the_log_no_longer_has_is_said,
    us,
)
from tests.integration.spark.warehouselab import lab

__all__ = [
    "lab",
    "test_days_may_be_said_later_and_be_fewer_or_more",
    "test_times_within_the_days_are_answered_as_the_whole_log_does",
    "test_what_the_log_no_longer_has_is_said",
]

PLACE = "public/orders_history"


@pytest.fixture
def table(tmp_path: Path) -> Callable[[], StaticTable]:
    """The history as pyiceberg reads it."""
    folder = tmp_path / "lab" / PLACE / "metadata"

    def newest() -> StaticTable:
        number = (folder / "version-hint.text").read_text(encoding="utf-8").strip()
        return StaticTable.from_metadata(str(folder / f"v{number}.gz.metadata.json"))

    return newest


@pytest.fixture
def versions(table: Callable[[], StaticTable]) -> Callable[[], list[Version]]:
    def found() -> list[Version]:
        return [
            Version(
                row["id"],
                row["status"],
                row["valid_from_position"],
                row["valid_to_position"],
                us(row["valid_from"]) or 0,
                us(row["valid_to"]),
            )
            for row in table().scan().to_arrow().to_pylist()
        ]

    return found


@pytest.fixture
def complete_from(table: Callable[[], StaticTable]) -> Callable[[], int | None]:
    def found() -> int | None:
        said = table().metadata.properties.get("headwater.complete-from")
        return us(dt.datetime.fromisoformat(said)) if said else None

    return found
