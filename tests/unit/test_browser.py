"""Where a browser is looked for, and what becomes of the page's tests where there is none; CI asks for one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.test_page import found_browser

ROOT = Path(__file__).parents[2]
SYSTEM = Path("/etc/os-release")
DEBIAN = SYSTEM.exists() and "ID=debian" in SYSTEM.read_text().splitlines()


@pytest.mark.parametrize(("asked", "outcome"), [(None, pytest.skip.Exception), ("required", pytest.fail.Exception)])
def test_where_there_is_none(
    asked: str | None, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HEADWATER_BROWSER", raising=False)
    if asked is not None:
        monkeypatch.setenv("HEADWATER_BROWSER", asked)
    with pytest.raises(outcome, match="no browser: neither"):
        found_browser()


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("user", "there", "installs", "required", "said"),
    [
        (0, True, True, True, []),
        (0, False, True, True, []),
        (0, False, False, False, ["could not be installed", "are skipped"]),
        (1000, False, True, False, ["are skipped"]),
    ],
)
def test_ci_asks_for_one_and_goes_on_without(
    user: int, there: bool, installs: bool, required: bool, said: list[str], tmp_path: Path
) -> None:
    if user == 0 and not there and not DEBIAN:
        pytest.skip("it is installed on Debian only")
    for name in ("bash", "dirname", "timeout", "env", "cp", "grep"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    program(tmp_path, "id", f"echo {user}")
    program(tmp_path, "make", 'echo "made $1, browser ${HEADWATER_BROWSER:-none}"')
    program(tmp_path, "browser", "")
    install = f'[ "$1" != install ] || cp "{tmp_path}/browser" "{tmp_path}/chromium"' if installs else "exit 100"
    program(tmp_path, "apt-get", install)
    if there:
        program(tmp_path, "chromium", "")
    done = subprocess.run(
        [tmp_path / "bash", ROOT / ".ci/run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"made test, browser {'required' if required else 'none'}\n"
    lines = done.stderr.splitlines()
    assert len(lines) == len(said), lines
    assert all(words in line for words, line in zip(said, lines, strict=True))
