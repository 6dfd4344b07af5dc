"""Work that goes on beside capture, in threads of low priority: how they end, and what they say when something goes wrong. Capture goes on whatever it is."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

from cdc.diskspace import FULL, GOES_ON, described
from cdc.errors import HeadwaterError

NICE: Final = 15
"""The priority of a thread that has time: capture and the server that sends have not."""

JOIN_S: Final = 15.0
"""So long all of them together may take to end. One that waits for a store that hangs, such as the log's tier, is left behind: it ends with the process, and
what it was about is done again after the next start."""


class Interrupted(Exception):
    """The process is to end. What has been done stands."""


def lower_priority(nice: int = NICE) -> None:
    """Lowers the priority of the calling thread alone: on Linux each thread has its own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it; that only costs speed
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


class BackgroundPart(ABC):
    """A part of capture's process that has such a thread. Another thread starts and joins it."""

    def __init__(self, name: str, *, nice: int = NICE) -> None:
        """``name``: the thread's; ``nice``: its priority, 0 for that of the process."""
        self._problem: str | None = None
        self._nice = nice
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, within_s: float = JOIN_S) -> None:
        """After whatever ends the thread was set. Returns when it has ended or was never started, or after so long without it: then it ends with the
        process, and nothing of what it was about is recorded."""
        if self._thread.ident is not None:
            self._thread.join(within_s)

    def alarm(self) -> str | None:
        """Why its work does not get done, with what helps; else None."""
        return self._problem

    def _work(self) -> None:
        if self._nice:
            lower_priority(self._nice)
        with contextlib.suppress(Interrupted):
            self._run()

    @abstractmethod
    def _run(self) -> None:
        """All that the thread does. Keeps ``_problem`` up to date. May raise Interrupted."""


def join(parts: Iterable[BackgroundPart], within_s: float = JOIN_S) -> None:
    """Joins all of them, within so long together."""
    deadline = time.monotonic() + within_s
    for part in parts:
        part.join(max(0.0, deadline - time.monotonic()))


class Notes:
    """Each problem goes into the process's log once."""

    def __init__(self, stands_still: str, failed: str, log: Any) -> None:
        """``stands_still``: says what does not happen meanwhile, as a sentence's beginning. ``failed``: the event of an error that nobody foresaw. ``log``:
        structlog's."""
        self._stands_still = stands_still
        self._failed = failed
        self._log = log
        self._noted: set[str] = set()

    @contextlib.contextmanager
    def noting(self, problems: list[str]) -> Iterator[None]:
        """Adds what went wrong inside, with what helps. Lets nothing out but Interrupted."""
        try:
            yield
        except Interrupted:
            raise
        except HeadwaterError as error:
            self._note(problems, error.line())
        except OSError as error:
            helps = GOES_ON if error.errno in FULL else "let the account of cdc run write there; it then goes on by itself"
            self._note(problems, f"{described(error)} → {helps}")
        except Exception as error:
            self._log.exception(self._failed, problem=type(error).__name__)
            self._note(problems, f"unexpected {type(error).__name__} → restart cdc run, and report it")

    def _note(self, problems: list[str], problem: str) -> None:
        line = f"{self._stands_still}: {problem}"
        if line not in self._noted:
            self._noted.add(line)
            self._log.warning(line)
        problems.append(line)
