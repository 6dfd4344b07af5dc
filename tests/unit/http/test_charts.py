"""The page's charts, over a day that is kept and a clock that is set back."""

from __future__ import annotations

from pathlib import Path

from cdc.http.charts import Charts
from tests.unit.http.test_past import at


def test_the_last_day_is_saved_once_a_minute_and_taken_up_again(tmp_path: Path) -> None:
    charts = Charts(tmp_path)
    saves = [charts.take(at(second)) for second in (60.0, 61.0, 120.0, 121.0)]
    assert [save is not None for save in saves] == [False, False, True, False]
    assert saves[2] is not None
    saves[2]()
    assert Charts(tmp_path).past.to_json() == charts.past.to_json()
    assert Charts(None).take(at(180.0)) is None


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    charts = Charts(tmp_path / "missing" / "further")
    charts.take(at(60.0))
    save = charts.take(at(120.0))
    assert save is not None
    save()


def test_a_clock_that_is_set_back_begins_the_history_again() -> None:
    charts = Charts(None)
    for second in (1000.0, 1001.0, 500.0):
        charts.take(at(second))
    assert [sample["at"] for sample in charts.history_json()] == [500.0]
