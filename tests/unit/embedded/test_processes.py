"""Waiting for a server: as long as the machine needs, and no longer."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.embedded import EmbeddedError, processes
from cdc.embedded.processes import kill_group, spawn, wait_until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def child(log: Path) -> Iterator[processes.subprocess.Popen[bytes]]:
    process = spawn([sys.executable, "-c", "import time; time.sleep(3600)"], log=log, death_signal=signal.SIGKILL)
    yield process
    kill_group(process)


@pytest.mark.parametrize(("times", "comes"), [(1.0, False), (1e6, True)])
def test_a_server_gets_more_time_on_a_busy_machine(
    child: processes.subprocess.Popen[bytes], log: Path, monkeypatch: pytest.MonkeyPatch, times: float, comes: bool
) -> None:
    monkeypatch.setattr(processes, "slowness", lambda: times)
    looks = iter(range(1_000))
    if comes:
        wait_until(lambda: next(looks) > 5, child, what="it", log=log, timeout_s=0.01)
    else:
        with pytest.raises(EmbeddedError, match="it was not ready after"):
            wait_until(lambda: next(looks) > 500, child, what="it", log=log, timeout_s=0.01)
        assert child.poll() is not None
