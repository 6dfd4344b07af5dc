"""The folder of one session: removed by itself, and where its process was killed by the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cdc.spark.sessionfolder import SessionFolder

KILLED = """
import os, sys
from pathlib import Path
from cdc.spark.sessionfolder import SessionFolder

made = SessionFolder(Path(sys.argv[1]))
(made.path / "blockmgr").mkdir()
(made.path / "blockmgr" / "block").write_text("x")
print(made.path.name, flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_leaves_goes_with_the_next_session_and_no_sooner(tmp_path: Path) -> None:
    parent = tmp_path / "spark"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        theirs = parent / process.stdout.readline().strip()
        ours = SessionFolder(parent)
        assert sorted(parent.iterdir()) == sorted((ours.path, theirs)), "it is used by a process that lives"
        process.communicate("")
    assert theirs.is_dir()
    next_one = SessionFolder(parent)
    assert sorted(parent.iterdir()) == sorted((ours.path, next_one.path))
    for one in (ours, next_one, next_one):
        one.remove()
    assert list(parent.iterdir()) == []


def test_without_a_place_it_is_a_temporary_folder() -> None:
    made = SessionFolder(None)
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.remove()
    assert not made.path.exists()
