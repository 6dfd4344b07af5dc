"""The demo's tour, once it has run for a while: the search index is built a second time beside the live one, under traffic, and takes its place."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

AFTER_S: Final = 180.0
"""The first minutes are for the stores' own first load."""
STORE: Final = "search"
KEEP_OLD: Final = "10m"
_END_S: Final = 30.0


@dataclass(slots=True)
class Tour:
    """One thread only. ``begin``: starts ``cdc`` with these arguments; the process writes its output to a pipe. ``say``: prints a line."""

    begin: Callable[..., subprocess.Popen[str]]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)
    """Since when the demo runs."""
    running: subprocess.Popen[str] | None = field(default=None, init=False)
    _over: bool = field(default=False, init=False)

    def look(self, told: dict[str, Any] | None) -> None:
        """Takes the daemon's status. To be called about once a second."""
        if self._since is None:
            self._since = self.clock()
        if self._over:
            return
        if self.running is None:
            if told is not None and self.clock() - self._since >= AFTER_S and _is_settled(told):
                self.say(
                    f"tour: cdc bootstrap {STORE} builds the search index again from the log, beside the live one and under traffic"
                )
                self.running = self.begin("bootstrap", STORE, "--keep-old", KEEP_OLD, "--json")
        elif self.running.poll() is not None:
            self._tell(*self.running.communicate())

    def end(self) -> None:
        """Ends what is under way: the live index stays as it is."""
        self._over = True
        if self.running is not None and self.running.poll() is None:
            self.running.terminate()
            try:
                self.running.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.running.kill()
                self.running.wait()

    def _tell(self, out: str, errors: str) -> None:
        self._over = True
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            why = (errors.strip().splitlines() or ["no word"])[-1].removeprefix("error: ")
            self.say(f"tour: the search index was not built again: {why}")
            return
        done = json.loads(lines[-1])
        if not done["swapped"]:
            self.say(f"tour: generation {done['generation']} differs from the log, so readers go on with the one that they had")
            return
        self.say(
            f"tour: {done['rows']:,} rows were built, compared with the log and swapped in {done['seconds']:.0f} s; searches see generation {done['generation']} now"
        )
        self.say(
            f"tour: generation {done['former']} is kept and fed for {KEEP_OLD}: cdc rollback {STORE} would put it back, cdc generations {STORE} lists both"
        )


def _is_settled(told: dict[str, Any]) -> bool:
    """Every store has been loaded, and follows. Under traffic none is ever up to date for long."""
    capture, followers = told["capture"], told["followers"]
    follows = all(one["state"] == "following" and one["catch_up"] is None for one in followers)
    return bool(capture and followers and capture["state"] == "streaming" and follows)
