"""A view's process whose rows Spark's workers find, beside a log that the test writes and an inbox that it serves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from cdc.demo.configuration import Value, toml
from cdc.embedded.processes import kill_group, spawn
from cdc.model.batch import Op
from tests.sparkcluster import command as command_of
from tests.unit.derive.bed import CUSTOMERS, ORDERS, Bed, bed_in
from tests.unit.inbox.parts import serve_all

DEADLINE_S: Final = 240.0
Sections = Mapping[str, Mapping[str, Value]]
JOINED: Final[Sections] = {
    "views.joined": {
        "sql": "select o.id, c.name, o.note from orders o join customers c on c.id = o.customer",
        "key": ["id"],
        "workers_from_rows": 1,
    }
}


@contextmanager
def written_bed(folder: Path, seed: int, rows: int = 3_000) -> Iterator[Bed]:
    """A log with everything that happens to rows."""
    with bed_in(folder) as found:
        dice = Random(seed)
        for _ in range(30):
            found.traffic(dice)
        found.commit((CUSTOMERS, Op.UPDATE, [{"id": n, "name": f"n{n}"} for n in range(6)]))
        found.commit((ORDERS, Op.UPDATE, [{"id": n, "customer": n % 6, "note": f"note {n}"} for n in range(rows)]))
        yield found


def configured(folder: Path, more: Sections) -> Path:
    path = folder / "cdc.toml"
    path.touch(0o600)
    sections: dict[str, Mapping[str, Value]] = {
        "": {"run_dir": str(folder / "run")},
        "source": {"dsn": "postgresql://nobody@127.0.0.1:9/x"},
        "log": {"dir": str(folder / "log")},
        **more,
    }
    path.write_text(toml(sections))
    return path


class ViewProcess:
    """`cdc run --only view:joined`, one process after the other. ``met``: every process that any of them had started when it was looked at."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self._folder = bed, bed.folder
        self._process: subprocess.Popen[bytes] | None = None
        self.met: set[psutil.Process] = set()

    @contextmanager
    def running(self) -> Iterator[ViewProcess]:
        command = [sys.executable, "-m", "cdc", "--config", str(self._folder / "cdc.toml"), "run", "--only", "view:joined"]
        self._process = spawn(command, log=self._folder / "cdc.log")
        try:
            yield self
        finally:
            kill_group(self._process)

    @property
    def own(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def started(self, command: str) -> list[psutil.Process]:
        """Its processes with this in their command line."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for one in self.own.children(recursive=True):
                self.met.add(one)
                if command in command_of(one):
                    found.append(one)
        return found

    def until(self, what: Callable[[], Any], *, ending: bool = False) -> Any:
        """Serves the inbox until it is so. ``ending``: the process may end."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := what()):
            serve_all(self.bed.inbox)
            said = (self._folder / "cdc.log").read_text(errors="replace")[-4000:]
            assert ending or not self.ended, said
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
        return found

    def shows_all(self) -> bool:
        shown = self.bed.shown() if "views.joined" in {topic.name for topic in self.bed.reader.topics()} else {}
        return len(shown) >= len(self.bed.of_tables())

    def drain(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def left(self) -> list[str]:
        """What is still there of all that it had: processes, and files beside those that it keeps."""
        gone, alive = psutil.wait_procs(self.met, timeout=30)
        assert len(gone) + len(alive) == len(self.met)
        places = [*(self._folder / "run" / "spark").glob("*"), *(self._folder / "log" / "views" / "joined").glob("g*/scratch")]
        return [*map(str, alive), *(str(path.relative_to(self._folder)) for place in places for path in place.rglob("*"))]
