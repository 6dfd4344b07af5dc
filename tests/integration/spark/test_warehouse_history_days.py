"""A warehouse's history of some days against the whole log, and what becomes of its files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from tests.contract.labs import Lab
from tests.integration.agedlog import AgedLog, Version, days_that_change, random_days, whole_from_later
from tests.integration.spark.warehouselab import lab

__all__ = ["lab"]

PLACE = "public/orders_history"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


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
    def us(when: dt.datetime | None) -> int | None:
        return None if when is None else (when - _EPOCH) // dt.timedelta(microseconds=1)

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
        return (dt.datetime.fromisoformat(said) - _EPOCH) // dt.timedelta(microseconds=1) if said else None

    return found


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
