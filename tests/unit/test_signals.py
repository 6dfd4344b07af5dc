"""SIGTERM reaches a process whatever its main thread is in the middle of."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import Final

import pytest

LIMIT_S: Final = 60
"""On a machine with much else to do."""

WAITING = """
import os, threading
from cdc.daemon.signals import stop_on_signals

for _ in range(50):
    with stop_on_signals() as stop:
        threading.Timer(0.005, os.kill, (os.getpid(), {number})).start()
        while not stop.wait(0):  # in the middle of the event's own lock, mostly
            pass
"""

DRAWN_OUT = """
import threading
from cdc.daemon.signals import stop_on_signals

with stop_on_signals(drain_s=0.2):
    print("ready", flush=True)
    threading.Event().wait()
"""

STUCK = """
import ctypes
from cdc.daemon.signals import stop_on_signals

libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with stop_on_signals(drain_s=0.2):
    print("ready", flush=True)
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)  # the second never returns, not for a signal either
"""

ENDING = """
import threading
from cdc.daemon.signals import stop_on_signals

with stop_on_signals(drain_s=0.2) as stop:
    stop.set()  # as capture does when it ends by itself
    print("ready", flush=True)
    threading.Event().wait()
"""

EARLY = """
import os, signal, sys
from cdc.daemon.signals import stop_on_signals

handle = signal.signal

def handled(number, handler):
    before = handle(number, handler)
    if number == {number}:
        signal.signal = handle
        os.kill(os.getpid(), number)
    return before

signal.signal = handled
with stop_on_signals() as stop:
    sys.exit(0 if stop.wait(20) else 1)
"""

PATIENT = """
import os, sys
from cdc.daemon.signals import stop_on_signals

with stop_on_signals() as stop:
    os.write(1, b"ready")
    stop.wait()
"""

RESTORED = """
import signal
from cdc.daemon.signals import stop_on_signals

def current():
    return *map(signal.getsignal, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)), signal.set_wakeup_fd(-1)

before = current()
with stop_on_signals():
    assert signal.getsignal(signal.SIGTERM) != before[0]
assert current() == before
"""


def started(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_amid_a_wait_for_it(number: signal.Signals) -> None:
    process = started(WAITING.format(number=int(number)))
    try:
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_the_process_begins(number: signal.Signals) -> None:
    process = started(EARLY.format(number=int(number)))
    try:
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("script", [DRAWN_OUT, STUCK, ENDING])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_does_not_drain_ends_itself(script: str, number: signal.Signals) -> None:
    process = started(script)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
    finally:
        process.kill()
        process.communicate()


def test_a_second_ctrl_c_ends_the_process_at_once() -> None:
    process = started(DRAWN_OUT.replace("0.2", "600"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:  # two signals of one number may become one
            process.send_signal(signal.SIGINT)
        assert process.returncode == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def test_sighup_ends_no_service() -> None:
    """Daemons take it for "read your configuration again", which ours does by itself; and systemd would not start it again."""
    process = subprocess.Popen([sys.executable, "-c", PATIENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_terminal_that_is_closed_ends_what_was_started_in_it() -> None:
    ours, terminal = pty.openpty()
    # nohup, under which the tests may run, has it ignored.
    heard = [sys.executable, "-c", f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n{PATIENT}"]
    process = subprocess.Popen(heard, stdout=terminal, stderr=terminal)
    try:
        assert os.read(ours, 5) == b"ready"
        process.send_signal(signal.SIGHUP)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(ours)


def test_what_was_there_before_is_there_again() -> None:
    assert started(RESTORED).wait(LIMIT_S) == 0
