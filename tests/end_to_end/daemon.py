"""`cdc run` as a process with all three stores, seen through its status files and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil

from cdc.demo.configuration import Value, toml
from cdc.embedded.processes import kill_group, spawn
from cdc.state import status

STORES = ("search", "cache", "warehouse")
DEADLINE_S = 300.0
"""For one step, on a machine with much else to do."""
NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})


def configure(
    folder: Path,
    dsn: str,
    opensearch: str,
    valkey: str,
    *,
    source: Mapping[str, Value] = NOTHING,
    store: Mapping[str, Value] = NOTHING,
    more: Mapping[str, Mapping[str, Value]] = MappingProxyType({}),
) -> None:
    """cdc.toml with the three stores. ``source`` and ``store`` (of all but the cache): further keys of theirs. ``more``: further sections."""
    text = toml(
        {
            "": {"run_dir": "run"},
            "source": {"dsn": dsn, "tables": ["public.*"], **source},
            "log": {"dir": "log"},
            "stores.search": {"kind": "opensearch", "url": opensearch, **store},
            "stores.cache": {"kind": "redis", "url": valkey},
            "stores.warehouse": {"kind": "iceberg", "path": "warehouse", **store},
            "http": {"listen": "127.0.0.1:0"},
            **more,
        }
    )
    (folder / "cdc.toml").touch(0o600)
    (folder / "cdc.toml").write_text(text)


class Daemon:
    """`cdc run` over ``folder/cdc.toml``. ``check`` is called while it is waited for, and raises what went wrong elsewhere."""

    def __init__(self, folder: Path, check: Callable[[], None]) -> None:
        self.folder = folder
        self._check = check
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "cdc", "--config", str(self.folder / "cdc.toml")]

    def start(self) -> None:
        self._process = spawn([*self._command, "run"], log=self.folder / "cdc.log", death_signal=signal.SIGTERM)

    def drain(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it went with the one before
                    child.kill()
            kill_group(self._process)

    def cdc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)

    def follower(self, store: str) -> status.FollowerStatus:
        return status.read_follower(self.folder / "run", store) or status.FollowerStatus(store)

    def position(self) -> int:
        """Of the log."""
        told = status.read_capture(self.folder / "run")
        return 0 if told is None else told.position

    @property
    def reports(self) -> bool:
        """Whether the status files are this supervisor's, and not its predecessor's."""
        told = status.read_supervisor(self.folder / "run")
        return told is not None and self._process is not None and told.pid == self._process.pid

    @property
    def processes(self) -> dict[str, status.ProcessStatus]:
        """By their names."""
        told = status.read_supervisor(self.folder / "run")
        assert told is not None
        return {process.name: process for process in told.processes}

    def process(self, name: str) -> status.ProcessStatus:
        return self.processes[name]

    def moves_on(self, *stores: str) -> None:
        """Returns once capture has logged something new, and these stores hold it."""
        before = self.position()
        self.until(lambda: self.position() > before, "capture to go on")
        goal = self.position()
        for store in stores:
            self.until(lambda store=store: self.follower(store).position >= goal, f"{store} to reach {goal}")

    def until(self, what: Callable[[], Any], name: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not what():
            self._check()
            assert self._process is not None
            assert self._process.poll() is None, f"cdc run ended\n{self.said()}"
            assert time.monotonic() < deadline, f"waited in vain for {name}\n{self.said()}"
            time.sleep(0.05)

    def said(self) -> str:
        files = sorted((self.folder / "run" / "status").glob("*.json"))
        states = "\n".join(f"{path.name}: {path.read_text()}" for path in files)
        return f"{(self.folder / 'cdc.log').read_text()[-6000:]}\n{states}"

    def audit(self) -> tuple[int, dict[str, Any]]:
        done = self.cdc("audit", "--json", "--timeout", str(2 * DEADLINE_S))
        assert done.stdout, f"{done.stderr}\n{self.said()}"
        return done.returncode, json.loads(done.stdout)


def kill_process(daemon: Daemon, name: str) -> None:
    """kill -9; the supervisor has to notice by itself. What the process leaves behind (Spark's JVM, its workers) ends soon after."""
    before = daemon.process(name)
    children = psutil.Process(before.pid).children(recursive=True)
    os.kill(before.pid, signal.SIGKILL)
    daemon.until(lambda: daemon.process(name).state == "running" and daemon.process(name).pid != before.pid, f"another {name}")
    daemon.until(lambda: not any(map(lives, children)), f"the children of {name} to end")
    assert daemon.process(name).exit_code == -signal.SIGKILL


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
