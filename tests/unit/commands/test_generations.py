"""The times that `--keep-old` takes."""

from __future__ import annotations

import pytest
import typer

from cdc.commands.invocation import KEEP_OLD, kept_for


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("forever", None)]
)
def test_a_time_is_read(text: str, seconds: float | None) -> None:
    assert kept_for(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1.5h", "1 h", "never", "1w", "٣h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="forever"):
        kept_for(text)


def test_the_time_that_counts_when_none_is_given_is_one() -> None:
    assert kept_for(KEEP_OLD) == 86_400
