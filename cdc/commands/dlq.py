"""`cdc dlq`: the rows that a store cannot hold, and what an operator decides about them."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cdc.commands.correctedrow import read_values
from cdc.commands.invocation import finite, invocation, open_log, store_options, unopened_sink
from cdc.commands.output import console, line, moment, print_json, say, table_of
from cdc.errors import ConfigError, Stopped, WaitTimeout
from cdc.model.selection import matches
from cdc.settings.models import Settings
from cdc.state import letterrequests, status, stops
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from cdc.terminal import counted

if TYPE_CHECKING:
    from cdc.model.topic import TopicSchema
    from sinks.deadletters import Letter

_LOOK_S: Final = 0.2

app = typer.Typer(help="The rows that a store cannot hold: list them, try again, correct or accept them.", no_args_is_help=True)

Store = Annotated[str, typer.Argument(help="The store's name.")]
One = Annotated[str, typer.Argument(metavar="LETTER", help="As `cdc dlq ls` names it: schema.table@position.")]
Several = Annotated[list[str] | None, typer.Argument(metavar="[LETTER]…", help="As `cdc dlq ls` names them.")]
Tables = Annotated[str | None, typer.Option("--table", help="Those of the tables that match (schema.table, * and ? match).")]
All = Annotated[bool, typer.Option("--all", help="Every one of the store's.")]
Timeout = Annotated[
    float, typer.Option(help="Seconds to wait for the store's follower; exit 3 after that.", min=0.0, callback=finite)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("ls")
def ls(
    context: typer.Context,
    store: Annotated[str | None, typer.Argument(help="The store's name; all stores when left out.")] = None,
    table: Tables = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters: where the change stands in the log, and why the store cannot hold it. Shows no value of a row."""
    settings = invocation(context).settings()
    if store is not None:
        store_options(settings, store)
    found = [
        (name, letter)
        for name in settings.stores
        if store in (None, name)
        for letter in _letters(settings, name) or ()
        if table is None or matches((table,), letter.table)
    ]
    if as_json:
        print_json({"letters": [_facts(name, letter) for name, letter in found]})
        return
    out = console()
    if out.is_terminal and found:
        rows = [(name, one.id, one.state, _when(one.at_s), _rows(one) + one.reason) for name, one in found]
        out.print(table_of("", ("store", "letter", "state", "since", "why"), rows))
        return
    for name, one in found:
        out.print(line(f"{name} {one.id}: {one.state} since {_when(one.at_s)}{_decided(one)}: {_rows(one)}{one.reason}"))
    if not found:
        say("no dead letters")


@app.command("show")
def show(
    context: typer.Context,
    store: Store,
    letter: One,
    values: Annotated[
        bool, typer.Option("--values", help="With the row's values, from the log, and what was corrected. This prints row values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter; its row's values with --values only."""
    settings = invocation(context).settings()
    found = _named(store, _asked(settings, store), [letter])[0]
    facts = _facts(store, found)
    if values:
        facts |= {"row": _row(settings, found), "corrected": dict(found.values)}
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, Mapping):
            for column, text in value.items():
                say(f"{name}.{column}: {'NULL' if text is None else text}")
        elif value not in (None, ""):
            say(f"{name}: {value}")
    if values and facts["row"] is None:
        say("the log no longer has this change")


@app.command("replay")
def replay(
    context: typer.Context,
    store: Store,
    letters: Several = None,
    table: Tables = None,
    every: All = False,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Try again, for example once a field's mapping was changed. A row that the store takes is not a dead letter any more. Exit 1 if one is not taken."""
    settings = invocation(context).settings()
    found = _chosen(settings, store, letters, table, every=every)
    _decide(settings, store, LetterRequest(Verb.REPLAY, found, _operator()), timeout, as_json=as_json)


@app.command("edit")
def edit(
    context: typer.Context,
    store: Store,
    letter: One,
    file: Annotated[
        Path,
        typer.Argument(
            help="One JSON object, column → value; what it leaves out stays as it is. - reads standard input.", allow_dash=True
        ),
    ],
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Let the store hold a corrected row, until the row changes in the database. The log and the other stores keep the row as it is."""
    settings = invocation(context).settings()
    found = _named(store, _asked(settings, store), [letter])[0]
    schema = _correctable(settings, store, found)
    values = read_values(_read(file), schema)
    numbers = {one.name: one.origin for one in schema.fields if one.name in values}
    _decide(settings, store, LetterRequest(Verb.EDIT, [found.id], _operator(), values, numbers), timeout, as_json=as_json)


@app.command("drop")
def drop(
    context: typer.Context,
    store: Store,
    letters: Several = None,
    table: Tables = None,
    every: All = False,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Accept that the store does not hold a row, until it changes in the database. The audit lists it as accepted; `replay` takes that back."""
    settings = invocation(context).settings()
    found = _chosen(settings, store, letters, table, every=every)
    _decide(settings, store, LetterRequest(Verb.DROP, found, _operator()), timeout, as_json=as_json)


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {(error.strerror or type(error).__name__).lower()}") from None


def _letters(settings: Settings, store: str) -> Sequence[Letter] | None:
    """The store's letters, asked of the store itself; None for one that can hold every row."""
    from sinks.deadletters import box_of

    sink = unopened_sink(settings, store)
    try:
        box = box_of(sink)
        return None if box is None else box.letters()
    finally:
        sink.close()


def _asked(settings: Settings, store: str) -> Sequence[Letter]:
    """The letters of a store that was named. Raises ConfigError where it can have none."""
    found = _letters(settings, store)
    if found is None:
        raise ConfigError(f"store {store} has no dead letters: its kind can hold every row")
    return found


def _named(store: str, letters: Sequence[Letter], names: Sequence[str]) -> list[Letter]:
    """Raises ConfigError for one that is not there."""
    by_id = {one.id: one for one in letters}
    for name in names:
        if name not in by_id:
            raise ConfigError(f"store {store} has no dead letter {name!r}", hint=f"cdc dlq ls {store}")
    return [by_id[name] for name in names]


def _chosen(settings: Settings, store: str, names: Sequence[str] | None, table: str | None, *, every: bool) -> list[str]:
    """The ids. Raises ConfigError unless they are said in one way."""
    if sum((bool(names), table is not None, every)) != 1:
        raise ConfigError("name dead letters, or --table, or --all", hint=f"cdc dlq ls {store}")
    letters = _asked(settings, store)
    if names:
        return [one.id for one in _named(store, letters, list(dict.fromkeys(names)))]
    return [one.id for one in letters if table is None or matches((table,), one.table)]


def _schema(settings: Settings, letter: Letter) -> TopicSchema:
    with closing(open_log(settings)) as log:
        found = next((one.schema for one in log.topics() if one.name == letter.table), None)
    if found is None:
        raise ConfigError(f"the log has no topic {letter.table}", hint="cdc log ls")
    return found


def _correctable(settings: Settings, store: str, letter: Letter) -> TopicSchema:
    """The table's columns, and what the store computes of them, which may be corrected, too."""
    from sinks import traits_of
    from sinks.heldlog import HeldLog

    if not traits_of(store_options(settings, store)).keeps_rows:
        raise ConfigError(f"store {store} hands events on as they were written", hint="replay the letter, or drop it")
    schema = _schema(settings, letter)
    with closing(open_log(settings)) as log:
        held = HeldLog(log, store, store_options(settings, store)).held(schema)
    computed = {one.column_name: replace(one, name=one.column_name) for one in held.fields if one.computed}
    return replace(schema, fields=(*(one for one in schema.fields if one.name not in computed), *computed.values()))


def _row(settings: Settings, letter: Letter) -> dict[str, str | None] | None:
    """The row as the log has it, under the names that its columns have now, by which `edit` corrects it; None where the log has it no longer."""
    from cdc.follow.letters import row_in_log
    from sinks.render.rowtext import row_text
    from sinks.reshape import conformed

    with closing(open_log(settings)) as log:
        found = None if letter.whole_table else row_in_log(log, letter)
    if found is None:
        return None
    schema = _schema(settings, letter)
    row: dict[str, str | None] = row_text(conformed(found, schema), schema).to_pylist()[0]
    return row


def _decide(settings: Settings, store: str, request: LetterRequest, timeout_s: float, *, as_json: bool) -> None:
    """Hands it to the store's follower, and prints what became of it."""
    if not request.letters:
        print_json({"letters": []}) if as_json else say("no dead letters")
        return
    name = letterrequests.ask(settings.run_dir, store, request)
    if not as_json and not _follows(settings, store) and stops.held_by(settings.run_dir, f"follow-{store}") is None:
        say(f"nobody follows store {store}; the request waits until somebody does (cdc run)")
    answers = _await(settings, store, name, timeout_s)
    if as_json:
        print_json({"letters": [{"letter": one.letter, "done": one.done, "text": one.text} for one in answers]})
    else:
        for one in answers:
            say(f"{one.letter}: {one.text}")
        failed = sum(not one.done for one in answers)
        if failed and len(answers) > 1:
            say(f"{failed} of {counted(len(answers), 'dead letter')} are as before")
    raise typer.Exit(0 if all(one.done for one in answers) else 1)


def _await(settings: Settings, store: str, name: str, timeout_s: float) -> Sequence[LetterAnswer]:
    until = time.monotonic() + timeout_s
    while (answers := letterrequests.taken_answer(settings.run_dir, store, name)) is None:
        if (stop := stops.held_by(settings.run_dir, f"follow-{store}")) is not None:
            why = f"store {store} has stopped, and does what was asked once it is resumed: {stop.message}"
            raise Stopped(stop.state, why, hint=stop.hint)
        if time.monotonic() >= until:
            raise WaitTimeout(
                f"store {store} has not answered within {timeout_s:g} s; the request stays", hint=f"cdc status; cdc dlq ls {store}"
            )
        time.sleep(_LOOK_S)
    return answers


def _follows(settings: Settings, store: str) -> bool:
    told = status.read_follower(settings.run_dir, store)
    return told is not None and told.state not in ("exited", "stopped") and status.alive(told.pid)


def _operator() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in many containers
        return f"uid {os.getuid()}"


def _facts(store: str, letter: Letter) -> dict[str, Any]:
    return {
        "store": store,
        "letter": letter.id,
        "table": letter.table,
        "position": int(letter.position),
        "state": str(letter.state),
        "reason": letter.reason,
        "since": _when(letter.at_s),
        "whole_table": letter.whole_table,
        "rows": letter.rows,
        "by": letter.by or None,
        "decided": _when(letter.decided_s) if letter.by else None,
        "columns": ", ".join(sorted(letter.values)) or None,
    }


def _when(unix_s: float) -> str:
    return moment(unix_s) if unix_s else "an earlier version"


def _decided(letter: Letter) -> str:
    return f", by {letter.by} at {moment(letter.decided_s)}" if letter.by else ""


def _rows(letter: Letter) -> str:
    return f"the whole table, {counted(letter.rows, 'change')} so far: " if letter.whole_table else ""
