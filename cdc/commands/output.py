"""Facts on standard output: tables on a terminal, plain lines elsewhere, JSON when asked. What they name is shown, and never acted on."""

from __future__ import annotations

import codecs
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cdc.terminal import json_in_ascii, visible, visible_json

DAY_S: Final = 86_400
LONG_DAYS: Final = 31
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def console() -> Console:
    """Standard output, without wrapping where it is not a terminal."""
    plain = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=plain, color_system=None if plain else "auto")


def line(text: str, style: str = "") -> Text:
    """One line of text as it is: no markup, no escape sequence, no line end of a name's is followed."""
    return Text(visible(text), style)


def say(text: str) -> None:
    """Prints one line."""
    sys.stdout.write(visible(text) + "\n")
    sys.stdout.flush()


def print_json(facts: Any) -> None:
    """One line of JSON."""
    # Elsewhere than in UTF-8 a letter is escaped as JSON has it.
    sys.stdout.write(visible_json(json.dumps(facts, ensure_ascii=not _speaks_utf8(), default=str)) + "\n")
    sys.stdout.flush()


def say_lines(lines: str) -> None:
    """Prints lines of JSON."""
    sys.stdout.write(visible_json(lines if _speaks_utf8() else json_in_ascii(lines)))
    sys.stdout.flush()


def _speaks_utf8() -> bool:
    return codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"


@contextmanager
def progress_bar(out: Console, what: str, total: int | None = None, *, shown: bool) -> Iterator[Callable[..., None]]:
    """A bar that goes when it is done. Gives what moves it, which takes what ``rich.progress.Progress.update`` does."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not shown) as bar:
        yield partial(bar.update, bar.add_task(what, total=total))


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Columns whose head begins with > are right-aligned."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(line, row))
    return table


def size(count: float | None) -> str:
    """Bytes for people, in powers of 1000."""
    if count is None:
        return "-"
    magnitude = min(len(_UNITS) - 1, int(math.log(abs(count), 1000))) if abs(count) >= 1 else 0
    number = count / 1000**magnitude
    return f"{number:.0f} {_UNITS[magnitude]}" if magnitude == 0 or abs(number) >= 100 else f"{number:.1f} {_UNITS[magnitude]}"


def seconds(duration: float | None) -> str:
    """A duration for people."""
    if duration is None:
        return "-"
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.1f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    if duration < 2 * DAY_S:
        return f"{duration / 3600:.1f} h"
    return f"{duration / DAY_S:.0f} days"


def budget_lasts(eta_s: float) -> str:
    """How long a WAL budget lasts; nobody has an idea of what is beyond a month."""
    return seconds(eta_s) if eta_s < LONG_DAYS * DAY_S else "more than a month"


def moment(unix_s: float) -> str:
    """A time of day, in UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}Z"
