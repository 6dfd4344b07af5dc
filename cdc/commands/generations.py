"""`cdc generations`: the copies of a store that there are beside each other."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.invocation import generations as opened
from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import console, line, moment, print_json, size, table_of
from cdc.errors import ConfigError

if TYPE_CHECKING:
    from cdc.model.position import Cut
    from sinks.generations import Generation, GenerationSize


def generations(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The store's name in the configuration.")],
    drop: Annotated[int | None, typer.Option("--drop", metavar="NUMBER", help="Remove this one, which must not be live.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List a store's generations: which is live, up to when others are kept, how far each is, its rows and its size."""
    settings = invocation(context).settings()
    from cdc.generations.alone import alone, writing
    from cdc.generations.refusals import refuse_another_log
    from cdc.generations.reporter import GenerationReporter

    with closing(open_log(settings)) as log, opened(settings, name) as held:
        found = held.all()
        if drop is not None:
            if all(one.number != drop for one in found):
                raise ConfigError(f"store {name} has no generation {drop}", hint=f"cdc generations {name}")
            refuse_another_log(name, found, log.lineage())
            with alone(settings.log.dir, name), writing(settings.log.dir, name, drop):
                held.drop(drop)
                GenerationReporter(settings.run_dir, name, drop, "kept").gone()
            found = held.all()
        head, sizes = log.head(), {one.number: held.size(one.number) for one in found}
    if as_json:
        print_json({"store": name, "generations": [facts(one, sizes[one.number], head) for one in found]})
        return
    out = console()
    rows = [
        [
            str(one.number),
            _state(one),
            _position(one),
            _behind(one, head),
            str(sizes[one.number].rows),
            size(sizes[one.number].bytes),
        ]
        for one in found
    ]
    if out.is_terminal:
        out.print(table_of(name, (">generation", "state", ">position", ">behind", ">rows", ">size"), rows))
    for number, state, position, behind, count, taken in [] if out.is_terminal else rows:
        out.print(line(f"{name} generation {number}: {state}, position {position}, {behind} behind, {count} rows, {taken}"))
    if not found:
        out.print(line(f"{name} holds nothing yet"))


def facts(one: Generation, large: GenerationSize, head: Cut) -> dict[str, object]:
    position = None if one.mark is None else int(one.mark.cut.position)
    return {
        "number": one.number,
        "state": str(one.state),
        "until": one.until,
        "position": position,
        "behind": None if position is None else max(0, head.position - position),
        "rows": large.rows,
        "bytes": large.bytes,
    }


def _state(one: Generation) -> str:
    return str(one.state) if one.until is None else f"{one.state} until {moment(one.until)}"


def _position(one: Generation) -> str:
    return "-" if one.mark is None else str(one.mark.cut.position)


def _behind(one: Generation, head: Cut) -> str:
    return "-" if one.mark is None else str(max(0, head.position - one.mark.cut.position))
