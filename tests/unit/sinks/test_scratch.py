"""The warehouse's staged files: each owner has its own, nobody takes a living one's away, and those of the dead go."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from sinks.warehouse.scratch import Scratch, Staging

BATCH = pa.RecordBatch.from_pydict({"n": list(range(100))})
OTHER = """
import sys
from pathlib import Path
from sinks.warehouse.scratch import Scratch
(Scratch(Path(sys.argv[1])).folder() / "left").write_text("something")
print("ready", flush=True)
sys.stdin.read()
"""


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob("*/*") if path.name != ".lock")


def test_another_owner_of_the_same_place_takes_nothing_away(tmp_path: Path) -> None:
    home = tmp_path / "_staging" / "house"
    ours, theirs = Scratch(home), Scratch(home)
    staging = Staging(ours, limit_bytes=0)
    staging.add("public.t", BATCH)
    (written,) = home.glob("*/*.arrow")
    theirs.sweep()
    (theirs.folder() / "scan").mkdir()
    theirs.remove()
    theirs.sweep()
    assert written.exists()
    assert staging.batches("public.t") == [BATCH]
    staging.clear()
    assert not written.exists()
    ours.remove()
    assert [path.name for path in home.iterdir()] == [".lock"]
    staging.add("public.t", BATCH)  # opened again
    assert staging.batches("public.t") == [BATCH]


def test_what_a_killed_owner_left_is_removed(tmp_path: Path) -> None:
    home = tmp_path / "_staging" / "house"
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == b"ready\n"
    scratch = Scratch(home)
    scratch.sweep()
    assert files(home) == ["left"]
    other.kill()
    other.wait()
    scratch.sweep()
    assert files(home) == []
    other.stdin.close()
    other.stdout.close()


def test_a_place_without_anything_staged_stays_untouched(tmp_path: Path) -> None:
    Scratch(tmp_path / "none").sweep()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("refused", ["the file", "the lock"])
def test_what_refuses_the_folder_in_the_middle_of_its_making_does_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A full disk, or a network's file system that has no lock to give: nobody counts as living without a lock, or for ever as not to be made."""
    scratch = Scratch(tmp_path / "house")
    own = tmp_path / "house" / scratch.owner / ".lock"
    opened, locked = os.open, fcntl.flock

    def open_(path: Path, *given: int) -> int:
        if refused == "the file" and path == own:
            raise OSError(errno.ENOSPC, "no space left on device")
        return opened(path, *given)

    def flock(handle: int, how: int) -> None:
        if refused == "the lock" and own.exists() and os.fstat(handle).st_ino == own.stat().st_ino:
            raise OSError(errno.ENOLCK, "no locks available")
        locked(handle, how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        patch.setattr(fcntl, "flock", flock)
        with pytest.raises(OSError, match="no "):
            scratch.folder()
    assert not scratch.lives(scratch.owner)
    assert scratch.folder() == own.parent
    other = Scratch(tmp_path / "house")
    assert other.lives(scratch.owner)
    other.sweep()
    assert own.exists()
    scratch.remove()
