"""A ``cdc run`` that is measured, and whatever else has to be waited for beside it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

_END_S: Final = 60
_LOOK_S: Final = 0.1


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} took more than {timeout_s} s")
        time.sleep(_LOOK_S)


def end(daemon: subprocess.Popen[bytes]) -> None:
    """As its user would, and by force where that takes too long."""
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(_END_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
