"""The snapshot's progress for people: bars with rows, rows/s and ETA at a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from cdc.state.status import TableProgress
from cdc.terminal import counted, visible

_LINE_EVERY_S: Final = 5.0


class ProgressDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed_at: dict[str, float] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._ended: set[str] = set()

    def update(self, tables: Sequence[TableProgress]) -> None:
        """As often as the caller likes; tables that were finished when first seen are passed over."""
        for table in tables:
            if table.table not in self._began:
                self._began[table.table] = (time.monotonic(), table.done)
                if table.finished:
                    self._ended.add(table.table)
            if table.table not in self._ended:
                self._show(table)
        if self._bars is not None and all(table.finished for table in tables):
            self.close()

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _show(self, table: TableProgress) -> None:
        began, done = self._began[table.table]
        rate = (table.done - done) / max(1e-3, time.monotonic() - began)
        if self._console.is_terminal:
            self._show_bar(table, rate)
        else:
            self._show_line(table, rate)
        if table.finished:
            self._ended.add(table.table)

    def _show_bar(self, table: TableProgress, rate: float) -> None:
        if self._bars is None:
            self._tasks.clear()
            self._bars = Progress(
                TextColumn("snapshot {task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} rows/s"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bars.start()
        if table.table not in self._tasks:
            self._tasks[table.table] = self._bars.add_task(visible(table.table), total=table.total or None, rate="0")
        total = table.done if table.finished else max(table.total, table.done) or None
        self._bars.update(self._tasks[table.table], completed=table.done, total=total, rate=f"{rate:,.0f}")

    def _show_line(self, table: TableProgress, rate: float) -> None:
        now = time.monotonic()
        if not table.finished and now - self._printed_at.get(table.table, -_LINE_EVERY_S) < _LINE_EVERY_S:
            return
        self._printed_at[table.table] = now
        if table.finished:
            self._console.print(Text(visible(f"snapshot {table.table}: {counted(table.done, 'row')}, done")))
            return
        left = max(0, table.total - table.done)
        eta = f", {left / rate:.0f} s left" if rate > 0 and table.total else ""
        self._console.print(
            Text(visible(f"snapshot {table.table}: {table.done} of about {table.total} rows, {rate:.0f} rows/s{eta}"))
        )
