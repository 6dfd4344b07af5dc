"""The browser of the tests starts whichever descriptors the process has open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end import chromium
from tests.end_to_end.test_page import found_browser


@contextmanager
def descriptors_open_below(number: int) -> Iterator[None]:
    """The next descriptor that is opened has at least this number."""
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < number - 1:
            held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("first_free", [57, 61, 64])
def test_it_starts_where_few_low_descriptors_are_free(first_free: int, tmp_path: Path) -> None:
    with descriptors_open_below(first_free), chromium.browser(found_browser(), tmp_path) as page:
        assert page.run("1 + 1") == 2
