"""Work of the product that waits in the middle of a call, taken a step at a time.

It has a thread of its own; that, or whoever takes its steps, runs at any moment, never both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Semaphore, Thread

from tests.sim.stores import Died


class Strand:
    """``work`` is given nothing; it, and what it calls, says with ``pause`` where others may take steps."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._goes_on, self._rests = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._killed = False
        self._over = False
        self._error: BaseException | None = None

    def step(self) -> None:
        """Returns at the next pause, or when the work is over; raises what the work ended by."""
        if self._thread is None:
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._goes_on.release()
        self._rests.acquire()
        if self._over:
            self._thread.join()
            if self._error is not None:
                raise self._error

    def pause(self) -> None:
        """Called by the work. Raises Died where it is killed here."""
        if self._killed:
            return
        self._rests.release()
        self._goes_on.acquire()
        if self._killed:
            raise Died

    def kill(self) -> None:
        """The work ends where it is."""
        self._killed = True
        if self._thread is not None and not self._over:
            with suppress(Died):
                self.step()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # it is raised where the step was taken
            self._error = error
        self._over = True
        self._rests.release()
