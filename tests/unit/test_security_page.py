"""docs/security.md names the test that shows each claim: every one of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| threat")]


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 40
    assert PAGE.count("tests/") == len(re.findall(r"`tests/[\w/]+\.py(?:::\w+)?`", PAGE)), "one is written in another way"


@pytest.mark.parametrize(("file", "function"), NAMED)
def test_a_test_that_the_page_names_exists(file: str, function: str) -> None:
    path = ROOT / file
    assert path.is_file()
    if function:
        tree = ast.parse(path.read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_a_row_names_the_test_that_shows_it(row: str) -> None:
    _, threat, happens, shown, _ = re.split(r"(?<!\\)\|", row)
    assert threat.strip()
    assert happens.strip()
    assert re.search(r"`tests/[\w/]+\.py::\w+`", shown)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE))))
def test_a_link_leads_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target).exists()
