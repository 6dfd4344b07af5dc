"""`cdc doctor`: what would fail, and the command that helps."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdc.commands.invocation import invocation
from cdc.commands.output import console, line, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.source.checks import Finding

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Make the publication and the slot first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Preflight: one line for each check, with the command that helps. Exit 1 if something would fail."""
    from cdc.commands.preflight import examine

    out = console()
    findings: list[Finding] = []
    for finding in examine(invocation(context), fix=fix):
        findings.append(finding)
        if not as_json:
            _show(out, finding)
    failed = sum(finding.level == "fail" for finding in findings)
    if as_json:
        print_json({"ok": failed == 0, "findings": [asdict(finding) for finding in findings]})
    raise typer.Exit(1 if failed else 0)


def _show(out: Console, finding: Finding) -> None:
    hint = f" → {finding.hint}" if finding.hint else ""
    out.print(line(f"{finding.level:4}", _STYLES[finding.level]), end=" ")
    out.print(line(f"{finding.check}: {finding.message}{hint}"))
