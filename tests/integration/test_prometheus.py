"""The alert rules as Prometheus itself reads them. Needs ``promtool`` (``make promtool`` builds it where Go is installed)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "headwater.rules.yml"), ("test", "rules", "headwater.test.yml")], ids=" ".join
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
