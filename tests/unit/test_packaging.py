"""What is installed is what stands in the folders."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("cdc", "sinks", "snapshots")


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(ROOT).parts) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")}
    assert sorted(listed) == sorted(there)


def test_a_wheel_holds_the_code_and_what_it_reads(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = subprocess.run(
        [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps",
            "--no-build-isolation", "--wheel-dir", str(tmp_path), ".",
        ],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    needed = {
        str(path.relative_to(source))
        for room in ROOMS
        for path in source.joinpath(room).rglob("*")
        if path.is_file() and "build" not in path.parts
    }
    assert {"cdc/http/page/index.html", "cdc/embedded/opensearch.lock", "cdc/embedded/spark.lock"} <= needed
    assert not needed - held
