"""A warehouse's history of some days against the whole log, and what becomes of its files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from cdc.errors import StoreError
from cdc.model.batch import Op
from sinks.warehouse.catalog import Pending
from sinks.warehouse.historyplace import HistoryPlace
from sinks.warehouse.keys import Int64s
from sinks.warehouse.place import TablePlace
from tests.contract.labs import Lab
from tests.contract.rows import order
from tests.contract.test_marks import bring
from tests.integration.agedlog import (
    DAY,
    NAME,
    AgedLog,
    Version,
    check,
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


@pytest.mark.parametrize("committed", [False, True])
def test_ended_while_versions_go_it_answers_all_the_same_and_goes_on(
    lab: Lab,
    tmp_path: Path,
    versions: Callable[[], list[Version]],
    complete_from: Callable[[], int | None],
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    """Before the commit that takes them away, and right behind it."""

    def ended(place: HistoryPlace, pending: Pending, hits: Mapping[str, Int64s], *others: Any) -> None:
        if committed:
            TablePlace._take_out(place, pending, hits, *others)
        else:
            place._vectors(hits)
        raise OSError

    lab.log = log = AgedLog(tmp_path / "aged", 1_000_000)  # type: ignore[assignment]
    forever: dict[str, Any] = {"history": True}
    log.commit(0, [(Op.INSERT, order(key)) for key in (1, 2, 3)])
    for day in (5, 10, 20):
        log.commit(DAY * day, [(Op.UPDATE, order(1, f"on day {day}")), (Op.DELETE, order(2)), (Op.INSERT, order(2, f"day {day}"))])
    bring(lab, lab.opened(tables={NAME: forever}))
    log.commit_other(DAY * 21)
    sink = lab.opened(tables={NAME: forever | {"history_days": 7}})
    with monkeypatch.context() as patched:
        patched.setattr(HistoryPlace, "_take_out", ended)
        with pytest.raises(StoreError):
            bring(lab, sink)
    horizon = log.us(DAY * 14)
    check(log, versions(), horizon)
    assert complete_from() == (horizon if committed else None)
    assert len(versions()) == (5 if committed else 9)
    sink = lab.opened(tables={NAME: forever | {"history_days": 7}})
    log.commit_other(DAY * 21)
    bring(lab, sink)
    check(log, versions(), horizon)
    assert complete_from() == horizon
    assert sorted(one.ends_us for one in versions() if one.ends_us is not None) == [log.us(DAY * 20)] * 2
