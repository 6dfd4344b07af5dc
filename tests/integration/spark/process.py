"""`cdc run --only 'follow:*'` as a real process over a real ``cdc.toml``, seen through its log and its status files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from cdc.demo.configuration import Value, toml
from cdc.state.status import FollowerStatus, read_follower

DEADLINE_S: Final = 150.0


class FollowersProcess:
    """Ends with the context. Its log goes to ``folder/followers.log``; ``folder/log`` is the log that it reads."""

    def __init__(self, folder: Path, stores: Mapping[str, Mapping[str, Value]], *, only: str = "follow:*") -> None:
        self.folder = folder
        self.config = folder / "cdc.toml"
        self.configure(stores)
        self._only = only

    def configure(self, stores: Mapping[str, Mapping[str, Value]], **more: Mapping[str, Value]) -> None:
        """Writes the file in one step, as editors do."""
        sections: dict[str, Mapping[str, Value]] = {
            "": {"run_dir": "run"},
            "source": {"dsn": "host=127.0.0.1 port=1 dbname=nowhere"},
            "log": {"dir": "log"},
            **more,
            **{f"stores.{name}": options for name, options in stores.items()},
        }
        self.write(toml(sections))

    def write(self, text: str) -> None:
        aside = self.config.with_suffix(".new")
        aside.write_text(text)
        aside.replace(self.config)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "cdc", "--config", str(self.config), "run", "--only", self._only]
        with (self.folder / "followers.log").open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, stdin=subprocess.DEVNULL, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.process.terminate()
            self.process.wait(60)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def lines(self, part: str) -> list[dict[str, Any]]:
        """What the log says of a part, as JSON objects."""
        said = (self.folder / "followers.log").read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in said if line.startswith("{") and line.endswith("\n")]
        return [line for line in found if line.get("part") == part]

    def words(self, part: str) -> list[str]:
        return [line["event"] for line in self.lines(part)]

    def status(self, store: str) -> FollowerStatus:
        return read_follower(self.folder / "run", store) or FollowerStatus(store)

    def until(self, done: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            said = (self.folder / "followers.log").read_text()
            assert self.process.poll() is None, f"it ended\n{said}"
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{said}"
            time.sleep(0.05)
