"""Writes the generated parts of docs/reliability.md: the table of cases, and the counters of the last whole run.

``python -m tests.cases.table`` (``make reliability``); a unit test fails while the file is stale. The counters come from
docs/reliability.json, which a run leaves there when HEADWATER_COUNTERS_FILE names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cases.case import Case
from tests.cases.elsewhere import ELSEWHERE, NOT_BUILT
from tests.cases.entries import ALONE, LEAVES, REFUSALS, STOPS, TOGETHER

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reliability.md"
COUNTERS: Final = ROOT / "docs" / "reliability.json"


def cases() -> str:
    """Every case, by line of the contract."""
    everything = sorted((*TOGETHER, *ALONE, *REFUSALS, *LEAVES, *STOPS), key=_order)
    runs = sum(len(case.versions) for case in everything)
    waiting = [case for case in everything if case.wrong]
    return "\n".join(
        [
            f"{len(everything)} cases, {runs} with each server version counted; {len(waiting)} of them are known not to hold yet.",
            "",
            "| case | what holds | Postgres | |",
            "|---|---|---|---|",
            *(_row(case) for case in everything),
            "",
            "Elsewhere:",
            "",
            "| lines | what holds | tests |",
            "|---|---|---|",
            *(f"| {lines} | {what} | `{where}` |" for lines, what, where in ELSEWHERE),
            "",
            "Without a test:",
            "",
            "| lines | why |",
            "|---|---|",
            *(f"| {lines} | {why} |" for lines, why in NOT_BUILT),
        ]
    )


def counters() -> str:
    """What the last whole run went through."""
    if not COUNTERS.exists():
        return "No run has been recorded yet."
    found = json.loads(COUNTERS.read_text(encoding="utf-8"))
    return "\n".join(["| what | counted |", "|---|---|", *_counted(found)])


def written(page: str) -> str:
    """The page with its generated parts as they should be."""
    for name, text in (("cases", cases()), ("counters", counters())):
        pattern = rf"(<!-- {name}: generated -->\n).*?(<!-- {name}: end -->)"
        page, count = re.subn(pattern, lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{PAGE} has not one place for {name}"
    return page


def _counted(groups: dict[str, dict[str, int]]) -> Iterator[str]:
    for group, names in groups.items():
        yield f"| {group} | {' · '.join(f'{name} {n:,}' for name, n in names.items())} |"


def _order(case: Case) -> tuple[int, str]:
    number = re.match(r"B(\d+)-", case.id)
    assert number is not None, case.id
    return int(number[1]), case.id


def _row(case: Case) -> str:
    verb = "left out" if case in LEAVES else "stops" if case.steps else "refused"
    what = f"{verb}: {case.title}" if case.refusal else case.title
    state = f"not yet: {case.wrong}" if case.wrong else ""
    return f"| {case.id} | {_escaped(what)} | {', '.join(map(str, case.versions))} | {_escaped(state)} |"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
