"""The list of verbs and the options that all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdc.commands import (
    audit,
    bootstrap,
    dlq,
    doctor,
    follow,
    generations,
    init,
    log,
    outbox,
    plan,
    preview,
    resume,
    rollback,
    run,
    schema,
    snapshot,
    status,
    views,
    wait,
)
from cdc.commands.invocation import Invocation
from cdc.commands.logsetup import configure_logs
from cdc.version import VERSION

app = typer.Typer(
    name="cdc",
    help="Headwater: change data capture from Postgres into search indexes, caches and warehouses.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"headwater {VERSION}")
        raise typer.Exit


@app.callback()
def shared(
    context: typer.Context,
    config: Annotated[Path, typer.Option(help="The configuration file; may also stand after the verb.")] = Path("cdc.toml"),
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error, and more of the log.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,  # noqa: ARG001
) -> None:
    configure_logs(debug=debug)
    context.obj = Invocation(config, debug)


app.command("init")(init.init)
app.command("doctor")(doctor.doctor)
app.command("run")(run.run)
app.command("follow")(follow.follow)
app.command("snapshot")(snapshot.snapshot)
app.command("wait")(wait.wait)
app.command("status")(status.status)
app.command("audit")(audit.audit)
app.command("plan")(plan.plan)
app.command("preview")(preview.preview)
app.command("schema")(schema.schema)
app.command("bootstrap")(bootstrap.bootstrap)
app.command("generations")(generations.generations)
app.command("rollback")(rollback.rollback)
app.command("resume")(resume.resume)
app.add_typer(dlq.app, name="dlq")
app.add_typer(log.app, name="log")
app.add_typer(outbox.app, name="outbox")
app.add_typer(views.app, name="views")
