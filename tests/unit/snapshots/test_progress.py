from __future__ import annotations

import io
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cdc.errors import LogCorrupt
from cdc.state.status import TableProgress
from snapshots.catalog import SourceTable
from snapshots.display import ProgressDisplay
from snapshots.progress import FILE, SnapshotProgress
from tests.unit.snapshots.rows import TIMES, T

SOURCE = SourceTable(T, ("a", "b"), False, None, 100, 1000, 1)


def test_a_restart_reads_what_is_not_durable(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=0.0)
    run = progress.begin(SOURCE, "files").number
    progress.show(T.oid, run, 60)
    assert progress.tables() == [TableProgress("public.t", 60, 100)]
    progress.advance(T.oid, run, (5, 9), 60, waiting=False)
    again = SnapshotProgress(tmp_path)
    assert again.begin(SOURCE, "files").pages == ((5, 9),)
    assert again.tables() == [TableProgress("public.t", 60, 100)]
    again.advance(T.oid, 0, (0, 5), 70, waiting=False)
    assert again.begin(SOURCE, "files").pages == ((0, 9),)
    again.finish(T.oid, 0)
    again.flush()
    assert SnapshotProgress(tmp_path).tables() == [TableProgress("public.t", 130, 130, finished=True)]


def test_ranges_are_written_now_and_then_but_what_waits_at_once(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=3600.0)
    progress.begin(SOURCE, "files")
    progress.advance(T.oid, 0, (0, 5), 60, waiting=False)
    assert SnapshotProgress(tmp_path).begin(SOURCE, "files").pages == ()
    progress.wait_for_rows(T.oid)
    assert json.loads((tmp_path / FILE).read_text())["tables"]["7"]["waiting"] is True
    assert progress.tables() == [TableProgress("public.t", 60, 100)]


def test_the_log_is_behind_the_stream_once_rows_that_were_held_are_lost(tmp_path: Path) -> None:
    """Not while a table is read for the first time, however often capture begins again meanwhile."""
    assert SnapshotProgress(tmp_path).outdated(T.oid), "nothing is known of it"
    progress = SnapshotProgress(tmp_path, interval_s=0.0)
    run = progress.begin(SOURCE, "files").number
    progress.advance(T.oid, run, (0, 5), 60, waiting=False)
    assert not SnapshotProgress(tmp_path).outdated(T.oid)
    progress.wait_for_rows(T.oid)
    assert progress.outdated(T.oid)
    progress.advance(T.oid, run, (5, 7), 60, waiting=False)
    assert not progress.outdated(T.oid), "what was held is in the log"
    progress.wait_for_rows(T.oid)
    again = SnapshotProgress(tmp_path, interval_s=0.0)
    assert again.outdated(T.oid)
    run = again.begin(SOURCE, "files").number
    again.advance(T.oid, run, (0, 5), 60, waiting=False)
    again = SnapshotProgress(tmp_path, interval_s=0.0)
    assert again.outdated(T.oid), "part of it has been read again"
    again.finish(T.oid, again.begin(SOURCE, "files").number)
    assert not SnapshotProgress(tmp_path).outdated(T.oid)


def test_an_update_that_is_held_while_a_range_ends_still_waits(tmp_path: Path) -> None:
    """The worker had found that nothing is held a moment before."""
    progress = SnapshotProgress(tmp_path)
    run = progress.begin(SOURCE, "files").number
    holds = progress.holds(T.oid)
    progress.wait_for_rows(T.oid)
    progress.advance(T.oid, run, (0, 5), 60, waiting=False, holds=holds)
    assert SnapshotProgress(tmp_path).begin(SOURCE, "files").pages == (), "a crash lets it begin from the beginning"
    progress.advance(T.oid, run, (5, 7), 60, waiting=False, holds=progress.holds(T.oid))
    progress.flush()
    assert SnapshotProgress(tmp_path).begin(SOURCE, "files").pages == ((0, 7),)


def test_what_is_done_is_written_when_it_is_due_and_what_waits_at_once(tmp_path: Path) -> None:
    other = replace(SOURCE, table=replace(T, oid=8, name="other"))
    progress = SnapshotProgress(tmp_path, interval_s=3600.0)
    progress.take_in([(SOURCE, "files"), (other, "files")], joined_later=True)
    kept = SnapshotProgress(tmp_path)
    assert kept.unfinished() == [7, 8]
    assert kept.joining(8)
    progress.joined(8, progress.run(8))
    progress.finish(8, progress.begin(other, "files").number)
    progress.flush(when_due=True)
    assert SnapshotProgress(tmp_path).unfinished() == [7, 8]
    progress.flush()
    assert SnapshotProgress(tmp_path).unfinished() == [7]
    progress.wait_for_rows(7)
    progress.finish(7, progress.begin(SOURCE, "files").number)
    assert SnapshotProgress(tmp_path).finished(7), "else a crash would let it begin from the beginning"


@pytest.mark.parametrize(("source", "files"), [(replace(SOURCE, row_filter="a > 1"), "files"), (SOURCE, "rewritten")])
def test_other_columns_or_files_begin_anew_unless_finished(tmp_path: Path, source: SourceTable, files: str) -> None:
    progress = SnapshotProgress(tmp_path)
    old = progress.begin(SOURCE, "files").number
    progress.advance(T.oid, old, (0, 5), 60, waiting=False)
    run = progress.begin(source, files)
    assert run.pages == ()
    progress.advance(T.oid, old, (5, 9), 60, waiting=False)
    assert progress.begin(source, files).pages == (), "late words of the reading before"
    progress.finish(T.oid, run.number)
    assert progress.begin(SOURCE, "files").finished


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    SnapshotProgress(tmp_path).begin(SOURCE, "files")
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2}', '{"format": 9, "tables": {}}', '{"format": 2, "tables": {"x": {}}}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(LogCorrupt, match=FILE):
        SnapshotProgress(tmp_path)


def test_what_is_looked_for_at_the_end_outlives_a_restart_of_the_reading(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=0.0)
    progress.begin(SOURCE, "files")
    progress.restart(T.oid, empties=True)
    before = progress.run(T.oid)
    assert progress.announced(T.oid, before, 40)
    progress.restart(T.oid)
    run = progress.run(T.oid)
    progress.swept(T.oid, before)  # late words of the reading before
    assert not progress.announced(T.oid, before, 50)
    again = SnapshotProgress(tmp_path)
    assert (again.empties(T.oid), again.since(T.oid)) == (False, 40)
    progress.swept(T.oid, run)
    assert SnapshotProgress(tmp_path).since(T.oid) == 0


def test_a_table_whose_rows_cannot_be_looked_for_is_read_again_and_emptied(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=0.0)
    run = progress.begin(SOURCE, "files").number
    progress.announced(T.oid, run, 40)
    progress.cannot_sweep(T.oid, run + 1)
    assert not progress.outright(T.oid)
    progress.cannot_sweep(T.oid, run)
    again = SnapshotProgress(tmp_path)
    assert (again.empties(T.oid), again.outright(T.oid), again.since(T.oid), again.finished(T.oid)) == (True, True, 0, False)


def test_forget(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path)
    progress.begin(SOURCE, "files")
    progress.begin(replace(SOURCE, table=TIMES), "files")
    progress.forget(T.oid)
    assert not SnapshotProgress(tmp_path).known(T.oid)
    assert SnapshotProgress(tmp_path).known(TIMES.oid)


def shown(*steps: list[TableProgress], terminal: bool) -> str:
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, force_terminal=terminal, width=120))
    for step in steps:
        display.update(step)
    display.close()
    return out.getvalue()


STEPS = (
    [TableProgress("public.t", 0, 100)],
    [TableProgress("public.t", 50, 100)],
    [TableProgress("public.t", 90, 90, finished=True)],
)


def test_plain_lines() -> None:
    lines = shown(*STEPS, terminal=False).splitlines()
    assert lines == ["snapshot public.t: 0 of about 100 rows, 0 rows/s", "snapshot public.t: 90 rows, done"]


def test_bars_at_a_terminal() -> None:
    text = shown(*STEPS, terminal=True)
    assert "public.t" in text
    assert "90/90" in text


def test_tables_finished_long_ago_are_passed_over() -> None:
    assert shown([TableProgress("public.t", 5, 5, finished=True)], terminal=False) == ""
