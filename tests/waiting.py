"""Waiting for something to come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

LONG_S: Final = 240.0
"""No test waits for so long unless something is wrong, also on a machine that has other work."""
_LOOK_S: Final = 0.05

_Found = TypeVar("_Found")


def until(found: Callable[[], _Found], what: str | Callable[[], str] = "what was to come", *, timeout_s: float = LONG_S) -> _Found:
    """The first answer of ``found`` that is true. ``what``: is named when none comes within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"waited in vain for {what if isinstance(what, str) else what()}"
        time.sleep(_LOOK_S)
    return answer
