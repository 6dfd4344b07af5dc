"""The warehouse's staged files: each owner has its own, nobody takes a living one's away, and those of the dead go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from sinks.warehouse.staging import Scratch, Staging

BATCH = pa.RecordBatch.from_pydict({"n": list(range(100))})
OTHER = """
import sys
from pathlib import Path
from sinks.warehouse.staging import Scratch
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
