"""deploy/runbook.md has a page for every stop state, and says of each what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc.errors import StopState
from cdc.state import rebuilds, reloads

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "deploy/runbook.md").read_text(encoding="utf-8")
PAGES = dict(re.findall(r"^## ([A-Z_]+)\n+(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
LISTED = dict(re.findall(r"^\| \[([A-Z_]+)\]\(#([a-z_]+)\)", RUNBOOK, re.MULTILINE))
CODE = "\n".join(
    path.read_text(encoding="utf-8") for room in ("cdc", "sinks", "snapshots") for path in sorted((ROOT / room).rglob("*.py"))
)


@pytest.mark.parametrize("state", StopState)
def test_every_stop_state_has_a_page(state: StopState) -> None:
    assert state in PAGES, f"write a section `## {state}` into deploy/runbook.md"
    assert f"cdc resume {state}" in PAGES[state], (
        f"the section {state} of deploy/runbook.md has to name the command that ends the state"
    )
    assert LISTED.get(state) == state.lower(), f"add a line [{state}](#{state.lower()}) to the table of deploy/runbook.md"


def test_every_page_is_of_a_stop_state() -> None:
    states = {str(state) for state in StopState}
    assert sorted({*PAGES, *LISTED} - states) == [], "sections or lines of deploy/runbook.md without a state in cdc/errors.py"


@pytest.mark.parametrize("state", StopState)
def test_every_stop_state_is_raised(state: StopState) -> None:
    assert f"StopState.{state}" in CODE, (
        f"nothing stops with {state}: raise a Stopped that carries it, or remove it from cdc/errors.py"
    )


@pytest.mark.parametrize("state", StopState)
def test_the_page_offers_to_begin_again_where_that_is_a_way_out(state: StopState) -> None:
    offered = re.search(rf"cdc resume {state}\S* --(rebuild|skip)", PAGES.get(state, "")) is not None
    taken = state in reloads.WHOLE | reloads.TABLES | rebuilds.STATES
    assert offered == taken, (
        f"`cdc resume {state} --rebuild` is {'offered' if offered else 'not mentioned'} in deploy/runbook.md, and the command "
        f"{'carries it out' if taken else 'refuses it'}: cdc/state/reloads.py (capture) and rebuilds.py (stores) say for which states it does"
    )
