from __future__ import annotations

import io
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cdc.errors import LogCorrupt
from cdc.status import TableProgress
from snapshots.catalog import SourceTable
from snapshots.progress import FILE, ProgressDisplay, SnapshotProgress
from tests.unit.snapshots.rows import TIMES, T

SOURCE = SourceTable(T, ("a", "b"), False, None, 100, 1000, 1)


def test_a_restart_goes_on_behind_the_last_durable_chunk(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=0.0)
    progress.begin(SOURCE)
    progress.advance(T.oid, 60, ("1", "é"), waiting=False)
    again = SnapshotProgress(tmp_path)
    assert again.begin(SOURCE).after == ("1", "é")
    assert again.tables() == [TableProgress("public.t", 60, 100)]
    again.advance(T.oid, 70, None, waiting=False)
    again.finish(T.oid)
    assert SnapshotProgress(tmp_path).tables() == [TableProgress("public.t", 130, 130, finished=True)]


def test_chunks_are_written_now_and_then_but_what_waits_at_once(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=3600.0)
    progress.begin(SOURCE)
    progress.advance(T.oid, 60, ("1", "x"), waiting=False)
    assert SnapshotProgress(tmp_path).begin(SOURCE).after is None
    progress.wait_for_rows(T.oid)
    assert json.loads((tmp_path / FILE).read_text())["tables"]["7"]["waiting"] is True
    assert progress.tables() == [TableProgress("public.t", 60, 100)]


def test_other_columns_begin_anew_unless_finished(tmp_path: Path) -> None:
    changed = replace(SOURCE, row_filter="a > 1")
    progress = SnapshotProgress(tmp_path)
    progress.begin(SOURCE)
    progress.advance(T.oid, 60, ("1", "x"), waiting=False)
    assert progress.begin(changed).after is None
    progress.finish(T.oid)
    assert progress.begin(SOURCE).finished


def test_only_the_owner_reads_keys(tmp_path: Path) -> None:
    SnapshotProgress(tmp_path).begin(SOURCE)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 9, "tables": {}}', '{"format": 1, "tables": {"x": {}}}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(LogCorrupt, match=FILE):
        SnapshotProgress(tmp_path)


def test_forget(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path)
    progress.begin(SOURCE)
    progress.begin(replace(SOURCE, table=TIMES))
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


def test_keys_that_are_secret_are_not_written(tmp_path: Path) -> None:
    progress = SnapshotProgress(tmp_path, interval_s=0.0, secret_keys=lambda table: table == SOURCE.name)
    progress.begin(SOURCE)
    progress.advance(SOURCE.table.oid, 10, ("canary",), waiting=False)
    assert progress.begin(SOURCE).after == ("canary",)
    assert "canary" not in (tmp_path / "snapshot.json").read_text()
    assert SnapshotProgress(tmp_path).begin(SOURCE).done == 0
