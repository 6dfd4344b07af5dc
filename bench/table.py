"""Writes the table in docs/performance.md from the JSON under docs/benchmarks, so that no number is typed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
BEGIN: Final = "<!-- made by: python -m bench table -->"
END: Final = "<!-- end -->"


def main(arguments: list[str]) -> int:
    del arguments
    results = [json.loads(path.read_text()) for path in sorted((DOCS / "benchmarks").glob("*.json"))]
    page = DOCS / "performance.md"
    text = page.read_text()
    made = rendered(results)
    page.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: made, text, flags=re.DOTALL))
    print(made)
    return 0


def rendered(results: list[dict[str, Any]]) -> str:
    """The table of these results, with the marks it stands between on the page."""
    return "\n".join([BEGIN, "", *_lines(results), "", END])


def _lines(results: list[dict[str, Any]]) -> list[str]:
    machines = {json.dumps({k: v for k, v in result["machine"].items() if k != "load"}) for result in results}
    lines = [
        f"Machine: {', '.join(f'{key} {value}' for key, value in json.loads(machine).items())}." for machine in sorted(machines)
    ]
    lines += ["", "| benchmark | figure | ours | limit or peer | ratio | bar | |", "|---|---|---|---|---|---|---|"]
    for result in results:
        for name, figure in result["figures"].items():
            bar = figure.get("bar")
            verdict = "" if bar is None else ("met" if figure["ratio"] >= bar else "**missed**")
            value, limit = f"{figure['value']:,} {figure['unit']}", f"{figure['limit']:,}"
            lines.append(
                f"| {result['name']} | {name} | {value} | {limit} | {figure['ratio']} | {bar if bar is not None else ''} | {verdict} |"
            )
    return lines
