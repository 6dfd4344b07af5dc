"""What `cdc status` shows of a report."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from cdc.commands.output import budget_lasts
from cdc.commands.status import _shown, lines
from cdc.report.shape import LettersReport, Report, SourceReport, ViewGenerationReport
from tests.unit.http import reports


def busy() -> Report:
    """Everything is large, and something is wrong."""
    report = reports.stopped()
    followers = tuple(
        replace(
            reports.follower(name, kind, position=1_234_567_890, written=987_654_321, behind=12_345_678, lag_s=7_654.0),
            rows_per_s=123_456.0,
            aside=(LettersReport("public.orders", 12_345, 0, 0, 1.0),),
        )
        for name, kind in (("search", "opensearch"), ("board", "redis"), ("warehouse", "iceberg"))
    )
    return replace(report, followers=followers)


def screen(report: Report, columns: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=columns, force_terminal=True, color_system=None, markup=False).print(_shown(report, columns))
    return out.getvalue().split("\n")


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_it_can_be_read_on_a_terminal_of_any_width(columns: int) -> None:
    shown = screen(busy(), columns)
    assert max(map(len, shown)) <= columns
    at = next(number for number, one in enumerate(shown) if one.startswith("store "))
    head, rows = shown[at], shown[at + 1 : at + 4]
    assert [row.split()[0] for row in rows] == ["search", "board", "warehouse"]
    assert head.split()[-2:] == ["set", "aside"]
    for row in rows:
        assert "following" in row
        for value in ("12345678", "2.1 h", "123456", "12345"):
            assert value in row


@pytest.mark.parametrize("columns", [80, 120])
def test_views_have_a_table_of_their_own(columns: int) -> None:
    shown = screen(reports.with_views(), columns)
    assert max(map(len, shown)) <= columns
    [row] = [one.split() for one in shown if one.startswith("busiest ")]
    assert {"following", "12", "420", "ms", "61440", "7.3", "MB"} <= set(row)
    assert not any(one.startswith("views") for one in screen(reports.healthy(), columns))


def test_a_views_line_says_what_it_costs() -> None:
    [found] = [one for one in lines(reports.with_views()) if one.startswith("view busiest")]
    assert found == (
        "view busiest: following at 1482082, 12 changes, 2.2 kB, 420 ms behind, 480/s taken, 12/s written, "
        "61440 rows and 7.3 MB of state, last step 12 ms for 96 changes"
    )


def test_generations_of_a_view_have_lines_while_there_are_several() -> None:
    report = reports.with_views()
    live = ViewGenerationReport(3, "live", 2214, 0, 0, 44_400, None, None)
    loading = replace(live, number=4, state="building", position=2210, done=120, total=480)
    beside = (
        replace(loading, eta_s=90.0),
        replace(loading, done=0, total=0),
        replace(loading, error="public.orders is still being read"),
        replace(loading, state="refused", error="a key is NULL", bytes=0),
        replace(live, state="kept", until=1_800_000_000.0),
    )
    view = replace(report.views[0], view="busiest", position=2214, generations=(live, loading, *beside))
    assert [one.removeprefix("generation ") for one in lines(replace(report, views=(view,))) if one.startswith("generation ")] == [
        "3 of view busiest: live at 2214, 44.4 kB",
        "4 of view busiest: being built, 120 of at most 480 rows, 25 %, 44.4 kB",
        "4 of view busiest: being built, 120 of at most 480 rows, 25 %, about 90.0 s left, 44.4 kB",
        "4 of view busiest: being built, at 2210 of 2214, 44.4 kB",
        "4 of view busiest: being built, waits: public.orders is still being read, 44.4 kB",
        "4 of view busiest: refused: a key is NULL",
        "3 of view busiest: kept at 2214 until 2027-01-15 08:00:00Z, 44.4 kB",
    ]
    assert not any(one.startswith("generation ") for one in lines(replace(report, views=(replace(view, generations=(live,)),))))


def test_lines_that_do_not_fit_go_on_further_in() -> None:
    shown = screen(busy(), 80)
    source = next(number for number, one in enumerate(shown) if one.startswith("source "))
    assert shown[source + 1].startswith(" " * 7)
    assert any(one.startswith("! ") for one in shown)


@pytest.mark.parametrize(("eta_s", "shown"), [(90.0, "90.0 s"), (5 * 86_400.0, "5 days"), (5768 * 86_400.0, "more than a month")])
def test_how_long_the_budget_lasts(eta_s: float, shown: str) -> None:
    assert budget_lasts(eta_s) == shown
    report = reports.healthy()
    slot = report.source.slot
    assert slot is not None
    source = SourceReport(True, None, "h", replace(slot, budget_eta_s=eta_s))
    assert f"for {shown} at the present rate" in next(iter(lines(replace(report, source=source))))


def test_one_is_no_plural() -> None:
    report = reports.healthy()
    [table, *_] = report.log.tables
    text = "\n".join(lines(replace(report, log=replace(report.log, tables=(table,), rows=1))))
    assert ", 1 change in 1 table," in text
