"""`cdc plan`: what a pending change will do to every store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.invocation import finite, invocation
from cdc.commands.output import console, line, print_json
from cdc.model.evolution import Kind
from cdc.terminal import counted

if TYPE_CHECKING:
    from cdc.plan.plan import Plan


def plan(
    context: typer.Context,
    ddl: Annotated[
        str | None, typer.Option(help="One DDL statement: run in a transaction that is rolled back, to see what it would do.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds that the statement may take, and hold its locks.", min=0.001, max=86_400, callback=finite)
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the source's catalog, the configuration or a DDL statement will do to every store; exit 1 if one would pause or break."""
    from cdc.plan.plan import plan_catalog, plan_ddl

    settings = invocation(context).settings()
    found = plan_catalog(settings) if ddl is None else plan_ddl(settings, ddl, timeout_ms=max(1, int(timeout * 1000)))
    if as_json:
        print_json({"ok": found.ok, **asdict(found)})
    else:
        out = console()
        for one in lines(found):
            out.print(line(one))
    raise typer.Exit(0 if found.ok else 1)


def lines(found: Plan) -> Iterator[str]:
    """One line for each change, and one below it for each store; then what the configuration means."""
    for change in found.changes:
        read = "to read" if change.kind is Kind.CREATED else "read again"
        rows = "" if change.reread_rows is None else f"; about {counted(change.reread_rows, 'row')} {read}"
        yield f"{change.what}{rows}"
        for effect in change.effects:
            more = f" ({effect.why})" if effect.explained else ""
            yield f"  {effect.store}: {effect.action}{more}"
        if not change.effects:
            yield "  no store holds it"
    for remark in found.remarks:
        yield f"{remark.store}: {remark.what}"
    if not found.changes:
        yield "no definition changes"
