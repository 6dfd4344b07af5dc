"""How long the daemon gives its parts when it is told to end."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.__main__ import main
from cdc.commands import run
from cdc.daemon import signals
from cdc.daemon import supervisor as supervise
from cdc.errors import ConfigError
from cdc.state import status


@pytest.mark.parametrize(("arguments", "least_s"), [([], supervise.DRAIN_S), (["--only", "capture"], 0.0)])
def test_the_daemon_outwaits_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], least_s: float
) -> None:
    """One that gave up before them would end with 137 whenever a follower is slow to end, as Spark is while it starts."""
    given: list[float] = []

    @contextmanager
    def noting(drain_s: float = signals.DRAIN_S) -> Iterator[threading.Event]:
        given.append(drain_s)
        raise ConfigError("far enough")
        yield

    monkeypatch.setattr(run, "stop_on_signals", noting)
    (tmp_path / "cdc.toml").write_text('[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n')
    assert main(["--config", str(tmp_path / "cdc.toml"), "run", *arguments]) == 2
    assert len(given) == 1
    assert given[0] > least_s
    assert supervise.DRAIN_S > signals.DRAIN_S, "nor do children end themselves after they are killed"


@pytest.mark.parametrize("reader", ["none", "a full disk"])
def test_the_daemon_goes_on_when_nobody_takes_its_log(tmp_path: Path, reader: str) -> None:
    (tmp_path / "cdc.toml").write_text(
        'run_dir = "run"\n[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n[http]\nlisten = "127.0.0.1:0"\n'
    )
    command = [sys.executable, "-m", "cdc", "--config", str(tmp_path / "cdc.toml"), "run"]
    with open("/dev/full", "w") as full:
        daemon = subprocess.Popen(command, stderr=full if reader == "a full disk" else subprocess.PIPE)
    try:
        if daemon.stderr is not None:
            daemon.stderr.close()
        deadline = time.monotonic() + 120
        while (told := status.read_supervisor(tmp_path / "run")) is None or told.processes[0].state != "refused":
            assert daemon.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        daemon.terminate()
        assert daemon.wait(120) == 0
        told = status.read_supervisor(tmp_path / "run")
        assert told is not None
        assert (told.state, told.processes[0].exit_code) == ("exited", 2)
    finally:
        daemon.kill()
        daemon.wait()


def test_a_full_disk_is_named_also_where_the_system_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "_part", fail)
    (tmp_path / "cdc.toml").write_text('[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n')
    assert main(["--config", str(tmp_path / "cdc.toml"), "run", "--only", "capture"]) == 1
    assert (
        f"No space left on device, on the disk of {tmp_path / 'var/log'} or of {tmp_path / 'var/run'} → " in capsys.readouterr().err
    )
