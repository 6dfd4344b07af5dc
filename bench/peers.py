"""The peers that benchmarks are measured against: their packages, as requirements/bench.lock pins them, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cdc.embedded.cache import cache_folder, locked

ROOT: Final = Path(__file__).parent.parent
LOCK: Final = ROOT / "requirements" / "bench.lock"


def install(packages: Sequence[str]) -> Path:
    """The folder that holds the locked wheels; pip fills it the first time. They never come into the virtual environment."""
    requirements = _requirements(packages)
    names = "-".join(line.split()[0].replace("==", "-") for line in requirements.split("\n\n") if line)
    home = cache_folder() / "bench" / f"{names}-py{sys.version_info.major}{sys.version_info.minor}"
    with locked("bench"):
        if not home.is_dir():
            print(f"installing {', '.join(packages)} …", file=sys.stderr, flush=True)
            aside = home.with_name(f".{home.name}.{os.getpid()}")
            shutil.rmtree(aside, ignore_errors=True)
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write(requirements)
                file.flush()
                options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--target", str(aside)]
                subprocess.run([sys.executable, "-m", "pip", "install", *options, "-r", file.name], check=True)
            aside.rename(home)
    return home


def environment(packages: Path) -> Mapping[str, str]:
    """For a child process that imports this project and these packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(packages)))}


def _requirements(packages: Sequence[str]) -> str:
    """The lock's entries of these packages."""
    kept: list[str] = []
    inside = False
    for line in LOCK.read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            inside = line.split("==")[0] in packages
            kept += [""] if inside and kept else []
        if inside and not line.strip().startswith("#"):
            kept.append(line)
    return "\n".join(kept) + "\n"
