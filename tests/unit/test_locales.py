"""A locale that is not UTF-8's, another time zone: files, secrets and lines are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
run_dir = "run"
[source]
dsn_file = "dsn"
[log]
dir = "log"
[stores.cache]
kind = "redis"
url = "redis://127.0.0.1:1"
"""
ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("cdc.toml", CONFIG), ("dsn", "host=127.0.0.1 port=1 dbname=ü password=pässword→😀\n")):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **ASCII, "TZ": "America/St_Johns"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=given, capture_output=True, encoding="utf-8", timeout=300, check=False
    )


@pytest.mark.parametrize("command", [("status",), ("doctor",), ("plan",), ("log", "ls"), ("run", "--help")])
def test_a_command_says_what_it_has_to_say(folder: Path, command: tuple[str, ...]) -> None:
    said = run(folder, "-m", "cdc", *command)
    assert "unexpected" not in said.stdout + said.stderr
    assert "UTF-8" not in said.stdout + said.stderr
    assert "Unicode" not in said.stdout + said.stderr
    assert said.returncode in (0, 1, 2)


def test_json_is_json(folder: Path) -> None:
    said = run(folder, "-m", "cdc", "status", "--json")
    assert json.loads(said.stdout)["source"]["address"] == "127.0.0.1:1/ü"
    assert all(" → " in problem for problem in json.loads(said.stdout)["problems"])


def test_a_secret_is_the_same(folder: Path) -> None:
    read = (
        "from pathlib import Path; from cdc.settings.file import load; from sinks import options_model; "
        "print(ascii(load(Path('cdc.toml'), options_model).source.dsn.get_secret_value()))"
    )
    said = run(folder, "-c", read)
    assert r"p\xe4ssword\u2192\U0001f600" in said.stdout, said.stderr
