"""ARCHITECTURE.md draws the house as it is, and CONTRIBUTING.md and docs/extending.md send nobody to a place that has moved."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
ARCHITECTURE: Final = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CONTRIBUTING: Final = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXTENDING: Final = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


def rows(page: str, heading: str) -> list[tuple[str, ...]]:
    """The cells of a section's table, without its head."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def named(text: str) -> list[str]:
    """What stands between backquotes."""
    return re.findall(r"`([^`\n]+)`", text)


def files(text: str) -> list[str]:
    """The names of folders and files."""
    return [name for name in named(text) if re.fullmatch(r"[\w./-]+/|[\w./-]+\.(py|md|toml|sql)", name) and name != "cdc.toml"]


ROOMS: Final = rows(ARCHITECTURE, "The rooms")
PLACES: Final = rows(CONTRIBUTING, "Where things go")
STEPS: Final = [(heading, text) for heading, _, text in (part.partition("\n") for part in EXTENDING.split("\n## ")[1:])]
"""The sections of docs/extending.md by their headings."""
TESTS_OF: Final = rows(CONTRIBUTING, "Which tests concern a room")


def test_every_room_is_drawn_once() -> None:
    drawn = [name.rstrip("/") for cells in ROOMS for name in named(cells[0])]
    there = [f"cdc/{path.name}" for path in (ROOT / "cdc").iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"]
    assert len(drawn) == len(set(drawn)), "a room stands in the table twice"
    differ = set(drawn) ^ ({*there, "sinks", "snapshots"} - {"cdc/__init__.py"})
    assert sorted(differ) == [], "these stand in the table of ARCHITECTURE.md or in the folders, and not in both"


@pytest.mark.parametrize("cells", ROOMS, ids=lambda cells: cells[0].split("`")[1])
def test_what_a_room_is_said_to_hold_is_in_it(cells: tuple[str, ...]) -> None:
    rooms = [ROOT / name for name in named(cells[0])]
    for name in files(cells[1]):
        found = (ROOT / name).exists() or any((room / name).exists() for room in rooms)
        assert found, f"ARCHITECTURE.md says that {cells[0]} holds {name}"


def test_imports_point_down_the_table() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [re.split(r" [:|] ", layer) for layer in contracts[0]["layers"]]
    height = {room.replace(".", "/"): number for number, layer in enumerate(layers) for room in layer}
    drawn = [name.rstrip("/").removesuffix(".py") for cells in ROOMS for name in named(cells[0])]
    heights = [height[name] for name in drawn]
    assert heights == sorted(heights), "the rooms of ARCHITECTURE.md stand in another order than their layers in pyproject.toml"


def test_only_the_logs_room_may_know_its_home() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    [home] = [contract for contract in contracts if contract.get("forbidden_modules") == ["cdc.log.embedded"]]
    rooms = {f"cdc.{path.parent.name}" for path in (ROOT / "cdc").glob("*/__init__.py")}
    assert set(home["source_modules"]) == {*rooms, "sinks", "snapshots"} - {"cdc.log"}, (
        "pyproject.toml: a room is not listed, or is gone"
    )


def test_names_of_code_exist() -> None:
    for name in named(ARCHITECTURE):
        if not re.fullmatch(r"(?:cdc|sinks|snapshots)(?:\.\w+)+", name) or name in ("cdc.connect", "cdc.toml"):
            continue
        module, _, member = name.rpartition(".")
        held = import_module(module)
        assert hasattr(held, member) or import_module(name), name


@pytest.mark.parametrize("cells", PLACES, ids=lambda cells: cells[0])
def test_what_a_newcomer_is_sent_to_exists(cells: tuple[str, ...]) -> None:
    beside = {(ROOT / name).parent for name in files(cells[1]) if "/" in name} | {ROOT}
    for name in files(cells[1]):
        if "NAME" not in name:
            assert any((folder / name).exists() for folder in beside), (
                f"CONTRIBUTING.md sends whoever wants to {cells[0]} to {name}"
            )


@pytest.mark.parametrize(("heading", "text"), STEPS, ids=[heading for heading, _ in STEPS])
def test_a_step_leads_to_files_that_exist(heading: str, text: str) -> None:
    gone = [name for name in files(text) if "NAME" not in name and not (ROOT / name).exists()]
    assert gone == [], f"docs/extending.md, {heading}"


@pytest.mark.parametrize("cells", TESTS_OF, ids=lambda cells: cells[0])
def test_the_tests_that_a_room_is_said_to_have_exist(cells: tuple[str, ...]) -> None:
    gone = [name for cell in cells for name in named(cell) if not (ROOT / name).exists()]
    assert gone == [], "CONTRIBUTING.md, Which tests concern a room"


def test_what_a_newcomer_is_told_to_make_can_be_made() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = set(re.findall(r"(?:^|`)make ([a-z]+)", CONTRIBUTING + EXTENDING, re.MULTILINE))
    assert asked <= targets
    assert len(asked) > 5
