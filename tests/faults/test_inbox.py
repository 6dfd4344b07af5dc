"""Whoever hands over, or takes, ends at any step of the inbox: each row is in the log exactly once
when all is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cdc.crashpoint import KILLED, VARIABLE, CrashKind
from cdc.embedded.postgres import Postgres
from cdc.log.home import open_reader, open_writer
from cdc.model.position import Lsn, Position
from tests import counters
from tests.faults import points
from tests.faults.lab import DEADLINE_S, lab
from tests.faults.nursery import Nursery

TOPIC = "derived.delays"
ROWS = range(20)


def begin(folder: Path, crash: str = "") -> subprocess.Popen[bytes]:
    """`cdc log append` as a process of its own, which also serves the inbox where nobody writes to
    the log.
    """
    command = [sys.executable, "-m", "cdc", "--config", str(folder / "cdc.toml"), "log", "append", TOPIC, str(folder / "rows")]
    environment = {**os.environ, VARIABLE: crash} if crash else {**os.environ}
    return subprocess.Popen([*command, "--key", "id", "--timeout", "200"], env=environment, stdout=subprocess.DEVNULL)


def append(folder: Path, crash: str = "") -> int:
    """The same, until it has ended: its exit code."""
    return begin(folder, crash).wait(240)


def prepare(folder: Path) -> None:
    """A configuration, and a file of rows."""
    (folder / "cdc.toml").write_text('run_dir = "run"\n[source]\ndsn = "postgresql://nobody"\n[log]\ndir = "log"\n')
    (folder / "rows").write_text("".join(json.dumps({"id": number}) + "\n" for number in ROWS))


def logged(folder: Path) -> list[int]:
    with closing(open_reader(folder / "log")) as log:
        return [row["id"] for batch in log.read(TOPIC, Position(0), log.head().position) for row in batch.to_pylist()]


@pytest.mark.faults
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.ERROR])
@pytest.mark.parametrize("point", points.of("inbox"))
def test_an_append(point: str, kind: CrashKind, tmp_path: Path) -> None:
    with closing(open_writer(tmp_path / "log", segment_bytes=1 << 20)) as writer:
        writer.commit(Lsn(7), 0)
    prepare(tmp_path)
    if point == "inbox.refused.written":
        (tmp_path / "log/inbox").mkdir(mode=0o700)
        (tmp_path / "log/inbox/not a group").touch()
    mark = tmp_path / "reached"
    # The first file opens the producer, the second is the group: either may be the one.
    nth = 2 if kind is CrashKind.KILL and "refused" not in point else 1
    code = append(tmp_path, f"{point}={kind}:{nth}@{mark}")
    assert mark.exists(), f"{point} was not reached"
    # What becomes of a file that was refused anyway is no error of the append.
    assert code == (KILLED if kind is CrashKind.KILL else 0 if "refused" in point else 1)
    assert append(tmp_path) == 0
    assert logged(tmp_path) == list(ROWS)
    assert [path.name for path in (tmp_path / "log/inbox").glob("*.arrow")] == []
    counters.add("crash points", str(kind))


@pytest.mark.faults
@pytest.mark.parametrize("point", [point for point in points.of("inbox") if point.startswith("inbox.take.")])
def test_capture_is_killed_while_it_takes_a_group(
    point: str, fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path
) -> None:
    """Whoever appends waits meanwhile, and hears from the next process that all is in the log."""
    with lab(fault_server, nursery, server_folder / f"capture-{point}", template=filled_database) as one:
        first = one.start(crash=f"{point}=kill:2")
        one.until(lambda: one.streams, "capture to stream")
        prepare(one.folder)
        appending = begin(one.folder)
        assert first.wait(DEADLINE_S) == KILLED
        # From then on the log itself tells whoever waits for it that all is there.
        assert appending.poll() in ({None, 0} if point in {"inbox.take.durable", "inbox.take.removed"} else {None})
        one.connection.execute("insert into events values (-1, 'behind the fault', null)")
        one.start()
        assert appending.wait(DEADLINE_S) == 0
        assert logged(one.folder) == list(ROWS)
        heard = one.heard_of(one.wal_end())
        one.until(heard, "the source's changes")
    counters.add("crash points", "kill")
