"""`cdc audit`: every row of a store against the database, at one position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.invocation import finite, invocation
from cdc.commands.output import console, line, print_json, progress_bar
from cdc.terminal import counted, visible

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.audit.findings import Progress, Repair, StoreAudit, TableAudit


def audit(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The store's name; all stores when left out.")] = None,
    table: Annotated[str | None, typer.Option(help="Only the tables that match (schema.table, * and ? match).")] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a store to get as far as the database.", min=0.0, callback=finite)
    ] = 600.0,
    repair: Annotated[
        bool, typer.Option("--repair", help="Send the rows that differ again, through the log; look at them once more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare every row of a store with the database at one position; list the keys that differ; exit 1 if any does.

    Nothing is changed without --repair. With it, capture reads the rows that differ from the database once more, every store that has the
    table gets them from the log, and the exit code says whether all of it is equal then. cdc run has to be running.
    """
    from cdc.audit.stores import audit as audit_all

    settings = invocation(context).settings()
    out = console()
    with _shown(out, quiet=as_json) as progress:
        audits = audit_all(settings, name, table, progress=progress, timeout_s=timeout, repair=repair)
    whole = all(audited.whole for audited in audits)
    if as_json:
        equal = all(audited.equal for audited in audits)
        print_json({"equal": equal, "whole": whole, "stores": [audited.to_json() for audited in audits]})
    else:
        for one in lines(audits):
            out.print(line(one))
    raise typer.Exit(0 if whole else 1)


def lines(audits: list[StoreAudit]) -> Iterator[str]:
    """The audits as plain lines: one for each table, and one below it for each key that is shown."""
    for audited in audits:
        for table in audited.tables:
            yield f"{audited.store} {table.table}: {_verdict(table)}"
            for difference in table.differences:
                key = ", ".join(f"{column}={'NULL' if value is None else value}" for column, value in difference.key.items())
                columns = f" in {', '.join(difference.columns)}" if difference.columns else ""
                yield f"  {difference.kind} ({key}){columns}"
            if table.repair is not None:
                yield from _repaired(audited.store, table, table.repair)
        verdict = "equal" if audited.equal else "repaired" if audited.whole else "DIFFERENT"
        yield (
            f"{audited.store}: {verdict} at {audited.lsn}, position {audited.position}, "
            f"{counted(len(audited.tables), 'table')} in {audited.seconds:.1f} s"
        )


def _repaired(store: str, table: TableAudit, repair: Repair) -> Iterator[str]:
    """What was done about the rows that differ."""
    if repair.rows:
        kinds = f"{repair.missing} missing, {repair.extra} extra, {repair.different} different"
        left = "all of them are equal now"
        if repair.left:
            left = f"{repair.left} of them differ still → cdc status, and see who else writes to the store"
        elif repair.aside:
            left = f"{repair.aside} of them set aside → cdc dlq ls {store}; all others are equal now"
        yield f"  sent again: {counted(repair.rows, 'row')} ({kinds}); {left}"
    if repair.problem is not None:
        yield f"  not sent again: {repair.problem}"
    if letters := table.tally.aside + table.tally.edited + table.tally.accepted:
        yield f"  not sent again: {counted(letters, 'dead letter')} → cdc dlq ls {store}"


def _verdict(table: TableAudit) -> str:
    if table.error is not None:
        return f"not compared: {table.error}"
    scanned, tally = table.scanned, table.tally
    rows = f"{counted(scanned.source_rows, 'row')} in the database, {scanned.store_rows} in the store"
    unsettled = f", {counted(tally.unsettled, 'key')} never held still" if tally.unsettled else ""
    distinct = " as distinct rows" if table.distinct_rows else ""
    repeated = ""
    if scanned.repeated:
        repeat = "repeats another" if scanned.repeated == 1 else "repeat another"
        repeated = (
            f"; {counted(scanned.repeated, 'row')} of the database {repeat}, which a store holds once as the table has no key"
        )
    if letters := tally.aside + tally.edited + tally.accepted:
        unsettled += f", {counted(letters, 'dead letter')} apart ({tally.edited} edited, {tally.accepted} accepted)"
    if tally.expired:
        unsettled += f", {counted(tally.expired, 'row')} expired"
    if table.equal:
        return f"equal{distinct}, {rows}{unsettled}{repeated}"
    counts = f"{tally.missing} missing, {tally.extra} extra, {tally.different} different"
    return f"DIFFERENT{distinct}, {counts}, {rows}{unsettled}{repeated}"


@contextmanager
def _shown(out: Console, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar per table on a terminal, nothing elsewhere."""
    with progress_bar(out, "audit", shown=out.is_terminal and not quiet) as update:

        def show(now: Progress) -> None:
            done = max(now.source_rows, now.store_rows)
            update(
                description=visible(f"{now.store} {now.table} {now.phase}"),
                completed=done,
                total=max(now.expected_rows, done) or None,
            )

        yield show
