"""What the tests went through, counted and printed at the end of the run: simulated runs, faults by kind, crash points, cases …

``counters.add("simulator", "crashes")`` from any test. Each pytest process (an xdist worker, or the only one) writes what it counted into
the run's folder, and the process at the terminal sums it up. A test's own child processes may count, too: ``save()`` before they end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console
from rich.table import Table

FOLDER_VARIABLE: Final = "HEADWATER_COUNTERS"
"""The run's folder; inherited by workers and by whatever the tests start."""
RESULT_VARIABLE: Final = "HEADWATER_COUNTERS_FILE"
"""Where the sums are kept as JSON after the run (group → name → count), when set."""

_counts: Counter[tuple[str, str]] = Counter()


def add(group: str, name: str, n: int = 1) -> None:
    """Counts ``n`` more of ``name`` under ``group``. Both are shown as they are."""
    _counts[group, name] += n


def save() -> None:
    """Leaves what this process has counted in the run's folder, and begins again at zero. Nothing outside a test run."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None or not _counts or not Path(folder).is_dir():
        return
    entries = [[group, name, n] for (group, name), n in _counts.items()]
    _counts.clear()
    aside = Path(folder) / f".{uuid.uuid4().hex}"
    aside.write_text(json.dumps(entries), encoding="utf-8")
    aside.rename(aside.with_name(f"{aside.name[1:]}.json"))


def total(folder: Path) -> dict[str, dict[str, int]]:
    """What all processes of the run have saved: group → name → count, both sorted."""
    return grouped((str(g), str(n), int(c)) for path in folder.glob("*.json") for g, n, c in json.loads(path.read_text()))


def grouped(entries: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for group, name, n in sorted(entries):
        sums.setdefault(group, Counter())[name] += n
    return {group: dict(found) for group, found in sums.items()}


def table(sums: dict[str, dict[str, int]]) -> Table:
    """One line per group: the names with their counts side by side."""
    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column()
    for group, names in sums.items():
        shown.add_row(group, " · ".join(f"{name} {n:,}" for name, n in names.items()))
    return shown


# pytest's side


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="headwater-counters-")


def pytest_sessionfinish() -> None:
    save()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    sums = total(Path(os.environ[FOLDER_VARIABLE]))
    if not sums:
        return
    terminalreporter.section("what the tests went through")
    Console(file=terminalreporter._tw._file, width=terminalreporter._tw.fullwidth, highlight=False).print(table(sums))
    kept = os.environ.get(RESULT_VARIABLE)
    if kept:
        Path(kept).write_text(json.dumps(sums, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        shutil.rmtree(os.environ.pop(FOLDER_VARIABLE), ignore_errors=True)
