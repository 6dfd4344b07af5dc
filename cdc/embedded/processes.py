"""Child processes that never outlive us, and what waits for them."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from cdc.embedded import EmbeddedError
from cdc.embedded.accounts import Account, popen_options
from cdc.pace import slowness

PORTS: Final = range(16_000, 32_000)
TRIES: Final = 100
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

# The kernel sends the death signal when the *thread* that forked ends, so one thread that lives as long as we do forks them all.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")


def spawn(
    argv: Sequence[str | Path],
    *,
    log: Path,
    account: Account | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Starts a child in a process group of its own, its output appended to ``log``; it gets ``death_signal`` when we die.

    ``account``: the user it runs as. ``env``: added to our own environment.
    """
    parent = os.getpid()

    def bind_to_parent() -> None:
        # Runs in the child, after it has changed its user (which clears the setting).
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    def fork() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                process_group=0,
                preexec_fn=bind_to_parent,
                **popen_options(account),
            )

    return _forker.submit(fork).result()


def listens(port: int) -> bool:
    """Whether somebody listens on this port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 for the child and everything that it started and that stayed in its group; returns when the child is gone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def stop(process: subprocess.Popen[bytes], sig: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> None:
    """Asks the child to end; after ``timeout_s`` ends it with its group."""
    if process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
    kill_group(process)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now. Somebody may before we do, which is unlikely: it is drawn from ports
    below those that systems give to whoever asks for any, such as every outgoing connection."""
    for _ in range(TRIES):
        port = secrets.choice(PORTS)
        if _is_free(port):
            return port
    raise EmbeddedError(f"no free port of 127.0.0.1 between {PORTS[0]} and {PORTS[-1]} in {TRIES} tries")


def free_port_like(preferred: int) -> int:
    """``preferred`` when nobody listens there, else any free port."""
    return preferred if _is_free(preferred) else free_port()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_until(
    probe: Callable[[], bool], process: subprocess.Popen[bytes], *, what: str, log: Path, timeout_s: float = 180
) -> None:
    """Returns once ``probe`` says yes. Raises EmbeddedError when the process ends first, or after ``timeout_s`` (on a busy machine: longer)."""
    began = time.monotonic()
    while not probe():
        if process.poll() is not None:
            raise EmbeddedError(f"{what} ended with code {process.returncode} while starting", hint=f"see {log}")
        waited_s = time.monotonic() - began
        if waited_s > timeout_s and waited_s > timeout_s * slowness():
            kill_group(process)
            raise EmbeddedError(f"{what} was not ready after {waited_s:.0f} s", hint=f"see {log}")
        time.sleep(0.02)
