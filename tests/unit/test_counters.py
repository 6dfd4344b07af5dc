"""Counts from several processes become one table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests import counters


def test_the_processes_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counters.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(counters, "_counts", type(counters._counts)())
    counters.add("faults", "crashes", 2)
    counters.add("cases", "passed")
    counters.save()
    counters.add("faults", "crashes")
    counters.save()
    counters.save()
    assert len(list(tmp_path.iterdir())) == 2
    assert counters.total(tmp_path) == {"cases": {"passed": 1}, "faults": {"crashes": 3}}


def test_the_table_names_every_count() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(counters.table({"faults": {"crashes": 1200, "lost answers": 3}}))
    assert "faults" in out.getvalue()
    assert "crashes 1,200 · lost answers 3" in out.getvalue()


def test_outside_a_run_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counters, "_counts", type(counters._counts)())
    monkeypatch.setenv(counters.FOLDER_VARIABLE, str(tmp_path / "gone"))
    counters.add("faults", "crashes")
    counters.save()
    monkeypatch.delenv(counters.FOLDER_VARIABLE)
    counters.save()
