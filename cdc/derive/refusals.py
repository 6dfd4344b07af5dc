"""A view that cannot be kept up as it is defined, in words: they name the view once, and both ways on. And the record of that while another definition is live."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeGuard

from cdc.errors import HeadwaterError, Stopped, StopState
from cdc.state import status, stops

_GOES_ON: Final = re.compile(r"; generation \d+, which is live, goes on$")


def refused(name: str, refusal: HeadwaterError) -> Stopped:
    """A view that is defined otherwise is tried again by itself."""
    ways = f"{refusal.hint}; " if refusal.hint else ""
    return Stopped(StopState.VIEW_REFUSED, _naming(name, str(refusal)), hint=f"{ways}{ways_on(name)}")


def _naming(name: str, message: str) -> str:
    named = f"view {name}"
    return message if message.startswith(named) else f"{named}: {message}"


def ways_on(name: str) -> str:
    """The ways on, for an operator."""
    return f"change [views.{name}] in cdc.toml, or cdc resume VIEW_REFUSED:{status.view_part(name)}"


def is_refusal(error: BaseException) -> TypeGuard[Stopped]:
    """It says of the definition that it cannot be kept up, and of nothing else."""
    return isinstance(error, Stopped) and error.state is StopState.VIEW_REFUSED


class NextRefusal:
    """That a view's next generation is refused while another one is live: a stop state of its building alone, which lasts until an operator resumes it, or the
    definition is another."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self._run_dir, self._name, self._part = run_dir, name, status.next_part(name)

    def held(self) -> stops.Stop | None:
        """None: there is none, or it was resumed."""
        return stops.held_by(self._run_dir, self._part)

    def refusal(self) -> Stopped | None:
        """The same as an error, which says nothing of what is live."""
        stop = self.held()
        return None if stop is None else Stopped(stop.state, _GOES_ON.sub("", stop.message), hint=stop.hint)

    def record(self, stopped: Stopped, live: int) -> stops.Stop:
        """Durable on return. ``live``: the number of the generation that goes on meanwhile."""
        why = _naming(self._name, str(stopped).removeprefix(f"{stopped.state}: "))
        message = f"{why}; generation {live}, which is live, goes on"
        return stops.record(self._run_dir, self._part, Stopped(stopped.state, message, hint=stopped.hint))

    def clear(self) -> None:
        """It is over."""
        stops.clear_part(self._run_dir, self._part)
