from __future__ import annotations

import pytest

from cdc.commands.printing import seconds, size


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
