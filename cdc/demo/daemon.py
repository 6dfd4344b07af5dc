"""The real daemon as a child process, seen only through what every user has: its command line and its HTTP port."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cdc.embedded.processes import kill_group, spawn
from cdc.errors import HeadwaterError, WaitTimeout

_DRAIN_S = 60.0

Tell = Callable[[dict[str, Any] | None], None]


class DaemonFailed(HeadwaterError):
    """``cdc run`` ended by itself, or one of its parts stopped."""


class Daemon:
    """``cdc run``; its output goes to ``cdc.log`` beside the configuration. ``look`` is given every status that was asked for."""

    def __init__(self, configuration: Path, page: str, look: Callable[[dict[str, Any]], None] = lambda _told: None) -> None:
        self._configuration = configuration
        self._address = urlsplit(page)
        self._look = look
        self.log = configuration.with_name("cdc.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("wb"):
            pass
        self._process = spawn([*self._command(), "run"], log=self.log, death_signal=signal.SIGTERM)

    def stop(self) -> int | None:
        """Drains; returns the daemon's exit code (None when it never ran, negative when it had to be killed)."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_DRAIN_S)
            except subprocess.TimeoutExpired:
                kill_group(self._process)
        return self._process.returncode

    def check(self) -> None:
        """Raises DaemonFailed when the daemon has ended."""
        if self._process is not None and self._process.poll() is not None:
            said = [
                line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("error: ")
            ]
            why = f": {said[-1].removeprefix('error: ')}" if said else ""
            raise DaemonFailed(f"cdc run ended with code {self._process.returncode}{why}", hint=f"see {self.log}")

    def status(self) -> dict[str, Any] | None:
        """``/v1/status``; None while the port does not answer. Raises DaemonFailed when the daemon has ended or a part stopped."""
        self.check()
        told = self.asked()
        if told is None:
            return None
        self._look(told)
        for stopped in told["stops"]:
            raise DaemonFailed(
                f"{stopped['part']} stopped: {stopped['state']}", hint=f"see {self.log}; --fresh starts from nothing"
            )
        return told

    def asked(self) -> dict[str, Any] | None:
        """``/v1/status`` whatever it says, for any thread; None while the port does not answer."""
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=10)
        try:
            connection.request("GET", "/v1/status")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        told: dict[str, Any] | None = json.loads(body) if response.status == 200 else None
        return told

    def wait_for(
        self, wanted: Callable[[dict[str, Any]], bool], what: str, timeout_s: float, tell: Tell = lambda _told: None
    ) -> None:
        """Looks every 200 ms until the status is as wanted, and passes each on to ``tell``.

        Raises DaemonFailed, and WaitTimeout once nothing at all has moved for ``timeout_s``: how long the work takes is the machine's affair.
        """
        moved_at, where = time.monotonic(), None
        while True:
            told = self.status()
            if told is not None and wanted(told):
                return
            tell(told)
            if (now_at := standing(told)) != where:
                moved_at, where = time.monotonic(), now_at
            if time.monotonic() - moved_at > timeout_s:
                raise WaitTimeout(f"{what}: nothing has moved for {timeout_s:.0f} s", hint=f"see {self.log}")
            time.sleep(0.2)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``cdc`` with the demo's configuration."""
        return subprocess.run(
            [*self._command(), *arguments], capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, check=False
        )

    def beside(self, *arguments: str) -> subprocess.Popen[str]:
        """Begins ``cdc`` with the demo's configuration; whoever asks ends it. A session of its own: a terminal's Ctrl-C reaches only us."""
        return subprocess.Popen(
            [*self._command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "cdc", "--config", str(self._configuration)]


def standing(told: dict[str, Any] | None) -> tuple[object, ...] | None:
    """The facts that change as long as anything moves: states, the snapshot's rows, positions."""
    if told is None:
        return None
    capture = told["capture"]
    read = () if capture is None else (capture["state"], capture["position"], *(table["done"] for table in capture["snapshot"]))
    return (*read, *((follower["state"], follower["position"]) for follower in told["followers"]))


def is_capturing(told: dict[str, Any]) -> bool:
    """Capture has its slot and the log: whatever is committed from now on is followed."""
    capture = told["capture"]
    return capture is not None and capture["alive"] and capture["state"] in ("snapshot", "streaming")


def is_caught_up(told: dict[str, Any]) -> bool:
    """The snapshot is done and no store has anything left to do of what is in the log now."""
    if not is_capturing(told) or told["capture"]["state"] != "streaming":
        return False
    lags = [follower["lag"] for follower in told["followers"]]
    return bool(lags) and all(lag is not None and lag["changes"] == 0 for lag in lags)
