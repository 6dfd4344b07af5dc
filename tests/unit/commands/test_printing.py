from __future__ import annotations

import io

import pytest

from cdc.commands.output import console, seconds, size, table_of


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (999_999, "1000 kB"), (5 * 10**9, "5.0 GB"),
        (-1500, "-1.5 kB"), (10**21, "1000000 PB"),
    ],
)  # fmt: skip
def test_sizes(count: float | None, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("duration", "shown"), [(None, "-"), (0, "0 ms"), (0.25, "250 ms"), (5, "5.0 s"), (600, "10 min"), (86400, "24.0 h")]
)
def test_durations(duration: float | None, shown: str) -> None:
    assert seconds(duration) == shown


def test_a_name_that_looks_like_markup_is_a_cell_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may create a table names it so."""
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    console().print(table_of("tables", ["table", ">rows"], [["public.[/x]", "1"], ["public.[bold]\x1b[2J", "2"]]))
    lines = screen.getvalue().splitlines()
    assert lines[-2].split() == ["public.[/x]", "1"]
    assert lines[-1].split() == [r"public.[bold]\x1b[2J", "2"]
